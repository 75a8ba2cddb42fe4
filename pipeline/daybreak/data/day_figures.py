"""Computes the figures of a day's clean rows that limits are learned for, from the schema alone.

daybreak/data/figure.py lists them. Those of relations and of the label compare a day with `WINDOW` earlier
partitions. Correlations are of ranks; the label's with a small category is the correlation ratio of the
ranks. Copies are rows equal but for ids and times.

What is usual is the median of the last `USUAL_DAYS` days that had the value. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import date, timedelta
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from daybreak.contract.table import Category, Id, Table
from daybreak.data import label_neighbours
from daybreak.data.day_sample import Sample, is_label, mixed, pair, signature, thinned
from daybreak.data.figure import Amount, Figure, Kind, Sort
from daybreak.data.label_forecast import LEARNED_DAYS, label_forecast
from daybreak.data.label_neighbours import LabelModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Keys = NDArray[np.uint64]  # hashes of values, 0 for a null
    Numbers = NDArray[np.float64]
    Rows = NDArray[np.bool_]

WINDOW = 56  # earlier partitions that are known
USUAL_DAYS = 5
MOST_KEYS, MOST_NUMBERS = 6, 6  # columns of a wide table that are looked at together
MOST_SPIKES = 50  # numbers whose single values are looked at: 0.15 s each for 57 days of 8,000 rows
LEAST_ROWS = 10  # that a mean is of
COPIED_ROWS, ALIKE_ROWS = 4, 3  # that follow one another: few values recur in that order by chance
LEAST_HOURS = 5  # that a variance between hours is of
HOUR, WEEKDAY = "(hour)", "(weekday)"  # features that each label is forecast from
CLOCK_H = 1 / 60  # to which the first and the last hour are known


def figures_of(
    samples: Sequence[Sample], table: Table, wanted: Sequence[date]
) -> dict[date, dict[str, Figure]]:
    """Returns the figures of the wanted days by name; `samples` are of consecutive partitions, in order.

    A day and the days before it are compared by samples of the same share, the smallest of any of them. A
    later day, however large, changes nothing.
    """
    places: dict[float, list[int]] = {}
    for place, sample in enumerate(samples):
        if sample.day in wanted:
            share = min(one.share for one in samples[max(0, place - WINDOW) : place + 1])
            places.setdefault(share, []).append(place)
    figures = {}
    for share, of_share in places.items():
        known = samples[: of_share[-1] + 1]
        together = _Together(tuple(thinned(sample, share, table) for sample in known), table)
        for place in of_share:
            own = together.of_day(place)
            figures[samples[place].day] = {one.name: one for one in own if np.isfinite(one.value)}
    return figures


def quarantined_of(sample: Sample, bad_hours: "Numbers", *, num: float) -> Figure:
    """Returns the share of the day's rows that are in quarantine.

    Args:
        sample: of its clean rows.
        bad_hours: the hour of each row in quarantine.
        num: independent units of the clean rows, of which there are fewer where bad rows share hours.
    """
    bad = bad_hours[:: round(1 / sample.share)]
    is_bad = np.arange(len(sample) + len(bad)) >= len(sample)
    by_hour = _Day(len(is_bad), None, np.concatenate([sample.hours, bad])).share_by_hour(is_bad)
    share = len(bad_hours) / max(1, len(bad_hours) + sample.num_rows)
    return Figure(Sort.QUARANTINED, (), "share", share, num=min(num, by_hour.num or num))


class _Together:
    """The rows of several consecutive days, so that each day can be compared with the days before."""

    def __init__(self, samples: tuple[Sample, ...], table: Table) -> None:
        self._samples, self._table = samples, table
        lengths = [len(sample) for sample in samples]
        self._ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._at = np.repeat(np.arange(len(samples)), lengths)
        names = [name for name in table.columns if any(name in sample.keys for sample in samples)]
        self._keys = {name: self._column("keys", name, np.uint64) for name in names}
        self._label = label = table.label.column if table.label else ""
        numbers = [name for name in table.columns if any(name in sample.numbers for sample in samples)]
        self._numbers = {name: self._column("numbers", name, np.float64) for name in numbers}
        self._paired_numbers = sorted(numbers, key=lambda name: name != label)[:MOST_NUMBERS]
        groups = [name for name in names if isinstance(table.columns[name], Id | Category)]
        self._groups = sorted(groups, key=lambda name: name != table.unit)[:MOST_KEYS]
        self._paired = sorted(names, key=lambda name: name not in self._groups)[:MOST_KEYS]
        known = {name: self._known(values) for name, values in self._keys.items()}
        self._new: dict[tuple[Sort, tuple[str, ...]], tuple[Rows, Rows]] = {
            (Sort.NEW, (name,)): (self._keys[name] != 0, ~known[name]) for name in names
        }
        for one, other in combinations(self._paired, 2):
            both = known[one] & known[other]
            pairs = pair(self._keys[one], self._keys[other])
            self._new[Sort.NEW_PAIR, (one, other)] = (both, ~self._known(pairs))
        self._beside = {
            (number, group): self._beside_usual(group, number)
            for group in self._groups
            for number in self._paired_numbers
            if not _is_yes_or_no(self._numbers[number])
        }
        self._hours = np.concatenate([sample.hours for sample in samples])
        parts = {name: np.split(values, self._ends[1:-1]) for name, values in self._numbers.items()}
        self._flags = {name: np.array([_flag(part) for part in own]) for name, own in parts.items()}
        spiky = [name for name, values in self._numbers.items() if not _is_yes_or_no(values)]
        self._spikes = {name: self._above_usual(self._numbers[name]) for name in spiky[:MOST_SPIKES]}
        within = (np.arange(len(self._at)) - self._ends[self._at] + 1).astype(np.uint64)
        # Rows of one time have no order, whatever that of the delivery.
        self._by_time = np.lexsort((mixed(within), self._hours, self._at))
        followed = [name for name in self._paired_numbers if name in spiky]
        self._copied = {name: self._as_earlier(self._numbers[name]) for name in followed}
        if label in numbers:
            self._label_rows = self._rows_of_labels()
        self._label_models: dict[tuple[int, int], LabelModel | None] = {}

    def _column(self, kind: Literal["keys", "numbers"], name: str, dtype: Any) -> Any:
        """A column of all days; of a day without it nulls."""
        missing = 0 if kind == "keys" else np.nan
        parts = [getattr(s, kind).get(name, np.full(len(s), missing, dtype)) for s in self._samples]
        return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)

    def _grouped(self, keys: "Keys") -> tuple[Any, Any, Any, Any, Any]:
        """Returns the rows by key and day, where each group begins, its key and day, and each row's."""
        order = np.lexsort((self._at, keys))
        key, at = keys[order], self._at[order]
        begins = np.ones(len(key), dtype=np.bool_)
        begins[1:] = (key[1:] != key[:-1]) | (at[1:] != at[:-1])
        starts = np.flatnonzero(begins)
        group = np.empty(len(key), dtype=np.int64)
        group[order] = np.cumsum(begins) - 1
        return order, starts, key[starts], at[starts], group

    def _known(self, keys: "Keys") -> "Rows":
        """Returns for each row whether its value occurred on one of the days before, and is not null."""
        _, _, key, at, group = self._grouped(keys)
        known = np.zeros(len(key), dtype=np.bool_)
        known[1:] = (key[1:] == key[:-1]) & (at[1:] - at[:-1] <= WINDOW)
        return np.asarray(known[group] & (keys != 0), dtype=np.bool_)

    def _beside_usual(self, group: str, number: str) -> "Numbers":
        """Returns the logarithm of each number beside what is usual for its group, NaN where nothing is."""
        keys, values = self._keys[group], np.abs(self._numbers[number])
        logs = np.log(np.where(values > 0, values, np.nan))
        order, starts, key, at, of_row = self._grouped(keys)
        if not len(starts):
            return logs
        sums = np.add.reduceat(np.where(np.isfinite(logs), logs, 0)[order], starts)
        counts = np.add.reduceat(np.isfinite(logs)[order].astype(np.float64), starts)
        means = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
        before = np.full((len(means), USUAL_DAYS), np.nan)
        for back in range(1, USUAL_DAYS + 1):
            same = (key[back:] == key[:-back]) & (at[back:] - at[:-back] <= WINDOW) & (key[back:] != 0)
            before[back:, back - 1] = np.where(same, means[:-back], np.nan)
        usual = np.full(len(means), np.nan)
        there = np.isfinite(before).any(axis=1)
        usual[there] = np.nanmedian(before[there], axis=1)
        return np.asarray(logs - usual[of_row], dtype=np.float64)

    def _above_usual(self, values: "Numbers") -> "Numbers":
        """Returns by how much the value of each row is more frequent on its day than on the days before."""
        _, _, key, at, group = self._grouped(_hashes(values))
        if not len(key):
            return np.zeros(0)
        shares = np.bincount(group) / np.bincount(self._at, minlength=len(self._samples))[at]
        codes = np.cumsum(np.concatenate([[0], (key[1:] != key[:-1])]))
        order = codes * (len(self._samples) + WINDOW) + at + WINDOW  # by value, then by day
        first = np.searchsorted(order, np.maximum(order - WINDOW, codes * (len(self._samples) + WINDOW)))
        totals = np.concatenate([[0.0], np.cumsum(shares)])
        usual = (totals[np.arange(len(key))] - totals[first]) / np.clip(at, 1, WINDOW)
        return np.asarray(np.where(key != 0, shares - usual, 0.0)[group], dtype=np.float64)

    def _as_earlier(self, values: "Numbers") -> list[Amount]:
        """Returns for each day the largest share of its values that follow one another as on an earlier day.

        The values are in the order of their times. Runs of `COPIED_ROWS` values that are all alike tell
        nothing, and are left out.
        """
        runs = _runs(_hashes(values)[self._by_time], self._at, COPIED_ROWS)
        first = runs[:, 0]
        tells = (runs != first[:, None]).any(axis=1) & (runs != 0).all(axis=1)
        keys = np.where(tells, pair(pair(first, runs[:, 1]), pair(runs[:, 2], runs[:, 3])), np.uint64(0))
        order, starts, key, at, _ = self._grouped(keys)
        counts = np.diff(np.append(starts, len(order)))
        alike = np.zeros((len(self._samples), WINDOW + 1))  # of a day with the one so many days before
        for back in range(1, WINDOW + 1):
            gaps = at[back:] - at[:-back]
            same = (key[back:] == key[:-back]) & (key[back:] != 0) & (gaps <= WINDOW)
            if not same.any():
                break
            np.add.at(alike, (at[back:][same], gaps[same]), counts[back:][same])
        totals = np.bincount(self._at, keys != 0, minlength=len(self._samples))
        return [
            Amount("share", float(most / total) if total >= LEAST_ROWS else np.nan, num=float(total))
            for most, total in zip(alike.max(axis=1), totals, strict=True)
        ]

    def _was_yes_or_no(self, name: str, place: int) -> bool:
        """Returns whether most of the days before have 0 and 1 alone; of the first day, whether it has."""
        flags = self._flags[name][max(0, place - WINDOW) : place]
        known = flags[np.isfinite(flags)]
        return bool(known.mean() > 0.5) if len(known) else self._flags[name][place] == 1

    def _forecast(self, place: int) -> "Numbers | None":
        """Returns the forecast of the label of a day's rows by the days before it."""
        before = slice(self._ends[max(0, place - LEARNED_DAYS)], self._ends[place])
        ids = {name for name, column in self._table.columns.items() if isinstance(column, Id)}
        keys = {name: values for name, values in self._keys.items() if name not in {self._label, *ids}}
        numbers = {name: values for name, values in self._numbers.items() if name != self._label}
        numbers = {HOUR: self._hours, **numbers}
        day = slice(self._ends[place], self._ends[place + 1])
        return label_forecast(self._numbers[self._label], keys, numbers, before=before, day=day)

    def _rows_of_labels(self) -> label_neighbours.Rows:
        """Returns the rows with their labels, the latter also beside one another, by day and time."""
        columns = self._table.columns
        order, left_out = self._by_time, {self._label}
        left_out |= {name for name, column in columns.items() if isinstance(column, Id)}
        weekdays = np.array([sample.day.weekday() for sample in self._samples], dtype=np.float64)[self._at]
        keys = {name: values[order] for name, values in self._keys.items() if name not in left_out}
        groups = [name for name in keys if isinstance(columns[name], Category)]
        numbers = {name: values[order] for name, values in self._numbers.items() if name not in left_out}
        hours = self._hours[order]
        known = np.where(np.isfinite(hours), np.floor(hours) + 1, 0).clip(0).astype(np.uint64)
        return label_neighbours.rows_of(
            self._numbers[self._label][order],
            {HOUR: hours, WEEKDAY: weekdays, **numbers},
            {HOUR: known, WEEKDAY: (weekdays + 1).astype(np.uint64), **keys},
            groups,
            self._at,
        )

    def _label_model(self, place: int) -> LabelModel | None:
        """Returns the model of the labels of a day, learned from those before its week; None of too few.

        All days of a week have one, as it takes 0.2 to 3 s of one core.
        """
        day = self._samples[place].day
        monday = day - timedelta(days=day.weekday())
        end = sum(sample.day < monday for sample in self._samples)
        begin = max(0, end - label_neighbours.LEARNED_DAYS)
        if (begin, end) not in self._label_models:
            before = slice(self._ends[begin], self._ends[end])
            rows = self._label_rows.of(before)
            self._label_models[begin, end] = label_neighbours.learned(rows, self._at[before])
        return self._label_models[begin, end]

    def of_day(self, place: int) -> Iterator[Figure]:
        """Yields the figures of a day."""
        sample, rows = self._samples[place], slice(self._ends[place], self._ends[place + 1])
        units = self._keys[self._table.unit][rows] if self._table.unit in self._keys else None
        day = _Day(len(sample), units, sample.hours)
        num = day.num(np.ones(len(sample), np.bool_))
        yield Figure(Sort.ROWS, (), "count", float(sample.num_rows), num=num)
        if not len(sample):
            return
        # A label that is not known yet is left out of its day's columns, rather than counted as nulls.
        keys = {name: values[rows] for name, values in self._keys.items() if name in sample.keys}
        numbers = {name: values[rows] for name, values in self._numbers.items() if name in sample.numbers}
        yield from _of_keys(day, keys, sample, self._table)
        yield from self._of_relations(day, keys, rows)
        flags = {name for name in numbers if self._was_yes_or_no(name, place)}
        yield from _of_numbers(day, numbers, self._table, flags)
        numbers |= {
            name: np.where(np.isin(numbers[name], (0, 1)), numbers[name], np.nan) for name in sorted(flags)
        }
        yield from _of_times(sample.hours)
        yield from _of_slices(day, keys, sample)
        for name, above in self._spikes.items():
            if name in numbers:
                most = max(0.0, round(float(above[rows].max()), 9))
                yield Figure(Sort.SPIKE, (name,), "share", most, num=num)
        yield from self._of_sequences(place, numbers)
        if self._label in numbers:
            yield from self._of_single_labels(day, place)
            forecast = self._forecast(place)
            yield from _of_label(day, self._label, forecast, keys=keys, numbers=numbers, small=sample.small)
        paired = [name for name in self._paired_numbers if name in numbers]
        for one, other in combinations(paired, 2):
            if one == self._label:
                continue
            yield Figure(Sort.CORRELATION, (one, other), *_correlation(numbers[one], numbers[other]))
        hashes = signature(sample, self._table)
        first = np.zeros(len(sample), dtype=np.bool_)
        first[np.unique(hashes, return_index=True)[1]] = True
        yield Figure(Sort.COPIES, (), *day.share(~first))

    def _of_sequences(self, place: int, numbers: "Mapping[str, Numbers]") -> Iterator[Figure]:
        """Yields how numbers of a day follow one another in time."""
        span = slice(self._ends[place], self._ends[place + 1])
        order = self._by_time[span] - span.start
        for name, copied in self._copied.items():
            if name in numbers:
                yield Figure(Sort.REPEATED, (name,), *_repeated(numbers[name][order]))
                if place:
                    yield Figure(Sort.COPIED, (name,), *copied[place])

    def _of_single_labels(self, day: "_Day", place: int) -> Iterator[Figure]:
        """Yields how many labels are far from what is expected of each."""
        span = slice(self._ends[place], self._ends[place + 1])
        rows = self._label_rows.of(span)
        if model := self._label_model(place):
            errors = np.empty(len(rows.label))
            errors[self._by_time[span] - span.start] = model.errors(rows)
            far = np.abs(errors) > model.limit
            yield Figure(Sort.LABEL_UNLIKE, (self._label,), *day.share(far, among=np.isfinite(errors)))

    def _of_relations(self, day: "_Day", keys: "Mapping[str, Keys]", rows: slice) -> Iterator[Figure]:
        if rows.start:  # the first day knows none before it
            for (sort, of), (looked_at, new) in self._new.items():
                yield Figure(sort, of, *day.share(new[rows], among=looked_at[rows]))
            for both, logs in self._beside.items():
                there = np.isfinite(logs[rows])
                yield Figure(Sort.USUAL, both, *day.mean("factor", np.clip(logs[rows], -1, 1), among=there))
                yield Figure(Sort.FAR, both, *day.share(np.abs(logs[rows]) > np.log(2), among=there))
        paired = [name for name in self._paired if name in keys]
        for group, several in permutations(paired, 2):
            if group in self._groups:
                yield Figure(Sort.SEVERAL, (several, group), *_several(keys[group], keys[several]))


