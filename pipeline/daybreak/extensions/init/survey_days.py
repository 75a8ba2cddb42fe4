"""Finds what the days of a history say: usual shares of nulls, ranges, distances, and days to hold out.

What it finds are proposals for limits. No proposal refuses the days that it was made from, and none is made
where any limit would refuse sound days: of a column that follows the calendar, tomorrow's values are new by
nature; of days with few rows, any two are far apart.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise
from math import ceil, sqrt
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daybreak.contract import formats
from daybreak.contract.formats import counted
from daybreak.contract.sections import ValidateParams
from daybreak.contract.table import Bool, Category, Float, Int, Off, Table
from daybreak.data import day_history, drift
from daybreak.data.daily_limits import DAYS_PER_YEAR, DRIFT_SHARE, Limit
from daybreak.data.features import is_ripe
from daybreak.statistics.forecast_limits import LEAST_BEFORE, LEAST_ERRORS, exceeded

A_YEAR = 360  # days of history from which on limits know all seasons
LEAST_LIMIT, MOST_LIMIT = 0.2, 0.95  # of drift; a column that needs more has none
LEAST_DISTANCES = 40  # from which on a tail is learned
NOISE = 2.57  # / sqrt(n): what days of n rows are apart by chance, once in 10,000 (Kolmogorov-Smirnov, 4 n)
LEAST_DAYS = 4  # by which a column is seen to rise
INCOMPLETE = 0.1  # of the median number of rows; fewer on the newest day look like a part of it
BACK = 8  # days, from the newest on, among which one is looked for to begin with
RISING = 0.9  # of the days, those that begin where the day before ended
FAR_DAYS, FAR_SPANS = 365, 3  # a day is far from the others beyond both: days, and spans of the others
MOST_FAR = 0.05  # of all days
HELD_OUT_ROWS, HELD_OUT_LABELS = 2000, 100  # of the rarest class; wanted, in a fifth of the days
LEAST_LABELS, LEAST_UNITS = 10, 30  # needed, in half of them; gate.min_samples is 30


@dataclass(frozen=True, kw_only=True)
class Unlimited:
    """The reason why a column has no limits, and the usual limits of its type that are off."""

    why: str
    off: tuple[Off, ...]


def near_days(days: Sequence[date], *, today: date) -> tuple[list[date], list[date]]:
    """Returns the days to look at, and those left out: far before the others, or not yet begun.

    Tools write 1900-01-01 or 9999-12-31 where a time is unknown. Where all days are to come, all are kept.

    >>> near_days([date(1900, 1, 1), date(2025, 3, 3), date(2025, 3, 4)], today=date(2025, 4, 1))[1]
    [datetime.date(1900, 1, 1)]
    """
    kept = [day for day in sorted(days) if day <= today] or sorted(days)
    for place in range(1, max(2, int(MOST_FAR * len(kept)) + 1)):
        before, rest = kept[:place], kept[place:]
        if rest and rest[0] - before[-1] > max(timedelta(FAR_DAYS), FAR_SPANS * (rest[-1] - rest[0])):
            kept = rest
            break
    return kept, sorted(set(days) - set(kept))


def without_rows(empty: Sequence[date], newest: date) -> tuple[str, ...]:
    """Returns a sentence on days that have no rows, where the newest with rows is another; () for no days."""
    if not empty:
        return ()
    begin = f"; begin with: daybreak night --day {newest}" if max(empty) > newest else ""
    return (f"{counted(len(empty), 'day')} without rows: {formats.days(empty)}{begin}",)


def unlike(days: Mapping[date, pa.Table], table: Table, *, by: date) -> tuple[str, ...]:
    """Warns if the first night would refuse its day by learned limits, and gives the remedy.

    That day is the newest up to `by`. An earlier day is proposed only where a night would accept it.
    """
    timed = {day: part.filter(part[table.time].is_valid()) for day, part in sorted(days.items()) if day <= by}
    here = [day for day, part in timed.items() if len(part)]
    if len(here) <= LEAST_BEFORE + LEAST_ERRORS:  # no limit is learned from as few
        return ()
    history = day_history.completed(
        {},
        here,
        table,
        by=here[-1],
        rules="",
        of_rows=dict.fromkeys(here, ""),
        rows=timed.__getitem__,
        bad_hours=lambda day: np.zeros(0),
    )
    *before, newest = here[-BACK:]
    if not (outside := _outside(history, newest, table)):
        return ()
    passing = next((day for day in reversed(before) if not _outside(history, day, table)), None)
    begin = f"if it is not complete, begin with: daybreak night --day {passing}; " if passing else ""
    accepted = f"--set 'validate.accepted_days=[{newest}]' --trigger REASON"
    return (
        f"the first night would stop, as {newest} is unlike the days before it: "
        f"{day_history.in_words(outside)}; {begin}if it is right, accept it: daybreak night --day "
        f"{newest} {accepted}",
    )


def _outside(history: Mapping[date, day_history.Known], day: date, table: Table) -> list[Limit]:
    """Returns the figures of a day that are outside the limits which the days before it give."""
    (judged,) = day_history.judged(
        {other: known for other, known in history.items() if other <= day},
        {},
        [day],
        night=day,
        label=table.label.column if table.label else "",
        false_alarms_per_year=ValidateParams().false_alarms_per_year,
        off=(),
    )
    return judged.outside


def incomplete(days: Mapping[date, pa.Table], time: str) -> tuple[str, ...]:
    """Returns that the newest day looks as if only a part of it were delivered, and what to do."""
    *before, newest = sorted(days)
    num_rows = {day: len(part) - part[time].null_count for day, part in days.items()}
    usual = median(num_rows[day] for day in before) if before else 0
    if num_rows[newest] >= INCOMPLETE * usual:
        return ()
    of_time = " with a time" if days[newest][time].null_count else ""
    return (
        f"{newest}, the newest day, has {counted(num_rows[newest], 'row')}{of_time}, and the days before "
        f"usually have {usual:,.0f}; if it is not complete, begin with: daybreak night --day "
        f"{before[-1]}",
    )


def unlimited(days: Mapping[date, pa.Table], table: Table) -> dict[str, Unlimited]:
    """Returns the columns that follow the calendar, and how.

    Their values of tomorrow are new, or one that a few days had: the year, the day of the month, a number of
    rows that goes on, a price that all rows of a day share.
    """
    found = {}
    for name, column in table.features.items():
        if isinstance(column, Int | Bool | Category) or (isinstance(column, Float) and not column.size):
            ends = {day: pc.min_max(part[name]).as_py() for day, part in days.items()}
            ends = {day: (end["min"], end["max"]) for day, end in ends.items() if end["min"] is not None}
            if why := _of_calendar(ends, num_rows=sum(map(len, days.values()))):
                found[name] = why
    return found


def _of_calendar(ends: Mapping[date, tuple[Any, Any]], *, num_rows: int) -> Unlimited | None:
    """Returns how values follow the calendar, by the least and the largest of each day."""
    if len(ends) < 2:
        return None
    first = {day: low for day, (low, high) in ends.items() if low == high}
    if len(first) == len(ends) and (field := _calendar_field(first)):
        return Unlimited(why=f"is the {field}", off=("drift", "limits"))
    if len(ends) >= LEAST_DAYS and not isinstance(next(iter(ends.values()))[0], str | bool):
        for word, pairs in (("rises", pairwise(ends.values())), ("falls", pairwise([*ends.values()][::-1]))):
            steps = [after[0] > before[0] and after[0] >= before[1] for before, after in pairs]
            if sum(steps) >= RISING * len(steps):
                return Unlimited(why=f"{word} from day to day", off=("drift", "limits"))
    if len(first) == len(ends) < num_rows / 2 and len(set(first.values())) > 1:
        return Unlimited(why="has one value a day", off=("drift",))
    return None


def _calendar_field(values: Mapping[date, Any]) -> str:
    """Returns which field of the date the values are, as numbers or as words; "" if none."""
    fields = {
        "year": ("%Y", "%y"),
        "month": ("%m", "%B", "%b", "%Y-%m", "%Y%m"),
        "day of the month": ("%d",),
        "weekday": ("%w", "%u", "%A", "%a"),
        "day of the year": ("%j",),
        "week": ("%V", "%U", "%W"),
    }
    for field, forms in fields.items():
        for form in forms:
            if all(_same(value, day.strftime(form)) for day, value in values.items()):
                return field
    if all(_same(value, str(day.weekday())) for day, value in values.items()):  # of pandas, from 0
        return "weekday"
    return "quarter" if all(_same(v, str((d.month + 2) // 3)) for d, v in values.items()) else ""


def _same(value: Any, text: str) -> bool:
    if isinstance(value, str):
        return value.lower().lstrip("0") == text.lower().lstrip("0")
    return text.isdecimal() and not isinstance(value, bool) and bool(value == int(text))


def nulls(days: Mapping[date, pa.Table], table: Table) -> dict[str, float]:
    """Returns the largest share of nulls of a day, of columns that may be null."""
    return {
        name: max(part[name].null_count / len(part) for part in days.values())
        for name, column in table.features.items()
        if column.nullable
    }


def ranges(days: Mapping[date, pa.Table], table: Table) -> dict[str, tuple[float, float]]:
    """Returns the least and the largest finite value of each number that has limits."""
    found = {}
    for name, column in table.features.items():
        is_number = isinstance(column, Int) or (isinstance(column, Float) and not column.size)
        if is_number and "limits" not in column.off:
            finite = [part[name].filter(pc.is_finite(part[name])) for part in days.values()]
            ends = [pc.min_max(values).as_py() for values in finite if len(values)]
            if ends:
                found[name] = (min(end["min"] for end in ends), max(end["max"] for end in ends))
    return found


def drift_limits(days: Mapping[date, pa.Table], table: Table) -> dict[str, float | None]:
    """Returns a limit of drift for each column that is measured; None where no limit would hold.

    The limit is above the largest distance of a day from the same weekdays before, above the distance of days
    with so few rows by chance, and so high that with all columns together it stops no more sound days than
    the share of `validate.false_alarms_per_year` that is for drift.
    """
    by_weekday: dict[int, list[date]] = defaultdict(list)
    seen: dict[str, list[float]] = defaultdict(list)
    for day, part in days.items():
        before = [days[other].column for other in by_weekday[day.weekday()][-drift.SAME_WEEKDAYS :]]
        for distance in drift.distances(part.column, before, table, limits={}, limit=1):
            seen[distance.column].append(distance.value)
        by_weekday[day.weekday()].append(day)
    chance_a_day = DRIFT_SHARE * ValidateParams().false_alarms_per_year / DAYS_PER_YEAR / max(1, len(seen))
    limits = {name: _limit(_rarely_exceeded(values, chance_a_day)) for name, values in seen.items()}
    for name, num in _least_values(days, table).items():
        chance = _limit(NOISE / sqrt(num) if num else 1)
        if name in limits or chance != LEAST_LIMIT:
            known = limits.get(name, LEAST_LIMIT)
            limits[name] = None if known is None or chance is None else max(known, chance)
    return limits


def _rarely_exceeded(distances: Sequence[float], chance: float) -> float:
    """Returns a limit above all distances; of many, the distance that a day exceeds with that chance."""
    above = 1.25 * max(distances) + 0.05
    return max(above, exceeded(np.array(distances), chance)) if len(distances) >= LEAST_DISTANCES else above


def _limit(value: float) -> float | None:
    """Returns a limit of at least so much, in steps of 0.05; None beyond the largest that says anything."""
    limit = max(LEAST_LIMIT, ceil(value * 20 - 1e-9) / 20)
    return limit if limit <= MOST_LIMIT else None


def _least_values(days: Mapping[date, pa.Table], table: Table) -> dict[str, int]:
    """Returns how many values the day with the fewest has, of each column whose values are measured."""
    label = table.label
    late = label.column if label and label.ripe_after else ""
    return {
        name: min(len(part) - part[name].null_count for part in days.values())
        for name, column in table.columns.items()
        if column.kind != "id" and name != late and "drift" not in column.off
    }


def test_days(days: Mapping[date, pa.Table], table: Table, *, of_classes: bool) -> int:
    """Returns how many of the newest days to hold out: enough rows, units, and labels of the rarest class.

    At most a fifth of the days are taken for the usual wish, and at most half for the need of a verdict.
    """
    assert table.label is not None
    name, last = table.label.column, max(days)
    parts = [part for day, part in sorted(days.items()) if is_ripe(table, day, by=last)]
    labels = [part[name].drop_null() for part in parts]
    rarest = _rarest(labels) if of_classes else None
    units = [set(pc.unique(part[table.unit]).to_pylist()) for part in parts] if table.unit else []
    least_units = min(LEAST_UNITS, len(set().union(*units)))
    wanted = needed = num_rows = num_rare = 0
    seen: set[Any] = set()
    for number, known in enumerate(reversed(labels), 1):
        num_rows += len(known)
        num_rare += _num(known, rarest) if of_classes else len(known)
        seen |= units[-number] if units else set()
        if len(seen) < least_units or num_rows < LEAST_UNITS or num_rare < LEAST_LABELS:
            continue
        needed = needed or number
        if num_rows >= HELD_OUT_ROWS and num_rare >= HELD_OUT_LABELS:
            wanted = number
            break
    fifth, half = (max(1, len(parts) // share) for share in (5, 2))
    return max(min(wanted or fifth, fifth), min(needed or half, half))


def _rarest(labels: Sequence[pa.ChunkedArray]) -> Any:
    """Returns the class that the fewest labels are; None where there is no label."""
    counts: Counter[Any] = Counter()
    for known in labels:
        counts.update({each["values"]: each["counts"] for each in known.value_counts().to_pylist()})
    return min(counts, key=lambda value: counts[value], default=None)


def _num(labels: pa.ChunkedArray, value: Any) -> int:
    return int(pc.sum(pc.equal(labels, value)).as_py() or 0)
