"""Computes the figures of a day's clean rows that limits are learned for, from the schema alone.

Of each kind of column, with `WINDOW` earlier partitions as what is known:

    rows, distinct X, missing X       numbers of rows and of different values, the share of nulls
    new X, new X with Y               rows with a new value; rows with two known values that are new together:
                                      an item's description, a customer's country and items
    X by Y, far X by Y                a number relative to the usual number for the value of Y, such as an
                                      item's price: the mean logarithm of the ratio, and the share off by a
                                      factor of two
    several X of Y                    values of Y with several values of X: customers of one invoice
    top X, size X, negative X, zero X a column by itself
    X = V, label where X = V          share of a small category's value, and the label's mean there
    X against Y                       rank correlation of two numbers, the label among them
    first hour, last hour, mean hour, longest gap
    copies, as an earlier day         rows equal but for ids and times, within the day; and the Jaccard
                                      similarity with the most similar earlier day, by MinHash (Broder 1997)

What is usual is the median of the last `USUAL_DAYS` days that had the value. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from daybreak.contract.table import Category, Id, Table
from daybreak.data.day_sample import Sample, is_label, pair, signature, thinned

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Keys = NDArray[np.uint64]  # hashes of values, 0 for a null
    Numbers = NDArray[np.float64]
    Rows = NDArray[np.bool_]

Kind = Literal["count", "share", "mean", "factor", "hours", "correlation"]

WINDOW = 56  # earlier partitions that are known
USUAL_DAYS = 5
MOST_KEYS, MOST_NUMBERS = 6, 6  # columns of a wide table that are looked at together
LEAST_ROWS = 10  # that a mean is of
CLOCK_H = 1 / 60  # to which the first and the last hour are known


class Figure(NamedTuple):
    """A figure of a day, and the error that its rows alone would give it.

    `num` is the number of independent units that a share is of; `error` the standard error of what is no
    share. A `factor` is the mean of logarithms.
    """

    kind: Kind
    value: float
    num: float = 0.0
    error: float = 0.0


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
            figures[samples[place].day] = {name: one for name, one in own if np.isfinite(one.value)}
    return figures


class _Together:
    """The rows of several consecutive days, so that each day can be compared with the days before."""

    def __init__(self, samples: tuple[Sample, ...], table: Table) -> None:
        self._samples, self._table = samples, table
        lengths = [len(sample) for sample in samples]
        self._ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._at = np.repeat(np.arange(len(samples)), lengths)
        names = [name for name in table.columns if any(name in sample.keys for sample in samples)]
        self._keys = {name: self._column("keys", name, np.uint64) for name in names}
        label = table.label.column if table.label else ""
        numbers = [name for name in table.columns if any(name in sample.numbers for sample in samples)]
        self._numbers = {name: self._column("numbers", name, np.float64) for name in numbers}
        self._paired_numbers = sorted(numbers, key=lambda name: name != label)[:MOST_NUMBERS]
        groups = [name for name in names if isinstance(table.columns[name], Id | Category)]
        self._groups = sorted(groups, key=lambda name: name != table.unit)[:MOST_KEYS]
        self._paired = sorted(names, key=lambda name: name not in self._groups)[:MOST_KEYS]
        known = {name: self._known(values) for name, values in self._keys.items()}
        self._new = {f"new {name}": (self._keys[name] != 0, ~known[name]) for name in names}
        for one, other in combinations(self._paired, 2):
            both = known[one] & known[other]
            pairs = pair(self._keys[one], self._keys[other])
            self._new[f"new {one} with {other}"] = (both, ~self._known(pairs))
        self._beside = {
            f"{number} by {group}": self._beside_usual(group, number)
            for group in self._groups
            for number in self._paired_numbers
            if not _is_yes_or_no(self._numbers[number])
        }

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

    def of_day(self, place: int) -> Iterator[tuple[str, Figure]]:
        """Yields the figures of a day."""
        sample, rows = self._samples[place], slice(self._ends[place], self._ends[place + 1])
        units = self._keys[self._table.unit][rows] if self._table.unit in self._keys else None
        day = _Day(len(sample), units)
        yield "rows", Figure("count", float(sample.num_rows), num=day.num(np.ones(len(sample), np.bool_)))
        if not len(sample):
            return
        # A label that is not known yet is left out of its day's columns, rather than counted as nulls.
        keys = {name: values[rows] for name, values in self._keys.items() if name in sample.keys}
        numbers = {name: values[rows] for name, values in self._numbers.items() if name in sample.numbers}
        yield from _of_keys(day, keys, sample, self._table)
        yield from self._of_relations(day, keys, rows)
        yield from _of_numbers(day, numbers, self._table)
        yield from _of_times(sample.hours)
        yield from _of_slices(day, keys, numbers, sample, self._table)
        paired = [name for name in self._paired_numbers if name in numbers]
        for one, other in combinations(paired, 2):
            yield f"{one} against {other}", _correlation(numbers[one], numbers[other])
        hashes = signature(sample, self._table)
        first = np.zeros(len(sample), dtype=np.bool_)
        first[np.unique(hashes, return_index=True)[1]] = True
        yield "copies", day.share(~first)

    def _of_relations(
        self, day: "_Day", keys: "Mapping[str, Keys]", rows: slice
    ) -> Iterator[tuple[str, Figure]]:
        if rows.start:  # the first day knows none before it
            for name, (looked_at, new) in self._new.items():
                yield name, day.share(new[rows], among=looked_at[rows])
            for name, logs in self._beside.items():
                there = np.isfinite(logs[rows])
                yield name, day.mean("factor", np.clip(logs[rows], -1, 1), among=there)
                yield f"far {name}", day.share(np.abs(logs[rows]) > np.log(2), among=there)
        paired = [name for name in self._paired if name in keys]
        for of, several in permutations(paired, 2):
            if of in self._groups:
                yield f"several {several} of {of}", _several(keys[of], keys[several])


class _Day:
    """Means and shares of a day's rows, and how many independent units they are of."""

    def __init__(self, num_rows: int, units: "Keys | None") -> None:
        self._num_rows, self._units = num_rows, None
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

    def share(self, rows: "Rows", *, among: "Rows | None" = None) -> Figure:
        """Returns the share of these rows."""
        there = np.ones(self._num_rows, dtype=np.bool_) if among is None else among
        if there.sum() < LEAST_ROWS:
            return Figure("share", float("nan"))
        return Figure("share", float(rows[there].mean()), num=self.num(there))

    def mean(self, kind: Kind, values: "Numbers", *, among: "Rows") -> Figure:
        """Returns the mean of these values."""
        if among.sum() < LEAST_ROWS:
            return Figure(kind, float("nan"))
        num, spread = self.num(among), float(values[among].std())
        return Figure(kind, float(values[among].mean()), num=num, error=spread / max(1.0, num) ** 0.5)