class _Day:
    """Means and shares of a day's rows, and how many independent units they are of."""

    def __init__(self, num_rows: int, units: "Keys | None", hours: "Numbers") -> None:
        self._num_rows, self._units = num_rows, None
        self._hours = np.unique(np.floor(hours), return_inverse=True)[1].astype(np.int64)
        if units is not None:
            codes = np.unique(units, return_inverse=True)[1].astype(np.int64)
            alone = units == 0
            codes[alone] = codes.max(initial=0) + 1 + np.arange(int(alone.sum()))
            self._units = codes

    def num(self, among: "Rows") -> float:
        """Returns the effective number of units in `among` (Kish 1965), or of rows without units."""
        if self._units is None:
            return float(among.sum())
        sizes = np.bincount(self._units[among])
        return float(sizes.sum()) ** 2 / max(1.0, float((sizes.astype(np.float64) ** 2).sum()))

    def share(self, rows: "Rows", *, among: "Rows | None" = None) -> Amount:
        """Returns the share of these rows."""
        there = np.ones(self._num_rows, dtype=np.bool_) if among is None else among
        if there.sum() < LEAST_ROWS:
            return Amount("share", float("nan"))
        return Amount("share", float(rows[there].mean()), num=self.num(there))

    def share_by_hour(self, rows: "Rows", *, among: "Rows | None" = None) -> Amount:
        """Returns the share of these rows, of as many units as its variance between hours shows.

        Rows of an hour share its weather, or the sensor that failed: their number says little.
        """
        amount = self.share(rows, among=among)
        there = np.ones(self._num_rows, dtype=np.bool_) if among is None else among
        hours, share = self._hours[there], amount.value
        num_hours = len(np.unique(hours))
        if not 0 < share < 1 or num_hours < LEAST_HOURS:
            return amount
        sums = np.bincount(hours, rows[there] - share)
        variance = float((sums**2).sum()) / len(hours) ** 2 * num_hours / (num_hours - 1)
        return amount._replace(num=min(amount.num, max(1.0, share * (1 - share) / variance)))

    def mean(self, kind: Kind, values: "Numbers", *, among: "Rows") -> Amount:
        """Returns the mean of these values."""
        if among.sum() < LEAST_ROWS:
            return Amount(kind, float("nan"))
        num, spread = self.num(among), float(values[among].std())
        return Amount(kind, float(values[among].mean()), num=num, error=spread / max(1.0, num) ** 0.5)


