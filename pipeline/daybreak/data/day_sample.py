"""Takes the sample of a day's rows that its figures are of: values as hashes and numbers.

A partition of more than `MOST_ROWS` rows is thinned to whole units, chosen by a hash, so that each day has
the same units; where few units are left, rows are drawn instead. The smallest hashes of a day's rows estimate
the similarity of two days of any size (MinHash; Broder 1997). Pure, but for reading and writing a sample.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from daybreak.contract.table import Bool, Bytes, Category, Float, Id, Table, Text, Time

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Keys = NDArray[np.uint64]  # hashes of values, 0 for a null
    Numbers = NDArray[np.float64]

KEYS, NUMBERS = "keys/", "numbers/"  # how the names of kept columns begin
MOST_ROWS = 1 << 12
LEAST_UNITS = 100  # below which rows are drawn rather than units
SMALL = 50  # different values that a small category may have
SKETCH = 128  # hashes of a day's rows that are kept


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The rows of a day that its figures are of: values as hashes, or as numbers with NaN for a null."""

    day: date
    num_rows: int  # of the day
    share: float  # of its units that are in the sample
    keys: "Mapping[str, Keys]"
    numbers: "Mapping[str, Numbers]"
    hours: "Numbers"  # since midnight; as many as rows
    small: Mapping[str, Mapping[int, str]]  # of small categories, the value of each hash

    def __len__(self) -> int:
        return len(self.hours)

    def write(self, path: Path, *, of: str) -> None:
        """Writes the sample; `of` is the digest of what it is of."""
        small = {name: {str(key): text for key, text in texts.items()} for name, texts in self.small.items()}
        facts = json.dumps({"of": of, "num_rows": self.num_rows, "share": self.share, "small": small})
        columns: dict[str, Any] = {f"{KEYS}{name}": values for name, values in self.keys.items()}
        columns |= {f"{NUMBERS}{name}": values for name, values in self.numbers.items()}
        unfinished = path.with_name(f".{path.name}")
        with unfinished.open("wb") as file:
            np.savez_compressed(file, facts=np.array(facts), hours=self.hours, **columns)
        unfinished.replace(path)


def read_sample(path: Path, day: date, *, of: str) -> Sample | None:
    """Returns the sample that is kept of a day; None where there is none, or it is of something else."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            columns = {name: kept[name] for name in kept.files}
    except (OSError, ValueError, EOFError, BadZipFile, zlib.error):
        return None
    facts = json.loads(str(columns.pop("facts")))
    if facts["of"] != of:
        return None
    small = {name: {int(key): text for key, text in texts.items()} for name, texts in facts["small"].items()}
    return Sample(
        day=day,
        num_rows=facts["num_rows"],
        share=facts["share"],
        small=small,
        hours=columns.pop("hours"),
        keys={name.removeprefix(KEYS): column for name, column in columns.items() if name.startswith(KEYS)},
        numbers={
            name.removeprefix(NUMBERS): column for name, column in columns.items() if name.startswith(NUMBERS)
        },
    )


def columns_of(table: Table, *, with_label: bool = True) -> list[str]:
    """Returns the columns that figures are of: no times, bytes, vectors, and none with `limits` off.

    Nor are they of auxiliary labels, of which a new day knows fewer than days before it.
    """
    late = {each.column for each in table.auxiliary}
    return [
        name
        for name, column in table.columns.items()
        if not isinstance(column, Time | Bytes)
        and not (isinstance(column, Float) and column.size)
        and "limits" not in column.off
        and name not in late
        and (with_label or not is_label(table, name))
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
    return Sample(
        day=day,
        num_rows=num_rows,
        share=share,
        keys=keys,
        numbers=numbers,
        hours=hours_of(day, rows[table.time]),
        small=small,
    )


def hours_of(day: date, times: "pa.ChunkedArray") -> "Numbers":
    """Returns the hours of these times since the day's midnight; NaN for a null."""
    microseconds = times.cast("int64").to_numpy()
    return np.asarray((microseconds - np.datetime64(day, "us").astype(np.int64)) / 3.6e9, dtype=np.float64)


