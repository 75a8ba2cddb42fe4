"""Describes tonight's columns and figures beside those of the days before, for a person to look at.

A column is compared with the same weekdays before it, as drift is, or with all known days where there are too
few: the share of each value, of numbers with many values of each of `BINS` ranges, and the mean label there.
The two outer ranges hold all that is beyond. Figures come with the limits of each day, at tonight's chance of
a false alarm. All of it is of the days' samples (daybreak/data/day_sample.py). Pure, but for `write`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import pairwise
from math import ceil, exp, floor
from typing import TYPE_CHECKING

import numpy as np

from daybreak.contract import records
from daybreak.contract.formats import quantity
from daybreak.contract.record_parts import ColumnDistribution, Drift, FigureSeries
from daybreak.contract.record_types import Distributions, Night
from daybreak.contract.sections import ValidateParams
from daybreak.contract.table import Table
from daybreak.data import day_history
from daybreak.data.daily_limits import (
    DayLimits,
    History,
    Limit,
    figure_of_days,
    in_a_sentence,
    learn,
    limits_of_days,
)
from daybreak.data.day_figures import LEAST_ROWS, WINDOW
from daybreak.data.day_sample import Sample, columns_of
from daybreak.data.drift import LEAST_WEEKDAYS, SAME_WEEKDAYS
from daybreak.data.suite import Suite

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]

BINS = 20
SHOWN_DAYS = 28  # of a figure
FEW = 12  # values of a number that are shown one by one, and categories
MOST_COLUMNS, MOST_OUTSIDE = 12, 8
MOST_OF_COLUMN = 2  # figures
OTHERS = "others"
LONGEST = 60  # letters of a value


def write(
    night: Night,
    figures: Mapping[date, day_history.Known],
    unusual_days: Sequence[day_history.JudgedDay],
    distances: Sequence[Drift],
    table: Table,
    *,
    suite: Suite,
    params: ValidateParams,
) -> None:
    """Writes what the night's day looks like, for its page.

    Args:
        night: whose day it is.
        figures: of the day and of others, by day.
        unusual_days: days that are judged tonight, with their limits.
        distances: of the day's columns from the same weekdays before.
        table: of the rows.
        suite: says which figures have no limits, and which stop a day.
        params: the same, and the rate of false alarms.
    """
    label = table.label.column if table.label else ""
    history = {day: known.figures for day, known in figures.items() if day <= night.day}
    of_night = next((one.known for one in unusual_days if one.day == night.day), None)
    if of_night is None:  # was judged by a call before
        off, rate = day_history.figures_off(suite), params.false_alarms_per_year
        of_night = learn(history, night.day, false_alarms_per_year=rate, label=label, off=off)
    outside = [(one.day, limit) for one in unusual_days for limit in one.outside]
    stopping = [
        (one.day, limit) for one in unusual_days for limit in day_history.stopping(one, suite, params)
    ]
    days = sorted(history)[-WINDOW - 1 :]
    looks = distributions(
        night.day,
        day_history.samples(figures, [*compared(night.day, days), *days[-1:]]),
        history,
        columns=columns_of(table),
        label=label,
        limits=of_night,
        outside=sorted(outside, key=lambda pair: (pair not in stopping, -pair[1].excess)),
        num_stopping=len(stopping),
        drifted=[one.column.removesuffix(" nulls") for one in distances if one.value > one.limit],
    )
    records.LOOKS.mkdir(parents=True, exist_ok=True)
    records.write(looks, records.LOOKS)


def distributions(
    day: date,
    samples: Mapping[date, Sample],
    history: History,
    *,
    columns: Sequence[str],
    label: str,
    limits: DayLimits,
    outside: Sequence[tuple[date, Limit]],
    num_stopping: int,
    drifted: Sequence[str],
) -> Distributions:
    """Returns what is to be shown of the day.

    Args:
        day: the night's.
        samples: of the day, and of days before it.
        history: figures by day and name.
        columns: of the table, in order.
        label: column of the label; "" for a table without.
        limits: of the day's figures.
        outside: limits that do not hold, each with its day: those that stop the day, then others, by how far
            they are off.
        num_stopping: of `outside`, the first ones, which stop the day.
        drifted: columns that are too far from the same weekdays before.
    """
    before = compared(day, sorted(samples))
    now, then = [samples[day]] if day in samples else [], [samples[other] for other in before]
    words = " ".join(f" {limit.name} " for _, limit in outside[:num_stopping])
    of_figures = [name for name in columns if f" {name} " in words]
    described: list[ColumnDistribution] = []
    left_out: list[str] = []
    for name in dict.fromkeys([*drifted, *of_figures, *columns]):
        if name in columns and len(described) < MOST_COLUMNS:
            described += [one] if (one := _column(name, now, then, label=label)) else []
        elif name in columns and now and all(name in one.numbers or name in one.small for one in now):
            left_out.append(name)
    return Distributions(
        day=day,
        before=tuple(before),
        label=label,
        drifted=tuple(drifted),
        columns=tuple(described),
        left_out=tuple(left_out),
        figures=tuple(
            replace(one, stops=at < min(num_stopping, MOST_OUTSIDE) and not one.holds)
            for at, one in enumerate(
                _figures(day, history, [one.column for one in described], limits, outside, label=label)
            )
        ),
    )


def compared(day: date, days: Sequence[date]) -> list[date]:
    """Returns which of `days`, which are in order, a day is compared with."""
    earlier = [other for other in days if other < day]
    same = [other for other in earlier if other.weekday() == day.weekday()][-SAME_WEEKDAYS:]
    return same if len(same) >= LEAST_WEEKDAYS else earlier


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """A column of the rows of some days: the place of each value, -1 for none, and the label."""

    codes: "Codes"
    label: "Numbers"
    weights: "Numbers"  # rows of the day that a row of its sample stands for

    def shares(self, num: int) -> tuple[float, ...]:
        there = self.codes >= 0
        counts = np.bincount(self.codes[there], self.weights[there], minlength=num)
        return tuple((counts / counts.sum()).tolist()) if counts.sum() else ()

    @property
    def missing(self) -> float:
        total = float(self.weights.sum())
        return float(self.weights[self.codes < 0].sum()) / total if total else 0.0

    def labels(self, num: int) -> tuple[float | None, ...]:
        there = (self.codes >= 0) & np.isfinite(self.label)
        if not there.any():
            return ()
        nums = np.bincount(self.codes[there], minlength=num)
        sums = np.bincount(self.codes[there], self.label[there], minlength=num)
        return tuple(
            float(total) / int(rows) if rows >= LEAST_ROWS else None
            for total, rows in zip(sums, nums, strict=True)
        )


def _column(
    name: str, now: Sequence[Sample], then: Sequence[Sample], *, label: str
) -> ColumnDistribution | None:
    """Returns the distribution of a column; None of one with too many values that are no numbers."""
    days = [*now, *then]
    if now and all(name in sample.numbers for sample in now):
        with_column = [sample for sample in days if name in sample.numbers]
        values, edges, codes = _ranges([sample.numbers[name] for sample in with_column], len(now))
    elif now and all(name in sample.small for sample in now):
        with_column = [sample for sample in days if name in sample.small]
        values, codes = _categories(name, with_column, len(now))
        edges = ()
    else:
        return None
    if not values:
        return None
    tonight, before = (
        _rows(with_column[part], codes[part], label=label if label != name else "")
        for part in (slice(len(now)), slice(len(now), None))
    )
    num = len(values)
    return ColumnDistribution(
        column=name,
        values=values,
        edges=edges,
        tonight=tonight.shares(num),
        before=before.shares(num),
        missing=(tonight.missing, before.missing),
        label_tonight=tonight.labels(num),
        label_before=before.labels(num),
    )


def _rows(samples: Sequence[Sample], codes: "Sequence[Codes]", *, label: str) -> _Rows:
    labels = [sample.numbers.get(label, np.full(len(sample), np.nan)) for sample in samples]
    weights = [np.full(len(sample), 1 / sample.share) for sample in samples]
    return _Rows(
        codes=np.concatenate([np.zeros(0, np.int64), *codes]),
        label=np.concatenate([np.zeros(0), *labels]),
        weights=np.concatenate([np.zeros(0), *weights]),
    )


def _ranges(
    columns: "Sequence[Numbers]", num_now: int
) -> "tuple[tuple[str, ...], tuple[float, ...], list[Codes]]":
    """Returns the names of the ranges of numbers, the edges between them, and the range of each value."""
    sides = [np.concatenate([np.zeros(0), *part]) for part in (columns[:num_now], columns[num_now:])]
    known = [side[np.isfinite(side)] for side in sides if np.isfinite(side).any()]
    if not known:
        return (), (), []
    distinct = np.unique(np.concatenate(known))
    if len(distinct) <= FEW:
        inner = distinct[1:]
        names = [quantity(float(value)) for value in distinct]
        edges: tuple[float, ...] = ()
    else:
        ends = np.array([np.percentile(side, [1, 99]) for side in known])
        low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
        low, high = (low, high) if low < high else (float(distinct[0]), float(distinct[-1]))
        inner = np.linspace(low, high, BINS + 1)[1:-1]
        if (distinct == np.floor(distinct)).all():
            width = ceil((high - low) / BINS)  # else some ranges have more whole numbers than others
            first = floor(low) + width
            inner = np.arange(first, max(first, high) + 0.5, width, dtype=np.float64)[:BINS]
        edges = tuple(inner.tolist())
        at = [quantity(edge) for edge in edges]
        middle = [f"{one} to {other}" for one, other in pairwise(at)]
        names = [f"below {at[0]}", *middle, f"{at[-1]} and above"]
    codes = [
        np.where(np.isfinite(column), np.searchsorted(inner, column, side="right"), -1) for column in columns
    ]
    return tuple(names), edges, codes


def _categories(name: str, samples: Sequence[Sample], num_now: int) -> "tuple[tuple[str, ...], list[Codes]]":
    """Returns the most frequent values of a small category, then the others, and the place of each row's."""
    texts = {key: text for sample in samples for key, text in sample.small[name].items()}
    shares: dict[int, float] = {}
    for part in (samples[:num_now], samples[num_now:]):  # a value that is gone is as telling as a new one
        keys = np.concatenate([np.zeros(0, np.uint64), *(sample.keys[name] for sample in part)])
        found, counts = np.unique(keys[keys != 0], return_counts=True)
        for key, share in zip(found.tolist(), (counts / max(1, counts.sum())).tolist(), strict=True):
            shares[key] = max(shares.get(key, 0.0), share)
    most = sorted(shares, key=lambda key: (-shares[key], texts.get(key, "")))[:FEW]
    names = [texts.get(key, "")[:LONGEST] for key in most]
    place = {key: code for code, key in enumerate(most)}
    codes = []
    for sample in samples:
        distinct, where = np.unique(sample.keys[name], return_inverse=True)
        of_distinct = [-1 if key == 0 else place.get(key, len(most)) for key in distinct.tolist()]
        codes.append(np.asarray(of_distinct, dtype=np.int64)[where])
    return (*names, *([OTHERS] if len(shares) > len(most) else [])), codes