def _of_keys(day: _Day, keys: "Mapping[str, Keys]", sample: Sample, table: Table) -> Iterator[Figure]:
    for name, values in keys.items():
        there = values[values != 0]
        distinct, counts = np.unique(there, return_counts=True)
        num = len(distinct)
        yield Figure(Sort.DISTINCT, (name,), "count", num / sample.share, num=float(num))
        if num:
            most = values == distinct[counts.argmax()]
            yield Figure(Sort.TOP, (name,), *day.share(most, among=values != 0))
        if _may_miss(table, name):
            yield Figure(Sort.MISSING, (name,), *day.share_by_hour(values == 0))


def _of_numbers(
    day: _Day, numbers: "Mapping[str, Numbers]", table: Table, flags: Set[str]
) -> Iterator[Figure]:
    """Yields the figures of single numbers, of which `flags` have been 0 or 1."""
    for name, values in numbers.items():
        there = np.isfinite(values)
        if _may_miss(table, name):
            yield Figure(Sort.MISSING, (name,), *day.share_by_hour(~there))
        if name in flags:
            is_either = np.isin(values, (0, 1))
            yield Figure(Sort.NEITHER, (name,), *day.share(there & ~is_either, among=there))
            there = is_either
        if not there.any():
            continue
        if name in flags or _is_yes_or_no(values):
            mean = Figure(Sort.MEAN, (name,), *day.share(values == 1, among=there))
            yield mean._replace(kind="rate") if is_label(table, name) else mean
            continue
        top, counts = np.unique(values[there], return_counts=True)
        yield Figure(Sort.TOP, (name,), *day.share(values == top[counts.argmax()], among=there))
        yield Figure(Sort.NEGATIVE, (name,), *day.share_by_hour(values < 0, among=there))
        yield Figure(Sort.ZERO, (name,), *day.share_by_hour(values == 0, among=there))
        logs = np.log(np.abs(np.where(there & (values != 0), values, 1)))
        yield Figure(Sort.SIZE, (name,), *day.mean("factor", logs, among=there & (values != 0)))