def sketch_of(sample: Sample, table: Table) -> list[int]:
    """Returns the smallest hashes of the day's rows, without their time and ids other than the unit."""
    return [int(value) for value in np.unique(signature(sample, table))[:SKETCH]]


def similarity(one: Sequence[int], other: Sequence[int]) -> float:
    """Returns the Jaccard similarity of the rows of two days, from their smallest hashes.

    >>> similarity([1, 2, 3, 4], [1, 2, 3, 9])
    0.75
    """
    both = sorted({*one, *other})[: max(len(one), len(other), 1)]
    common = {*one} & {*other}
    return sum(value in common for value in both) / len(both) if both else 0.0


def is_label(table: Table, name: str) -> bool:
    """Returns whether a column is the table's label."""
    return table.label is not None and table.label.column == name


def _chosen(rows: "pa.Table", table: Table) -> tuple[Any, float]:
    """Returns which rows are in the sample, and the share of units that is."""
    import pyarrow as pa

    share = 1.0
    while len(rows) * share > MOST_ROWS:
        share /= 2
    if share == 1:
        return None, share
    least = np.uint64(int(share * 2**64 - 1))
    chosen = mixed(np.arange(1, len(rows) + 1, dtype=np.uint64)) < least
    if table.unit:
        codes, hashes, texts = _coded(rows[table.unit])
        if len(texts) * share >= LEAST_UNITS:
            of_unit = mixed(hashes) < least
            chosen = np.where(codes == len(texts), chosen, of_unit[codes])
    return pa.array(chosen), share


def thinned(sample: Sample, share: float, table: Table) -> Sample:
    """Returns the sample with that share of units, or of rows, to be compared with days of more rows."""
    if sample.share <= share:
        return sample
    numbers = mixed(np.arange(1, len(sample) + 1, dtype=np.uint64))
    kept = numbers < np.uint64(int(share / sample.share * 2**64 - 1))
    units = sample.keys.get(table.unit)
    if units is not None:
        kept = np.where(units == 0, kept, mixed(units) < np.uint64(int(share * 2**64 - 1)))
    return replace(
        sample,
        share=share,
        hours=sample.hours[kept],
        keys={name: values[kept] for name, values in sample.keys.items()},
        numbers={name: values[kept] for name, values in sample.numbers.items()},
    )


def _hashed(values: "pa.ChunkedArray") -> "tuple[Keys, dict[int, str]]":
    """Returns a hash for each value, 0 for a null; and the text of each where they are few, else none."""
    codes, hashes, texts = _coded(values)
    return hashes[codes], dict(zip(map(int, hashes), texts, strict=False)) if len(texts) <= SMALL else {}


def _coded(values: "pa.ChunkedArray") -> "tuple[NDArray[np.int64], Keys, NDArray[np.object_]]":
    """Returns rows' places among the distinct values, a null last; the hash of each; the values."""
    import pandas as pd

    coded = values.combine_chunks().dictionary_encode()
    texts = np.asarray(coded.dictionary.to_pylist(), dtype=object)
    hashes = np.append(pd.util.hash_array(texts, categorize=False) | np.uint64(1), np.uint64(0))
    codes = coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    return codes, hashes, texts


def mixed(values: "Keys") -> "Keys":
    """Returns well-spread hashes of hashes (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)


def pair(one: "Keys", other: "Keys") -> "Keys":
    """Returns a hash for two values, 0 where one is null."""
    with np.errstate(over="ignore"):
        both = mixed(one * np.uint64(0x9E3779B97F4A7C15) + other) | np.uint64(1)
    return np.where((one == 0) | (other == 0), np.uint64(0), both)


def signature(sample: Sample, table: Table) -> "Keys":
    """Returns a hash for each row, without its time, its label and ids other than the unit."""
    hashes = np.full(len(sample), 7, dtype=np.uint64)
    ids = {name for name, column in table.columns.items() if isinstance(column, Id) and name != table.unit}
    left_out = {*ids, *table.key, table.label.column if table.label else ""}
    for name, values in sample.keys.items():
        if name not in left_out:
            hashes = pair(hashes, values | np.uint64(1))
    for name, numbers in sample.numbers.items():
        if name not in left_out:
            hashes = pair(hashes, mixed(numbers.view(np.uint64)) | np.uint64(1))
    return hashes
