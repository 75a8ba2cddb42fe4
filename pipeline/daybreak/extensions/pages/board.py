"""Draws the board over all nights of one model or several: a page, and a table for the terminal.

The page is made of rows (daybreak/report/night_rows.py), not of records, so that a thousand nights take a
fraction of a second. It is a file that needs no server; served, it also filters, sorts and pages for a
browser without scripts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from daybreak.contract import formats
from daybreak.contract.units import HOUR_S
from daybreak.extensions.pages import live, night_charts
from daybreak.extensions.pages.live import RunningPage
from daybreak.extensions.pages.night_charts import Chart
from daybreak.extensions.pages.running import RunningNight, line
from daybreak.extensions.pages.selection import (
    MOST_SEARCHED,
    OUTCOMES,
    PER_PAGE,
    Query,
    chosen_of,
    day_of,
    is_taken_back,
    month_of,
    searched,
    select,
    time_of,
)
from daybreak.prediction.scorecard import COVERED, LEAST_NIGHTS
from daybreak.prediction.scorecard import NIGHTS as SCORED
from daybreak.profiling.explain import BOUNDS
from daybreak.report import outcome
from daybreak.report.night_rows import NightRow
from daybreak.report.templates import render
from daybreak.storage import ledger

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

COLUMNS = (  # key to sort by, words, is it a number?
    ("day", "Day", False),
    ("model", "model", False),
    ("verdict", "verdict", False),
    ("serves", "serves", True),
    ("score", "score", True),
    ("effect", "to champion", True),
    ("ready", "ready", True),
    ("cost", "cost", True),
    ("predicted", "time, of plan", True),
    ("bound", "bound", False),
    ("rows", "rows", True),
    ("quarantined", "quarantined", True),
)
_STYLES = {"promoted": "bold green", "kept": "", "failed": "bold red", "rollback": "yellow", "open": "dim"}


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model with the rows of its nights, newest first, and the address of each night's page by its id."""

    name: str
    rows: Sequence[NightRow]
    pages: Mapping[str, str]
    notices: Sequence[str] = ()  # recipes that a person holds, served rows unlike training: a sentence each
    held_until: Sequence[date] = ()  # last nights of the holds that end by themselves
    fault: str = ""  # why its ledger cannot be read


@dataclass(frozen=True, kw_only=True)
class ModelSummary:
    """A model's nights in short."""

    name: str
    notices: Sequence[str]
    fault: str
    serves: int
    before: int  # the version that a rollback brings back; 0: none
    last: NightRow | None
    num_nights: int
    num_promoted: int
    num_failed: int
    num_late: int
    usd: float
    week_usd: float  # of the last seven days
    num_predicted: int  # of the last nights, whose time was predicted
    num_held: int  # and was in the interval
    charts: Sequence[Chart]

    @property
    def is_miscalibrated(self) -> bool:
        """Returns whether fewer times were in their intervals than a sound plan allows for."""
        return self.num_predicted >= LEAST_NIGHTS and self.num_held < COVERED[0] * self.num_predicted