def _may_miss(table: Table, name: str) -> bool:
    """Returns whether rows without a value pass the rules: a label is null until it is known."""
    return table.columns[name].nullable or is_label(table, name)


def _of_times(hours: "Numbers") -> Iterator[Figure]:
    hours = hours[np.isfinite(hours)]
    ordered = np.unique(hours)
    if len(ordered) < LEAST_ROWS:
        return
    error = (ordered[-1] - ordered[0]) / len(ordered) + CLOCK_H  # the mean gap is how far an end may move
    yield Figure(Sort.FIRST_HOUR, (), "hours", float(ordered[0]), error=error)
    yield Figure(Sort.LAST_HOUR, (), "hours", float(ordered[-1]), error=error)
    yield Figure(Sort.LONGEST_GAP, (), "hours", float(np.diff(ordered).max()), error=error)
    yield Figure(
        Sort.MEAN_HOUR, (), "hours", float(hours.mean()), error=float(hours.std()) / len(ordered) ** 0.5
    )


def _of_slices(day: _Day, keys: "Mapping[str, Keys]", sample: Sample) -> Iterator[Figure]:
    """Yields the share of each value of a small category."""
    for name, value, text in _slices(keys, sample.small):
        yield Figure(Sort.SLICE, (name, text), *day.share(keys[name] == value))