def _of_keys(
    day: _Day, keys: "Mapping[str, Keys]", sample: Sample, table: Table
) -> Iterator[tuple[str, Figure]]:
    for name, values in keys.items():
        there = values[values != 0]
        distinct, counts = np.unique(there, return_counts=True)
        yield f"distinct {name}", Figure("count", len(distinct) / sample.share, num=float(len(distinct)))
        if len(distinct):
            yield f"top {name}", day.share(values == distinct[counts.argmax()], among=values != 0)
        if _may_miss(table, name):
            yield f"missing {name}", day.share(values == 0)


def _of_numbers(day: _Day, numbers: "Mapping[str, Numbers]", table: Table) -> Iterator[tuple[str, Figure]]:
    for name, values in numbers.items():
        there = np.isfinite(values)
        if _may_miss(table, name):
            yield f"missing {name}", day.share(~there)
        if not there.any():
            continue
        if _is_yes_or_no(values):
            yield f"mean {name}", day.share(values == 1, among=there)
            continue
        top, counts = np.unique(values[there], return_counts=True)
        yield f"top {name}", day.share(values == top[counts.argmax()], among=there)
        yield f"negative {name}", day.share(values < 0, among=there)
        yield f"zero {name}", day.share(values == 0, among=there)
        logs = np.log(np.abs(np.where(there & (values != 0), values, 1)))
        yield f"size {name}", day.mean("factor", logs, among=there & (values != 0))


def _may_miss(table: Table, name: str) -> bool:
    """Returns whether rows without a value pass the rules: a label is null until it is known."""
    return table.columns[name].nullable or is_label(table, name)


def _of_times(hours: "Numbers") -> Iterator[tuple[str, Figure]]:
    hours = hours[np.isfinite(hours)]
    ordered = np.unique(hours)
    if len(ordered) < LEAST_ROWS:
        return
    error = (ordered[-1] - ordered[0]) / len(ordered) + CLOCK_H  # the mean gap is how far an end may move
    yield "first hour", Figure("hours", float(ordered[0]), error=error)
    yield "last hour", Figure("hours", float(ordered[-1]), error=error)
    yield "longest gap", Figure("hours", float(np.diff(ordered).max()), error=error)
    yield "mean hour", Figure("hours", float(hours.mean()), error=float(hours.std()) / len(ordered) ** 0.5)


def _of_slices(
    day: _Day, keys: "Mapping[str, Keys]", numbers: "Mapping[str, Numbers]", sample: Sample, table: Table
) -> Iterator[tuple[str, Figure]]:
    """Yields the share of each value of a small category, and the label's mean there."""
    label = numbers.get(table.label.column) if table.label else None
    for name, texts in sample.small.items():
        if name not in keys or is_label(table, name):
            continue
        for value in np.unique(keys[name][keys[name] != 0]):
            here, text = keys[name] == value, texts.get(int(value), "")
            yield f"{name} = {text}", day.share(here)
            if label is not None:
                known = here & np.isfinite(label)
                rate, mean = day.share(label == 1, among=known), day.mean("mean", label, among=known)
                yield f"label where {name} = {text}", rate if _is_yes_or_no(label) else mean


def _is_yes_or_no(values: "Numbers") -> bool:
    return bool(np.isin(values[np.isfinite(values)], (0, 1)).all())


def _several(of: "Keys", values: "Keys") -> Figure:
    """Returns the share of the values of one column that come with several of another."""
    both = (of != 0) & (values != 0)
    pairs = np.unique(pair(of[both], values[both]), return_index=True)[1]
    groups, counts = np.unique(of[both][pairs], return_counts=True)
    if not len(groups):
        return Figure("share", float("nan"))
    return Figure("share", float((counts > 1).mean()), num=float(len(groups)))


def _correlation(one: "Numbers", other: "Numbers") -> Figure:
    """Returns Spearman's rank correlation; its error is that of Fisher's transform."""
    from scipy.stats import rankdata

    both = np.isfinite(one) & np.isfinite(other)
    if both.sum() < LEAST_ROWS:
        return Figure("correlation", float("nan"))
    left, right = rankdata(one[both]), rankdata(other[both])
    if not left.std() or not right.std():
        return Figure("correlation", float("nan"))
    num = float(both.sum())
    return Figure("correlation", float(np.corrcoef(left, right)[0, 1]), num=num, error=1 / (num - 3) ** 0.5)
