"""Makes the samples of rows by a workload's `features`: one function for training, judging and serving.

    features(rows, state, past) -> dict[str, NDArray]        each of shape [len(rows), ...]

`rows` is an Arrow table of rows of one partition, with the columns of the table less the label. `past` has
earlier partitions only, as far back as the workload's `looks_back`, and a label only where it was known by
then: so a feature can see neither the label of its own sample nor anything later. Where later rows correct
earlier ones (daybreak/data/corrections.py), `past` has rows as corrected before the day, and `rows` has rows
as delivered. The label and the unit are added here.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.table import Table
from daybreak.contract.workload import GROUP, UNIT, State
from daybreak.data.corrections import PLACE, corrected, corrects, later_days, reach, sample_rows
from daybreak.data.partitions import CLEAN, part_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Past:
    """Rows of the partitions before a day, no further back than the workload's `looks_back`."""

    day: date
    workload: Any
    days: tuple[date, ...]  # that are there, in order
    read: Callable[[date], "pa.Table"]

    def rows(self, back: timedelta | None = None) -> "pa.Table":
        """Returns the rows of the days from `back` before this one, all columns; the oldest first.

        They are as they stood at the beginning of this day: labels that were not known by then are null, and
        only days before it have corrected them.
        """
        import pyarrow as pa

        first = self.day - back if back is not None else date.min
        known = {day: self._known(day) for day in self.days if first <= day < self.day}
        if corrects(self.workload):
            known = {day: self._corrected(day, known) for day in known}
        return pa.concat_tables(known.values()) if known else self.workload.table.schema().empty_table()

    def _known(self, day: date) -> "pa.Table":
        import pyarrow as pa

        table: Table = self.workload.table
        rows = self.read(day).select(list(table.columns))
        for name in unripe(table, day, by=self.day - timedelta(days=1)):
            where = rows.schema.get_field_index(name)
            nulls = pa.nulls(len(rows), rows.schema.field(where).type)
            rows = rows.set_column(where, rows.schema.field(where), nulls)
        return rows

    def _corrected(self, day: date, known: "Mapping[date, pa.Table]") -> "pa.Table":
        later = [rows for other, rows in known.items() if day < other <= day + reach(self.workload)]
        return corrected(self.workload, known[day], later).drop_columns(PLACE)


def is_ripe(table: Table, day: date, *, by: date) -> bool:
    """Returns whether the labels of a day are known by the end of another, but for auxiliary ones."""
    return day <= by and not (table.label and table.label.column in unripe(table, day, by=by))


def unripe(table: Table, day: date, *, by: date) -> tuple[str, ...]:
    """Returns the labels, auxiliary ones too, that are not all known of a day by the end of another."""
    begins, ends = datetime.combine(day, time()), datetime.combine(by, time())
    return tuple(name for name, label in table.labels.items() if begins + label.ripe_after > ends)


def read_clean(day: date) -> "pa.Table":
    """Returns the clean rows of a day."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(
        part_of(day, CLEAN), page_checksum_verification=True
    ) as file:  # half the time of `read_table`
        return file.read()


def past_of(
    workload: Any, day: date, days: Iterable[date], *, read: Callable[[date], "pa.Table"] = read_clean
) -> Past:
    """Returns what the samples of a day may know, of the partitions of `days`, each of which `read` reads."""
    back: timedelta = getattr(workload, "looks_back", timedelta())
    within = tuple(sorted(other for other in days if day - back <= other < day))
    return Past(day=day, workload=workload, days=within, read=read)


def rows_of(
    workload: Any,
    day: date,
    days: Iterable[date],
    *,
    last: date,
    read: Callable[[date], "pa.Table"] = read_clean,
) -> "pa.Table":
    """Returns the rows of a day that stay once later ones have corrected them.

    For `arrays` they are as corrected; for `features` as they were delivered, with the corrected label.
    `last` is the last training day.
    """
    rows = read(day)
    if not corrects(workload):
        return rows
    later = [read(other) for other in later_days(workload, day, days, last=last)]
    if hasattr(workload, "arrays"):
        return corrected(workload, rows, later).drop_columns(PLACE)
    return sample_rows(workload, rows, later)


def features_of(workload: Any, rows: "pa.Table", state: State, past: Past) -> "dict[str, NDArray[Any]]":
    """Returns the checked features of one partition's rows; raises ParamsError for invalid features."""
    import numpy as np

    seen = rows.select(list(workload.table.features))
    try:
        made: Mapping[str, Any] = workload.features(seen, state, past)
    except Exception as error:  # whatever the team's code raises
        name = type(workload).__name__
        raise ParamsError(f"{name}.features fails: {type(error).__name__}: {error}; fix it") from error
    arrays = {}
    for name, value in _named(made, workload).items():
        array = np.asarray(value)
        if array.ndim == 0 or len(array) != len(rows):
            raise _wrong(workload, name, f"has shape {list(array.shape)}", f"[{len(rows)}, ...], one a row")
        if array.dtype.kind not in "biuf":
            raise _wrong(workload, name, f"is of {array.dtype}", "numbers or bools")
        if array.dtype == np.float64:
            with np.errstate(over="ignore"):  # beyond float32 is infinity, and no number either
                array = array.astype(np.float32)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            lost = int((~np.isfinite(array)).sum())
            raise _wrong(workload, name, f"has {lost:,} values that are not finite", "a number for each")
        arrays[name] = np.ascontiguousarray(array)
    return arrays