def _slices(
    keys: "Mapping[str, Keys]", small: Mapping[str, Mapping[int, str]]
) -> Iterator[tuple[str, np.uint64, str]]:
    """Yields each value of the small categories: the column, the hash and the text of the value."""
    for name, texts in small.items():
        if name in keys:
            for value in np.unique(keys[name][keys[name] != 0]):
                yield name, value, texts.get(int(value), "")


def _of_label(
    day: _Day,
    label: str,
    forecast: "Numbers | None",
    *,
    keys: "Mapping[str, Keys]",
    numbers: "Mapping[str, Numbers]",
    small: Mapping[str, Mapping[int, str]],
) -> Iterator[Figure]:
    """Yields how the label follows from the features: from all of them together, by slice, from each."""
    values = numbers[label]
    known = np.isfinite(values)
    if forecast is not None:
        is_rate = _is_yes_or_no(values)
        beside, where = Sort.LABEL_BESIDE, Sort.LABEL_WHERE
        if is_rate:
            beside, where = Sort.ODDS_BESIDE, Sort.ODDS_WHERE
        yield Figure(beside, (label,), *_beside(day, values, forecast, known, is_rate=is_rate))
        yield Figure(Sort.LABEL_FORECAST, (label,), *_correlation(values, forecast))
        yield Figure(Sort.LABEL_SLOPE, (label,), *_slope(day, values, forecast))
        for name, value, text in _slices(keys, small):
            here = keys[name] == value
            inside, outside = (
                _beside(day, values, forecast, known & part, is_rate=is_rate) for part in (here, ~here)
            )
            error = float(np.hypot(inside.error, outside.error))
            above = inside._replace(value=inside.value - outside.value, error=error)
            yield Figure(where, (label, name, text), *above)
    for name, other in numbers.items():
        if name != label:
            yield Figure(Sort.LABEL_CORRELATION, (label, name), *_correlation(values, other))
    for name in small:
        if name in keys and name != label:
            yield Figure(Sort.LABEL_CORRELATION, (label, name), *_correlation_ratio(values, keys[name]))