def _figures(
    day: date,
    history: History,
    columns: Sequence[str],
    limits: DayLimits,
    outside: Sequence[tuple[date, Limit]],
    *,
    label: str,
) -> Iterator[FigureSeries]:
    """Yields the figures that are outside their limits, the number of rows, and some of each column."""
    for of, limit in outside[:MOST_OUTSIDE]:
        words = f"{of}: {limit}" if of != day else str(limit)
        yield replace(_series(day, history, limits, limit.name), words=words, holds=False)
    not_0 = {name for figures in history.values() for name, figure in figures.items() if figure.value}
    of_columns = [("rows", "")]
    for column in columns:
        named = [f"missing {column}", f"mean {column}", f"size {column}", f"distinct {column}"]
        named = [f"{label} against {column}", *named] if label else named
        of_columns += [(name, column) for name in named if name in not_0][:MOST_OF_COLUMN]
    seen = {limit.name for _, limit in outside[:MOST_OUTSIDE]}
    for name, column in of_columns:
        if name not in seen:
            yield replace(_series(day, history, limits, name), column=column)


def _series(day: date, history: History, limits: DayLimits, name: str) -> FigureSeries:
    """Returns a figure of the last days that have it, with the limits of each."""
    known = figure_of_days(name, history, until=day, most=SHOWN_DAYS)
    of_days = {}
    if name in limits.chances:
        of_days = limits_of_days(name, history, list(known), chance=limits.chances[name])
    newest, kind = max(known), known[max(known)].kind
    words = str(of_days[newest]) if newest in of_days else in_a_sentence(known[newest])

    def shown(value: float) -> float:
        return exp(min(value, 50)) if kind == "factor" else value

    return FigureSeries(
        figure=name,
        column="",
        words=words if newest == day else f"{newest}: {words}",
        is_share=kind in ("share", "rate"),
        holds=newest != day or newest not in of_days or of_days[newest].holds,
        days=tuple(known),
        values=tuple(shown(figure.value) for figure in known.values()),
        lows=tuple(shown(of_days[other].low) if other in of_days else None for other in known),
        highs=tuple(shown(of_days[other].high) if other in of_days else None for other in known),
    )
