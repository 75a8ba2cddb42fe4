"""Compares two nights figure by figure, as a page of the server of pages."""

from collections.abc import Callable
from dataclasses import dataclass

from daybreak.contract import formats
from daybreak.report.night_rows import NightRow
from daybreak.report.templates import render


@dataclass(frozen=True, kw_only=True)
class ComparedFigure:
    """A figure of both nights; the difference is "" where there is none, or nothing to subtract."""

    name: str
    first: str
    second: str
    difference: str = ""


_NUMBERS: tuple[tuple[str, Callable[[NightRow], float | None], Callable[[float | None], str]], ...] = (
    ("Score", lambda row: row.score, formats.score),
    ("Better than the champion by", lambda row: row.effect, formats.effect),
    ("Best simple rule", lambda row: row.rule_score, formats.score),
    ("Ready after", lambda row: row.decided_s, formats.duration),
    ("Trained for", lambda row: row.trained_s, formats.duration),
    ("Time that was planned", lambda row: row.predicted_s[1] if row.predicted_s else None, formats.duration),
    ("Cost", lambda row: row.usd, formats.dollars),
    ("Cost that was planned", lambda row: row.predicted_usd, formats.dollars),
    ("Budget", lambda row: row.budget_usd, formats.dollars),
    ("Rows", lambda row: row.num_rows, formats.count),
    ("Quarantined", lambda row: row.num_quarantined, formats.count),
)
_WORDS: tuple[tuple[str, Callable[[NightRow], str]], ...] = (
    ("Verdict", lambda row: row.verdict),
    ("Reason", lambda row: row.reason),
    ("By", lambda row: row.by or formats.NONE),
    ("Serves since", lambda row: f"version {row.serves}" if row.serves else formats.NONE),
    ("Machines", lambda row: row.rental or formats.NONE),
    ("Bound", lambda row: row.bound or formats.NONE),
)


def figures(first: NightRow, second: NightRow) -> list[ComparedFigure]:
    """Returns the figures of two nights, with what the second has more."""
    words = [ComparedFigure(name=name, first=text(first), second=text(second)) for name, text in _WORDS]
    return words + [_number(name, value(first), value(second), show) for name, value, show in _NUMBERS]


def _number(
    name: str, first: float | None, second: float | None, show: Callable[[float | None], str]
) -> ComparedFigure:
    difference = ""
    if first is not None and second is not None and show(first) != show(second):
        more = second - first
        difference = f"{'+' if more > 0 and not show(more).startswith('+') else ''}{show(more)}"
    return ComparedFigure(name=name, first=show(first), second=show(second), difference=difference)


def page(first: tuple[str, NightRow], second: tuple[str, NightRow]) -> str:
    """Returns the page that compares two nights, each given with its model."""
    return render("pages/comparison.html", nights=[first, second], figures=figures(first[1], second[1]))