def _beside(day: "_Day", label: "Numbers", forecast: "Numbers", among: "Rows", *, is_rate: bool) -> Amount:
    """Returns how far the mean label of some rows is from its forecast; of a rate in log odds."""
    if among.sum() < LEAST_ROWS:
        return Amount("mean", float("nan"))
    if not is_rate:
        return day.mean("mean", label - forecast, among=among)
    num, least = day.num(among), 0.5 / (float(among.sum()) + 1)
    expected = min(1 - least, max(least, float(forecast[among].mean())))
    rate = (float(label[among].sum()) + 0.5) / (float(among.sum()) + 1)
    odds = np.log(rate / (1 - rate)) - np.log(expected / (1 - expected))
    return Amount("factor", float(odds), num=num, error=float(1 / (num * expected * (1 - expected)) ** 0.5))


def _slope(day: "_Day", label: "Numbers", forecast: "Numbers") -> Amount:
    """Returns the slope of the line through the labels by their forecasts."""
    known = np.isfinite(label)
    if known.sum() < LEAST_ROWS or not (spread := float(forecast[known].std())):
        return Amount("mean", float("nan"))
    beside = forecast[known] - forecast[known].mean()
    slope = float((beside * label[known]).mean()) / spread**2
    rest = float((label[known] - slope * beside).std())
    num = day.num(known)
    return Amount("mean", slope, num=num, error=rest / spread / num**0.5)


