"""Draws the board over the whole ledger: a page, and a table for the terminal."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.contract import formats
from pipeline.contract.units import HOUR_S
from pipeline.report import outcome
from pipeline.report.standing import best_baseline, score
from pipeline.storage.ledger import Entry

if TYPE_CHECKING:
    from rich.table import Table

BOUNDS = {"io": "I/O", "compute": "compute", "memory": "memory"}
_STYLES = {"promoted": "bold green", "kept": "", "failed": "bold red", "rollback": "yellow", "open": "dim"}


def board(history: Sequence[Entry], pages: Mapping[str, str] | None = None) -> str:
    """Returns the HTML page over all nights of the ledger; `history` is newest first.

    `pages` has the address of each night's page by its id (pipeline/report/links.py).
    """
    from pipeline.report import templates

    return templates.render("board.html", **_shown(history, pages or {}))


def board_of_all(
    histories: Mapping[str, Sequence[Entry]], pages: Mapping[str, Mapping[str, str]] | None = None
) -> str:
    """Returns the HTML page over the nights of several models, each with its history, newest first.

    `pages` has, of each model, the address of each night's page by its id.
    """
    from pipeline.report import templates

    models = [
        {"model": model, **_shown(history, (pages or {}).get(model, {}))}
        for model, history in histories.items()
    ]
    return templates.render("boards.html", models=models)


def _shown(history: Sequence[Entry], pages: Mapping[str, str]) -> dict[str, Any]:
    from markupsafe import Markup

    from pipeline.report import charts, figures

    nights = [entry for entry in history if not entry.rollback]
    points = figures.points(nights)
    spent = [entry.training for entry in nights if entry.training]
    return dict(
        history=history,
        pages=pages,
        more=len(history) >= outcome.NIGHTS,
        num_nights=len(nights),
        first=nights[-1].night.day if nights else "",
        last=nights[0].night.day if nights else "",
        outcome=outcome.outcome,
        num_promoted=sum(outcome.outcome(entry) == "promoted" for entry in nights),
        num_failed=sum(outcome.outcome(entry) == "failed" for entry in nights),
        champion=outcome.champion,
        rolled_back=outcome.rolled_back(history),
        word=outcome.word,
        seconds=sum(training.elapsed_s for training in spent),
        usd=sum(training.cost_usd for training in spent),
        score=score,
        best_baseline=best_baseline,
        bounds=BOUNDS,
        trend=Markup(charts.trend(points)) if len(points) > 1 else None,
    )


def status_table(history: Sequence[Entry]) -> "Table":
    """Returns the nights as a table for the terminal, in the order given."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("day", no_wrap=True)
    table.add_column("night", overflow="ellipsis", min_width=10)  # shrinks where the terminal is narrow
    table.add_column("verdict", no_wrap=True)
    for name in ("champion", "hours against deadline", "dollars"):
        table.add_column(name, justify="right", no_wrap=name != "hours against deadline", min_width=8)
    table.add_column("bound", no_wrap=True)
    for entry in history:
        result = outcome.outcome(entry)
        if result == "rollback":
            at = f"{entry.closed_at:%Y-%m-%d %H:%M}" if entry.closed_at else ""
            verdict = Text(outcome.word(entry), style=_STYLES[result])
            table.add_row(at[:10], at[11:], verdict, formats.count(outcome.champion(entry) or None))
            continue
        table.add_row(
            str(entry.night.day),
            Text(entry.night.id),
            Text(outcome.word(entry), style=_STYLES[result]),
            formats.count(outcome.champion(entry) or None),
            hours(entry),
            formats.dollars(entry.training.cost_usd if entry.training else None),
            BOUNDS[entry.profile.bound] if entry.profile else formats.NONE,
        )
    return table


def status_rows(history: Sequence[Entry]) -> list[dict[str, Any]]:
    """Returns the nights as JSON values, in the order given; a rollback has no figure of a night."""
    rows = []
    for entry in history:
        at = entry.closed_at.isoformat() if entry.closed_at else None
        row: dict[str, Any] = {
            "night": None if entry.rollback else entry.night.id,
            "outcome": outcome.outcome(entry),
            "verdict": outcome.word(entry),
            "reason": entry.verdict.reason if entry.verdict else None,
            "champion": outcome.champion(entry) or None,
            "closed_at": at,
            "commit": entry.commit,
        }
        if not entry.rollback:
            row |= {
                "day": str(entry.night.day),
                "elapsed_s": entry.training.elapsed_s if entry.training else None,
                "limit_s": (entry.night.train_until - entry.night.started_at).total_seconds(),
                "cost_usd": entry.training.cost_usd if entry.training else None,
                "bound": entry.profile.bound if entry.profile else None,
            }
        rows.append(row)
    return rows


def hours(entry: Entry) -> str:
    """Returns the hours of training against the hours that the deadline left."""
    limit = (entry.night.train_until - entry.night.started_at).total_seconds() / HOUR_S
    used = entry.training.elapsed_s / HOUR_S if entry.training else None
    text = formats.NONE if used is None else f"{used:.2f}" if used >= 0.1 else f"{used:.3f}"
    return f"{text} of {limit:g}"
