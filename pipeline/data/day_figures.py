"""Computes the figures of a day's clean rows that limits are learned for, from the schema alone.

Of each kind of column, with `window` earlier partitions as what is known:

    rows, distinct X, missing X       how many rows and different values there are, the share of nulls
    new X, new X with Y               rows whose value was not there before; rows whose two values were, but
                                      not together: an item's description, a customer's country and items
    X by Y, far X by Y                a number beside what is usual for the value of Y, an item's price: the
                                      mean logarithm of the ratio, and the share off by a factor of two
    several X of Y                    values of Y that come with several of X: customers of one invoice
    top X, size X, negative X, zero X a column by itself
    X = V, label where X = V          share of a small category's value, and the label's mean there
    X against Y                       rank correlation of two numbers, the label among them
    first hour, last hour, mean hour, longest gap
    copies, as an earlier day         rows alike but for their ids and times, within the day; and the Jaccard
                                      similarity with the most similar earlier day, by MinHash (Broder 1997)

A partition of more than `MOST_ROWS` rows is thinned to whole units, chosen by a hash, so that the same ones
are seen each day. `usual` is the median of the last `USUAL_DAYS` days that had the value. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pipeline.contract.table import Bool, Bytes, Category, Float, Id, Table, Text, Time

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Keys = NDArray[np.uint64]  # hashes of values, 0 for a null
    Numbers = NDArray[np.float64]
    Rows = NDArray[np.bool_]

Kind = Literal["count", "share", "mean", "factor", "hours", "correlation"]

WINDOW = 56  # earlier partitions that are known
USUAL_DAYS = 5
MOST_ROWS = 1 << 13
LEAST_UNITS = 100  # below which rows are drawn rather than units
MOST_KEYS, MOST_NUMBERS = 6, 6  # columns of a wide table that are looked at together
MOST_SLICES = 8  # values of a small category
SMALL = 50  # different values that a small category may have
SKETCH = 128  # hashes of a day's rows that are kept
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


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The rows of a day that its figures are of: values as hashes, or as numbers with NaN for a null."""

    day: date
    num_rows: int  # of the day
    share: float  # of its units that are in the sample
    keys: "Mapping[str, Keys]"
    numbers: "Mapping[str, Numbers]"
    hours: "Numbers"  # since midnight
    small: Mapping[str, Mapping[int, str]]  # of small categories, the value of each hash

    def __len__(self) -> int:
        return len(self.hours)


def columns_of(table: Table, *, with_label: bool = True) -> list[str]:
    """Returns the columns that figures are of: no times, bytes, vectors, and none with `limits` off."""
    return [
        name
        for name, column in table.columns.items()
        if not isinstance(column, Time | Bytes)
        and not (isinstance(column, Float) and column.size)
        and "limits" not in column.off
        and (with_label or not _is_label(table, name))
    ]


def sample_of(day: date, rows: "pa.Table", table: Table, *, with_label: bool) -> Sample:
    """Returns the sample of a day's rows; `with_label` once the labels of the day are known."""
    chosen, share = _chosen(rows, table)
    num_rows = len(rows)
    rows = rows.filter(chosen) if share < 1 else rows
    keys: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    small: dict[str, dict[int, str]] = {}
    for name in columns_of(table, with_label=with_label):
        column, values = table.columns[name], rows[name]
        if isinstance(column, Id | Category | Text):
            keys[name], texts = _hashed(values)
            if isinstance(column, Category) and texts:
                small[name] = texts
        else:
            plain = values.cast("int8") if isinstance(column, Bool) else values
            numbers[name] = plain.cast("float64").to_numpy()
    microseconds = rows[table.time].cast("int64").to_numpy()
    hours = (microseconds - np.datetime64(day, "us").astype(np.int64)) / 3.6e9
    return Sample(
        day=day, num_rows=num_rows, share=share, keys=keys, numbers=numbers,
        hours=hours[np.isfinite(hours)] if len(hours) else hours, small=small,
    )  # fmt: skip


def figures_of(
    samples: Sequence[Sample], table: Table, wanted: Sequence[date]
) -> dict[date, dict[str, Figure]]:
    """Returns the figures of the wanted days by name; `samples` are of consecutive partitions, in order."""
    share = min((sample.share for sample in samples), default=1.0)
    together = _Together(tuple(_thinned(sample, share, table) for sample in samples), table)
    found = {}
    for place, sample in enumerate(samples):
        if sample.day in wanted:
            own = together.of_day(place)
            found[sample.day] = {name: figure for name, figure in own if np.isfinite(figure.value)}
    return found


def sketch_of(sample: Sample, table: Table) -> list[int]:
    """Returns the smallest hashes of the day's rows, without their time and ids other than the unit."""
    return [int(value) for value in np.unique(_signature(sample, table))[:SKETCH]]


def similarity(one: Sequence[int], other: Sequence[int]) -> float:
    """Returns the Jaccard similarity of the rows of two days, from their smallest hashes.

    >>> similarity([1, 2, 3, 4], [1, 2, 3, 9])
    0.75
    """
    both = sorted({*one, *other})[: max(len(one), len(other), 1)]
    common = {*one} & {*other}
    return sum(value in common for value in both) / len(both) if both else 0.0


def _is_label(table: Table, name: str) -> bool:
    return table.label is not None and table.label.column == name