def _repeated(values: "Numbers") -> Amount:
    """Returns the share of values, in the order of their times, that are the third alike in a row."""
    runs = _runs(_hashes(values), np.zeros(len(values)), ALIKE_ROWS)
    known = (runs != 0).all(axis=1)
    if known.sum() < LEAST_ROWS:
        return Amount("share", float("nan"))
    alike = (runs == runs[:, :1]).all(axis=1)
    return Amount("share", float(alike[known].mean()), num=float(known.sum()))


def _runs(keys: "Keys", at: Any, num: int) -> "Keys":
    """Returns each key and those that follow it on its day, shape [rows, `num`], with 0 after the last."""
    runs = np.zeros((len(keys), num), dtype=np.uint64)
    for after in range(min(num, len(keys))):
        same = at[after:] == at[: len(at) - after]
        runs[: len(keys) - after, after] = np.where(same, keys[after:], np.uint64(0))
    return runs


def _hashes(values: "Numbers") -> "Keys":
    """Returns a key for each number, the same for both zeros, and 0 for what is no finite number."""
    bits = (values + 0.0).view(np.uint64) | np.uint64(1)
    return np.where(np.isfinite(values), bits, np.uint64(0))


def _is_yes_or_no(values: "Numbers") -> bool:
    return bool(np.isin(values[np.isfinite(values)], (0, 1)).all())