def files(
    models: Sequence[Model], *, name: str, at: datetime, running: Sequence[RunningPage] = ()
) -> Iterator[tuple[str, str]]:
    """Yields the board as files that need no server, with their names: NAME.html, NAME-2.html and so on."""
    nights, shown = _newest_first(models), _of_all(models, at=at)
    for page in range(1, (-(-len(nights) // PER_PAGE) or 1) + 1):
        query = Query(page=page)
        yield _file(name, page), _page(nights, shown, query=query, at=at, running=running, file=name)


def board(
    models: Sequence[Model],
    *,
    query: Query,
    at: datetime,
    running: Sequence[RunningPage] = (),
    source: str = "",
    file: str = "",
) -> str:
    """Returns the HTML page over the nights of these models, as they are at a moment.

    Args:
        models: newest nights first.
        query: which nights are asked for.
        at: the moment.
        running: nights that run.
        source: address of the stream that they go on by; "" for none.
        file: name of the files of a board that is not served.
    """
    nights, shown = _newest_first(models), _of_all(models, at=at)
    return _page(nights, shown, query=query, at=at, running=running, source=source, file=file)


def _of_all(models: Sequence[Model], *, at: datetime) -> dict[str, Any]:
    """Returns what each page of a board shows of all nights, by the names of the template."""
    rows = [row for model in models for row in model.rows]
    only = [row for row in rows if not row.is_rollback]
    return dict(
        models=[_summary(model, at=at) for model in models],
        several=len(models) > 1,
        num_nights=len(only),
        num_promoted=sum(row.outcome == "promoted" for row in only),
        num_failed=sum(row.outcome == "failed" for row in only),
        months=sorted(set(map(month_of, rows)), reverse=True),
        taken_back={(model.name, version) for model in models for version in taken_back(model.rows)},
        pages={(model.name, night): href for model in models for night, href in model.pages.items()},
    )


def _page(
    nights: Sequence[tuple[str, NightRow]],
    shown: Mapping[str, Any],
    *,
    query: Query,
    at: datetime,
    running: Sequence[RunningPage],
    source: str = "",
    file: str = "",
) -> str:
    return render(
        "pages/board.html",
        **shown,
        scored=SCORED,
        query=query,
        selection=select(nights, query, taken_back=shown["taken_back"]),
        columns=COLUMNS,
        outcomes=OUTCOMES,
        bounds=BOUNDS,
        searched=searched,
        is_taken_back=is_taken_back,
        most_searched=MOST_SEARCHED,
        is_served=not file,
        address=lambda **changed: _file(file, changed["page"]) if file else _address(query, changed),
        number=lambda value: "" if value is None else repr(value),  # whole, to sort as the server does
        day_of=day_of,
        time_of=time_of,
        at=at,
        running=live.part(running, at=at),
        source=source,
        script=live.script(),
    )


def nights_of(models: Sequence[Model], query: Query) -> list[dict[str, Any]]:
    """Returns the nights of all pages that are asked for as JSON values, each with its model."""
    gone = {(model.name, version) for model in models for version in taken_back(model.rows)}
    nights = chosen_of(_newest_first(models), query, taken_back=gone)
    values = status_rows([row for _, row in nights])
    return [
        {"model": model}
        | value
        | ({} if row.is_rollback else {"taken_back": is_taken_back(model, row, gone)})
        for (model, row), value in zip(nights, values, strict=True)
    ]


def _newest_first(models: Sequence[Model]) -> list[tuple[str, NightRow]]:
    nights = [(model.name, row) for model in models for row in model.rows]
    return sorted(nights, key=lambda one: -one[1].closed_at)


def _summary(model: Model, *, at: datetime) -> ModelSummary:
    nights = [row for row in model.rows if not row.is_rollback]
    week_ago = (at - timedelta(days=7)).timestamp()
    served = ledger.served([row.release[0] for row in model.rows if row.release])
    predicted = [row.held for row in nights if row.held is not None][:SCORED]
    return ModelSummary(
        name=model.name,
        notices=model.notices,
        fault=model.fault,
        serves=model.rows[0].serves if model.rows else 0,
        before=served[-2] if len(served) > 1 else 0,
        last=nights[0] if nights else None,
        num_nights=len(nights),
        num_promoted=sum(row.outcome == "promoted" for row in nights),
        num_failed=sum(row.outcome == "failed" for row in nights),
        num_late=sum(row.is_late for row in nights),
        usd=sum(row.usd or 0.0 for row in nights),
        week_usd=sum(row.usd or 0.0 for row in nights if row.started_at >= week_ago),
        num_predicted=len(predicted),
        num_held=sum(predicted),
        charts=night_charts.charts(nights),
    )


def taken_back(rows: Sequence[NightRow]) -> dict[int, int]:
    """Returns the versions of a model that were taken back and did not serve again; rows are newest first."""
    return outcome.taken_back([(*row.release, row.is_rollback) for row in rows if row.release])


def _file(name: str, page: int) -> str:
    return f"{name}.html" if page == 1 else f"{name}-{page}.html"


def _address(query: Query, changed: Mapping[str, object]) -> str:
    """Returns the address of the same page with parameters replaced; "" removes a parameter."""
    sort = f"{'-' if query.descending else ''}{query.sort}"
    values = {
        "model": query.model,
        "outcome": query.outcome,
        "month": query.month,
        "q": query.text,
        "sort": sort,
        "page": query.page,
    }
    kept = {name: value for name, value in {**values, **changed}.items() if value not in ("", 1)}
    return f"?{urlencode(kept)}"


def status_of(
    rows: Sequence[NightRow], running: Sequence[RunningNight], notices: Sequence[str]
) -> list["Table | Text | str"]:
    """Returns what a terminal shows of a model: nights that run, the last ones, and notices."""
    from rich.text import Text

    lines = [Text(f"{state.night.day} under way, {line(state)}", style="bold") for state in running]
    return [*lines, status_table(rows) if rows else "no night yet", *map(Text, notices)]


def running_rows(running: Sequence[RunningNight]) -> list[dict[str, Any]]:
    """Returns the nights that run as JSON values."""
    return [
        {
            "night": state.night.id,
            "day": str(state.night.day),
            "outcome": "open",
            "verdict": "under way",
            "stage": state.stage or "close",
            "text": state.text,
            "share": state.share,
            "trained_at": state.trained_at.isoformat() if state.trained_at else None,
            "chance": state.chance,
            "loss": state.loss[-1][1] if state.loss else None,
            "cost_usd": state.usd,
            "fallbacks": [fallback.name for fallback in state.fallbacks],
        }
        for state in running
    ]


def status_table(rows: Sequence[NightRow]) -> "Table":
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
    predicts = any(row.num_predicted is not None for row in rows)
    if predicts:
        table.add_column("predictions", justify="right", no_wrap=True)
    for row in rows:
        verdict = Text(row.verdict, style=_STYLES[row.outcome])
        serves = formats.count(row.serves or None)
        if row.is_rollback:
            at = f"{datetime.fromtimestamp(row.closed_at, UTC):%Y-%m-%d %H:%M}" if row.closed_at else ""
            table.add_row(at[:10], at[11:], verdict, serves)
            continue
        bound = BOUNDS[row.bound] if row.bound else formats.NONE
        night = Text(formats.short_id(row.night))
        predicted = [formats.count(row.num_predicted)] if predicts else []
        cost = formats.dollars(row.usd)
        table.add_row(row.day, night, verdict, serves, hours(row), cost, bound, *predicted)
    return table


def status_rows(rows: Sequence[NightRow]) -> list[dict[str, Any]]:
    """Returns the nights as JSON values, in the order given; a rollback has no figure of a night."""
    values = []
    for row in rows:
        at = datetime.fromtimestamp(row.closed_at, UTC).isoformat() if row.closed_at else None
        shown: dict[str, Any] = {
            "night": None if row.is_rollback else row.night,
            "outcome": row.outcome,
            "verdict": row.verdict,
            "by": row.by or None,
            "reason": row.reason,
            "champion": row.serves or None,
            "closed_at": at,
            "commit": row.commit,
        }
        if not row.is_rollback:
            shown |= {
                "day": row.day,
                "failed": row.failed or None,
                "elapsed_s": row.elapsed_s,
                "trained_s": row.trained_s,
                "predicted_s": row.predicted_s[1] if row.predicted_s else None,
                "limit_s": row.train_within_s,
                "decided_s": row.decided_s,
                "decide_within_s": row.decide_within_s,
                "cost_usd": row.usd,
                "budget_usd": row.budget_usd,
                "rental": row.rental or None,
                "score": row.score,
                "champion_score": row.champion_score,
                "effect": row.effect,
                "bound": row.bound or None,
                "rows": row.num_rows,
                "quarantined": row.num_quarantined,
                "predictions": row.num_predicted,
                "predicted_by": row.predicted_by or None,
            }
        values.append(shown)
    return values


def hours(row: NightRow) -> str:
    """Returns the hours of training against the hours that the deadline left."""
    used = None if row.elapsed_s is None else row.elapsed_s / HOUR_S
    text = formats.NONE if used is None else f"{used:.2f}" if used >= 0.1 else f"{used:.3f}"
    return f"{text} of {row.train_within_s / HOUR_S:g}"