def samples_of(
    workload: Any, rows: "pa.Table", state: State, past: Past, *, unknown: Collection[str] = ()
) -> "dict[str, NDArray[Any]]":
    """Returns the arrays of all rows whose label is known: features, labels and unit.

    The values of auxiliary labels that are `unknown` are left out.
    """
    import pyarrow.compute as pc

    table: Table = workload.table
    if table.label:
        rows = rows.filter(pc.is_valid(rows[table.label.column]))
    arrays = features_of(workload, rows, state, past)
    return (
        arrays
        | labels_of(table, rows, unknown=unknown)
        | ({UNIT: _numbers(rows[table.unit], past.day)} if table.unit else {})
        | ({GROUP: _numbers(rows[group], past.day)} if (group := _group(workload)) else {})
    )


def _group(workload: Any) -> str:
    """Returns the column of groups; "" for none. Raises ParamsError where the table has no such column."""
    group = getattr(workload, "group", "")
    if not isinstance(group, str):  # which a class may mean otherwise
        return ""
    if group and group not in workload.table.columns:
        raise ParamsError(
            f"the group of {type(workload).__name__} is {group!r}, which is not among the columns of its "
            f"table, {', '.join(workload.table.columns)}; name one of them"
        )
    return group


def labels_of(table: Table, rows: "pa.Table", *, unknown: Collection[str] = ()) -> "dict[str, NDArray[Any]]":
    """Returns the labels of rows by their names; none where the table has none.

    They are float32 or int64, shape [len(rows)], and float32 [len(rows), size] where the label is a vector.
    Auxiliary ones are float32, with nan for null and where they are `unknown`.

    Raises DataError where a label is not a number, or a vector of numbers, or infinite as float32.
    """
    import numpy as np

    if table.label is None:
        return {}
    return _label(table.label.column, rows) | {
        each.column: np.full(len(rows), np.nan, dtype=np.float32)
        if each.column in unknown
        else _as_float32(
            rows[each.column].cast("float64", safe=False).to_numpy(zero_copy_only=False), each.column
        )
        for each in table.auxiliary
    }


def _label(name: str, rows: "pa.Table") -> "dict[str, NDArray[Any]]":
    """Returns the array of the label that is judged, by its name."""
    import numpy as np
    import pyarrow as pa

    kind = rows.schema.field(name).type
    if pa.types.is_fixed_size_list(kind):
        vectors = rows[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return {name: _as_float32(vectors, name).reshape(len(rows), kind.list_size)}
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"the label {name} is {kind}, not a number; declare it Float(), Int() or Bool(), "
            f"and number its values at the source"
        )
    values = rows[name].to_numpy(zero_copy_only=False)
    return {name: values.astype(np.int64) if pa.types.is_integer(kind) else _as_float32(values, name)}


def _as_float32(values: "NDArray[Any]", name: str) -> "NDArray[np.float32]":
    """Returns labels as float32; DataError for an infinite label, which would make every loss NaN."""
    import numpy as np

    with np.errstate(over="ignore"):
        labels = values.astype(np.float32)
    if lost := int(np.isinf(labels).sum()):
        raise DataError(
            f"the label {name} has {lost:,} values that are infinite as float32; set them right at the "
            f"source, or add a rule to the suite (validate.suite) that sends their rows to quarantine"
        )
    return labels


def _named(made: Any, workload: Any) -> Mapping[str, Any]:
    if not isinstance(made, Mapping) or not made:
        raise ParamsError(
            f"{type(workload).__name__}.features returns {type(made).__name__}; "
            f"return a dict of arrays by name, at least one"
        )
    taken = {UNIT: "unit", GROUP: "group"} | dict.fromkeys(workload.table.labels, "label")
    if clash := sorted(set(taken) & set(made)):
        raise ParamsError(
            f"{type(workload).__name__}.features returns an array named {clash[0]!r}, as the "
            f"{taken[clash[0]]} is; give one of them another name (a column gets "
            "one under source.columns)"
        )
    return made


def _wrong(workload: Any, name: str, what: str, wanted: str) -> ParamsError:
    return ParamsError(f"{type(workload).__name__}.features: {name!r} {what}; return {wanted}")


@lru_cache(maxsize=1 << 20)  # the same units come on many days
def _head(code: str) -> int:
    """Returns the head of the md5 of a text, 63 bits."""
    return int.from_bytes(hashlib.md5(code.encode(), usedforsecurity=False).digest()[:8]) >> 1


def _numbers(values: "pa.ChunkedArray", day: date) -> "np.ndarray[Any, Any]":
    """Returns a number for each value of a day's rows, the same on every day: the head of its md5.

    A null has a number of its own among all days, below 0.
    """
    import numpy as np
    import pyarrow as pa

    codes = values.cast(pa.string()).combine_chunks().dictionary_encode()
    heads = [_head(code) for code in codes.dictionary.to_pylist()]
    index = codes.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    numbers = np.array([*heads, -1], dtype=np.int64)[index]
    alone = -1 - (day.toordinal() << 40) - np.arange(len(index), dtype=np.int64)
    return np.where(index >= 0, numbers, alone)