def _flag(values: "Numbers") -> float:
    """Returns 1 where all values of a day are 0 or 1, 0 where others are, NaN where none is known."""
    return float(_is_yes_or_no(values)) if np.isfinite(values).any() else np.nan


def _several(of: "Keys", values: "Keys") -> Amount:
    """Returns the share of the values of one column that come with several of another."""
    both = (of != 0) & (values != 0)
    pairs = np.unique(pair(of[both], values[both]), return_index=True)[1]
    groups, counts = np.unique(of[both][pairs], return_counts=True)
    if not len(groups):
        return Amount("share", float("nan"))
    return Amount("share", float((counts > 1).mean()), num=float(len(groups)))


def _correlation(one: "Numbers", other: "Numbers") -> Amount:
    """Returns Spearman's rank correlation; its error is that of Fisher's transform."""
    from scipy.stats import rankdata

    both = np.isfinite(one) & np.isfinite(other)
    if both.sum() < LEAST_ROWS:
        return Amount("correlation", float("nan"))
    left, right = rankdata(one[both]), rankdata(other[both])
    if not left.std() or not right.std():
        return Amount("correlation", float("nan"))
    num = float(both.sum())
    return Amount("correlation", float(np.corrcoef(left, right)[0, 1]), num=num, error=1 / (num - 3) ** 0.5)


def _correlation_ratio(values: "Numbers", groups: "Keys") -> Amount:
    """Returns the square root of the share of the ranks' variance that groups explain (adjusted)."""
    from scipy.stats import rankdata

    both = np.isfinite(values) & (groups != 0)
    codes = np.unique(groups[both], return_inverse=True)[1]
    num, num_groups = int(both.sum()), int(codes.max(initial=-1)) + 1
    if num < LEAST_ROWS or num <= num_groups + 3 or num_groups < 2:
        return Amount("correlation", float("nan"))
    ranks = rankdata(values[both])
    if not ranks.std():
        return Amount("correlation", float("nan"))
    means = np.bincount(codes, ranks) / np.bincount(codes)
    within = float(((ranks - means[codes]) ** 2).sum()) / (num - num_groups)
    explained = 1 - within / float(ranks.var(ddof=1))
    value = float(max(0.0, explained) ** 0.5)
    return Amount("correlation", value, num=float(num), error=1 / (num - 3) ** 0.5)