def _chosen(rows: "pa.Table", table: Table) -> tuple[Any, float]:
    """Returns which rows are in the sample, and the share of units that is."""
    import pyarrow as pa

    share = 1.0
    while len(rows) * share > MOST_ROWS:
        share /= 2
    if share == 1:
        return None, share
    numbers = _mixed(np.arange(1, len(rows) + 1, dtype=np.uint64))
    drawn = numbers
    if table.unit:
        units, _ = _hashed(rows[table.unit])
        if len(np.unique(units)) * share >= LEAST_UNITS:
            drawn = np.where(units == 0, numbers, _mixed(units))
    return pa.array(drawn < np.uint64(int(share * 2**64 - 1))), share


def _thinned(sample: Sample, share: float, table: Table) -> Sample:
    """Returns the sample with that share of the units, to be compared with days of more rows."""
    if sample.share <= share or not table.unit or table.unit not in sample.keys:
        return sample
    units = sample.keys[table.unit]
    numbers = _mixed(np.arange(1, len(units) + 1, dtype=np.uint64))
    kept = np.where(units == 0, numbers, _mixed(units)) < np.uint64(int(share * 2**64 - 1))
    return Sample(
        day=sample.day, num_rows=sample.num_rows, share=share, hours=sample.hours[kept], small=sample.small,
        keys={name: values[kept] for name, values in sample.keys.items()},
        numbers={name: values[kept] for name, values in sample.numbers.items()},
    )  # fmt: skip


def _hashed(values: "pa.ChunkedArray") -> "tuple[Keys, dict[int, str]]":
    """Returns a hash for each value, 0 for a null; and the text of each where they are few, else none."""
    import pandas as pd

    coded = values.combine_chunks().dictionary_encode()
    texts = np.asarray(coded.dictionary.to_pylist(), dtype=object)
    hashes = np.append(pd.util.hash_array(texts, categorize=False) | np.uint64(1), np.uint64(0))
    codes = coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    return hashes[codes], dict(zip(map(int, hashes), texts, strict=False)) if len(texts) <= SMALL else {}


def _mixed(values: "Keys") -> "Keys":
    """Returns well-spread hashes of hashes (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)


def _pair(one: "Keys", other: "Keys") -> "Keys":
    """Returns a hash for two values, 0 where one is null."""
    with np.errstate(over="ignore"):
        both = _mixed(one * np.uint64(0x9E3779B97F4A7C15) + other) | np.uint64(1)
    return np.where((one == 0) | (other == 0), np.uint64(0), both)


def _signature(sample: Sample, table: Table) -> "Keys":
    """Returns a hash for each row, without its time and ids other than the unit."""
    signature = np.full(len(sample), 7, dtype=np.uint64)
    ids = {name for name, column in table.columns.items() if isinstance(column, Id) and name != table.unit}
    for name, values in sample.keys.items():
        if name not in ids and name not in table.key:
            signature = _pair(signature, values | np.uint64(1))
    for name, numbers in sample.numbers.items():
        if name not in table.key:
            signature = _pair(signature, _mixed(numbers.view(np.uint64)) | np.uint64(1))
    return signature


class _Together:
    """The rows of several days in one, in which each looks back on those before it."""

    def __init__(self, samples: tuple[Sample, ...], table: Table) -> None:
        self._samples, self._table = samples, table
        lengths = [len(sample) for sample in samples]
        self._ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._at = np.repeat(np.arange(len(samples)), lengths)
        names = [name for name in table.columns if samples and name in samples[-1].keys]
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
            pairs = _pair(self._keys[one], self._keys[other])
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
        """Returns of each row whether its value was there on one of the days before, and is no null."""
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
        sums = np.add.reduceat(np.nan_to_num(logs)[order], starts)
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
        keys = {name: values[rows] for name, values in self._keys.items()}
        numbers = {name: values[rows] for name, values in self._numbers.items()}
        yield from _of_keys(day, keys, sample, self._table)
        yield from self._of_relations(day, keys, rows)
        yield from _of_numbers(day, numbers, self._table)
        yield from _of_times(sample.hours)
        yield from _of_slices(day, keys, numbers, sample, self._table)
        for one, other in combinations(self._paired_numbers, 2):
            yield f"{one} against {other}", _correlation(numbers[one], numbers[other])
        signature = _signature(sample, self._table)
        first = np.zeros(len(sample), dtype=np.bool_)
        first[np.unique(signature, return_index=True)[1]] = True
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
        for of, several in permutations(self._paired, 2):
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
        """Returns how many units of one size would tell as much as those of these rows (Kish 1965)."""
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
        if table.columns[name].nullable:
            yield f"missing {name}", day.share(values == 0)


def _of_numbers(day: _Day, numbers: "Mapping[str, Numbers]", table: Table) -> Iterator[tuple[str, Figure]]:
    for name, values in numbers.items():
        there = np.isfinite(values)
        if table.columns[name].nullable:
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


def _of_times(hours: "Numbers") -> Iterator[tuple[str, Figure]]:
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
        if name not in keys or _is_label(table, name):
            continue
        values, counts = np.unique(keys[name][keys[name] != 0], return_counts=True)
        for value in values[np.argsort(-counts, kind="stable")][:MOST_SLICES]:
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
    pairs = np.unique(_pair(of[both], values[both]), return_index=True)[1]
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
