"""Lays out the charts of a day's data for the page of a night, each with a sentence and a table.

A day that is held shows first what held it: figures outside limits that hold a day, and the distributions of
the columns that drifted or that these figures are of.
"""

from dataclasses import dataclass
from datetime import date
from pathlib import Path

from markupsafe import Markup

from daybreak.contract import formats, records
from daybreak.contract.record_parts import ColumnDistribution, FigureSeries
from daybreak.contract.record_types import Distributions
from daybreak.report import day_charts
from daybreak.report.tabled_chart import TabledChart

MOST_HELD = 3  # charts of what held a day


@dataclass(frozen=True, kw_only=True)
class DayLooks:
    """The charts of a day: the reasons for holding the day, other figures outside their limits, columns."""

    held: tuple[TabledChart, ...]
    outside: tuple[TabledChart, ...]
    of_day: tuple[TabledChart, ...]  # as a whole
    columns: dict[str, tuple[TabledChart, ...]]
    left_out: tuple[str, ...]


def day_looks(folder: Path, *, held: bool) -> DayLooks | None:
    """Returns the charts of the night in a folder, `held` by its data or not; None where it left none."""
    seen = records.find(Distributions, folder / records.LOOKS)
    if seen is None:
        return None
    before = _before(seen)
    of_columns = [
        _distribution(one, before, label=seen.label, name=f"column{at}")
        for at, one in enumerate(seen.columns)
    ]
    of_figures = [_series(one, name=f"figure{at}") for at, one in enumerate(seen.figures)]
    pairs = list(zip(seen.figures, of_figures, strict=True))
    outside = [look for one, look in pairs if not one.holds]
    stopping = [look for one, look in pairs if one.stops]
    words = " ".join(f" {one.figure} " for one in seen.figures if one.stops)
    told = {one.column for one in seen.columns if one.column in seen.drifted or f" {one.column} " in words}
    first = [look for look in of_columns if look.title in told]
    of_what_held = [*stopping[: MOST_HELD - bool(first)], *first][:MOST_HELD] if held else []
    return DayLooks(
        held=tuple(of_what_held),
        outside=tuple(look for look in outside if look not in of_what_held),
        of_day=tuple(look for one, look in pairs if one.holds and not one.column),
        columns={
            column.column: (
                *([look] if look not in of_what_held else []),
                *(of for one, of in pairs if one.holds and one.column == column.column),
            )
            for column, look in zip(seen.columns, of_columns, strict=True)
        },
        left_out=seen.left_out,
    )


def _before(seen: Distributions) -> str:
    same = {day.weekday() for day in (seen.day, *seen.before)}
    if not seen.before:
        return "no day before"
    weekday = f"{seen.day:%A}" if len(same) == 1 else "day"
    return f"the {formats.counted(len(seen.before), weekday)} before"


def _distribution(column: ColumnDistribution, before: str, *, label: str, name: str) -> TabledChart:
    missing = ""
    if any(column.missing):
        tonight, earlier = formats.percents(*column.missing)
        missing = f" Missing in {tonight} of the rows, before in {earlier}."
    labels = bool(column.label_tonight or column.label_before)
    nothing: tuple[None, ...] = (None,) * len(column.values)
    cells = zip(
        column.values,
        column.tonight or nothing,
        column.before or nothing,
        column.label_tonight or nothing,
        column.label_before or nothing,
        strict=True,
    )
    return TabledChart(
        title=column.column,
        words=f"Shares tonight, and of {before}.{missing}",
        chart=Markup(day_charts.distribution(column, name=name)),
        head=("Value", "tonight", "before", *((f"{label} tonight", f"{label} before") if labels else ())),
        rows=tuple(
            (
                value,
                formats.percent(tonight),
                formats.percent(earlier),
                *((formats.quantity(one), formats.quantity(other)) if labels else ()),
            )
            for value, tonight, earlier, one, other in cells
        ),
    )


def _series(figure: FigureSeries, *, name: str) -> TabledChart:
    show = formats.percent if figure.is_share else formats.quantity

    def row(day: date, value: float, low: float | None, high: float | None) -> tuple[str, ...]:
        expected = "–" if low is None or high is None else f"{show(low)} to {show(high)}"
        return str(day), show(value), expected

    days = zip(figure.days, figure.values, figure.lows, figure.highs, strict=True)
    return TabledChart(
        title=figure.figure,
        words=f"{figure.words[:1].upper()}{figure.words[1:]}.",
        chart=Markup(day_charts.series(figure, name=name)),
        head=("Day", "value", "expected"),
        rows=tuple(row(*one) for one in reversed(list(days))),
    )
