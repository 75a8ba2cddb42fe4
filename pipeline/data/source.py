"""Brings in files, day by day: the source `Files`.

A source (pipeline/contract/data_source.py) writes one partition a day, `part.parquet`: the rows as they were
delivered, errors included. `ingest` casts them by `conform` to the columns of the workload's table. The same
rows give the same bytes.
"""

import contextlib
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from pipeline.contract.days import check_zone, hours_of
from pipeline.contract.errors import DataError, ParamsError
from pipeline.contract.formats import size
from pipeline.contract.table import Label, Table
from pipeline.machines import this_machine

log = logging.getLogger(__name__)

PART = "part.parquet"
PARQUET, JSON = (".parquet", ".pq"), (".jsonl", ".ndjson", ".json")  # JSON: an object a line
TEXT = (*JSON, ".csv", ".tsv")
SUFFIXES = (*PARQUET, *TEXT, *(f"{suffix}.gz" for suffix in TEXT))
NULLS = ["", "NULL", "null", "NaN", "nan"]  # not NA: that is a country
DECIMAL_COMMA = r"^([+-]?\d+),(\d+)$"
NO_CLASS = -1  # below the least of a label, so that the row is quarantined
NO_HOUR = -1  # of a day's files
LEAST_BYTES = 4  # of a value in memory, about
MEMORY_SHARE = 0.25  # of the memory here that a file may hold, unpacked
BLOCK_BYTES = 1 << 26  # of JSON that is read at once; an object must fit into it
HEAD_BYTES = 1 << 18  # of a file of CSV, by which its dialect is told
SINCE_1970 = {"s": 1_000_000.0, "ms": 1000.0, "us": 1.0, "ns": 0.001}  # microseconds of a unit
END_US = int(datetime(2200, 1, 1, tzinfo=UTC).timestamp() * 1e6)  # later times are of another unit


def write_partition(rows: pa.Table, folder: Path) -> None:
    """Writes rows to `folder/part.parquet`, in their order; the same rows give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = rows.combine_chunks()  # otherwise the chunks would change the bytes
    pq.write_table(rows, folder / PART, compression="zstd", write_page_checksum=True)


def conform(rows: pa.Table, table: Table, *, origin: str, absent_is_null: bool = False) -> pa.Table:
    """Returns the rows in the columns and types of the table; other columns are left out.

    Times with a zone become times of the table's zone; NaN becomes null; codes lose the `.0` of tools that
    keep whole numbers with gaps as floats. `origin` is what an error calls the rows. With `absent_is_null` a
    nullable column that is not there is null, as in rows that are older than the column.

    Raises:
        DataError: columns are missing or of another type; the sentence names all of them.
    """
    if absent_is_null:
        for field in table.schema():
            if table.columns[field.name].nullable and field.name not in rows.column_names:
                rows = rows.append_column(field, pa.nulls(len(rows), field.type))
    given = rows.column_names
    faults = [f"no {name}" for name in table.columns if name not in given]
    faults += [f"two columns {name}" for name in table.columns if given.count(name) > 1]
    if faults:
        faults[-1] += f" among its columns {', '.join(given)}"
    arrays = []
    for field in table.schema():
        if given.count(field.name) == 1:
            array = rows[field.name]
            if table.label and field.name == table.label.column and table.label.classes:
                array = _numbered(array, table.label)
            try:
                arrays.append(_cast(array, field.type, table.zone))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                reason = str(error).splitlines()[0]
                faults.append(f"{field.name} is {array.type}, not {field.type}: {reason}")
    if faults:
        raise DataError(
            f"{origin} has another schema: {'; '.join(faults)}; have it delivered in the old one, name the "
            f"right columns under source.columns in params.yaml, or declare them in the workload's table"
        )
    return pa.table(arrays, schema=table.schema())


class Files:
    """Parquet, CSV or JSON lines at any URL that fsspec knows: one file, or one a day.

    One file, or several without a day in their names, are read once and cut by the column `cut_by`;
    a line without a time belongs to the day of the line before. With `{day}` in the url (or
    `{day:%Y/%m/%d}`), or in a folder or glob whose files have a day in their names, a day is
    exactly its files. A file that does not fit into memory is better delivered day by day.

    With `{hour}` in the url as well, or folders such as `day=2025-01-31/hour=07`, a day is its hours, in
    order. The newest day is not offered before its last hour, 23, is there: it may not be over. Once a later
    day has begun it is offered as it is, and a warning names the hours that are missing. An hour that the
    clocks of `zone` leave out is not missing, and one that they repeat is one folder.

    All columns are delivered. Those of parquet keep their types; those of CSV are text, of which `ingest`
    makes what the workload's table declares.

    Args:
        url: `s3://shop/sales/{day}.parquet`, `logs/{day:%Y/%m/%d}/{hour}.jsonl`, `sales/*.csv`,
            `../sales.jsonl`; variables of the environment are filled in; a relative path is searched here,
            then in the folders above.
        columns: the table's name of a column to its name in the files, where they differ.
        cut_by: the table's name of the column whose day a row belongs to.
        time: strptime format of `cut_by` where it is text, such as `%d/%m/%Y %H:%M`; ISO 8601 if empty. `%z`
            reads an offset. `s`, `ms`, `us` or `ns` where it is a number of these since 1970, UTC.
        zone: in which a day begins, for times that have a zone; that of the table.
        delimiter: between the fields of a CSV file.
        decimal: between the digits of a number in a CSV file: `,` is read as a point.
        encoding: of a CSV file.
        storage: options of the fsspec file system; credentials belong in the environment.
        links: follow links of a local folder that lead out of it, as those of git-annex do; who may write to
            the folder could else have any file read that the pipeline may read.
        max_gb: what a file may hold at most, unpacked; if 0, a quarter of the memory of this machine, or
            of this container where that has less.
    """

    suffixes = SUFFIXES  # of the files in a folder that are read, in small letters
    kind = "file of parquet, CSV or JSON lines"  # what an error calls such a file

    def __init__(
        self,
        url: str,
        *,
        columns: Mapping[str, str] | None = None,
        cut_by: str = "time",
        time: str = "",
        zone: str = "UTC",
        delimiter: str = ",",
        decimal: Literal[".", ","] = ".",
        encoding: str = "utf8",
        storage: Mapping[str, Any] | None = None,
        links: bool = False,
        max_gb: float = 0,
    ) -> None:
        if time and "%" not in time and time not in SINCE_1970:
            raise ParamsError(
                f"source.time is {time!r}, which is not a format such as %d/%m/%Y %H:%M; "
                f"name a column under source.cut_by instead, as cut_by: {time}"
            )
        if re.search(r"(?<!%)(?:%%)*%Z", time):
            raise ParamsError(
                f"source.time is {time!r}, and a zone's letters, as CST, stand for several zones; "
                f"have offsets delivered, as -06:00, and write %z"
            )
        check_zone(zone, of="source.zone")
        self.url = url
        self.columns = dict(columns or {})
        self.cut_by, self.time, self.zone = cut_by, time, zone
        self.delimiter, self.decimal, self.encoding = delimiter, decimal, encoding
        self.links = links
        self.max_bytes = int(max_gb * 1e9) or int(MEMORY_SHARE * this_machine.installed_bytes())
        try:
            self._system, self._root = fsspec.core.url_to_fs(_resolved(url), **(storage or {}))
        except (ValueError, ImportError, OSError) as error:
            raise ParamsError(f"source.url {url} cannot be used: {error}; fix it in params.yaml") from None
        self._dated: dict[date, list[_File]] | None = None  # files of each day
        self._table: tuple[pa.Table, dict[date, Any]] | None = None  # all rows, and where each day's are

    def days(self) -> list[date]:
        """Returns the days that have rows, or a file, in order."""
        dated = self._files_by_day()
        if not dated:
            return sorted(self._rows_by_day()[1])
        days = sorted(dated)
        hours = [file.hour for file in dated[days[-1]]]
        return days if hours[-1] in (NO_HOUR, hours_of(days[-1], self.zone)[-1]) else days[:-1]

    def fetch(self, day: date, folder: Path) -> None:
        """Writes the rows of `day`, in their order; DataError if they are missing or cannot be read."""
        dated = self._files_by_day()
        if dated:
            rows = self._joined([file.path for file in files]) if (files := dated.get(day)) else None
            _warn_of_missing(day, [file.hour for file in files or ()], self.url, zone=self.zone)
        else:
            all_rows, where = self._rows_by_day()
            rows = all_rows.take(where[day]) if day in where else None
        if rows is None:
            raise DataError(f"{self.url} has nothing for {day}; check that the day is delivered")
        write_partition(rows, folder)

    def sample(self, num_rows: int) -> pa.Table:
        """Returns the first rows of the newest file, all columns."""
        return self._read(self._newest()).slice(0, num_rows)

    def head(self) -> bytes:
        """Returns whole lines from the beginning of the newest file if that is CSV, unpacked; else b""."""
        path = self._newest()
        if path.lower().endswith((*PARQUET, *JSON, *(f"{suffix}.gz" for suffix in JSON))):
            return b""
        self._expect_file(path)
        try:
            with self._system.open(path, "rb", compression="infer") as file:
                data: bytes = file.read(HEAD_BYTES)
        except (OSError, EOFError):
            return b""  # whoever reads it says why
        return data if len(data) < HEAD_BYTES else data[: data.rfind(b"\n") + 1]

    def _newest(self) -> str:
        dated = self._files_by_day()
        return dated[max(dated)][-1].path if dated else self._paths()[-1]

    def _files_by_day(self) -> dict[date, list["_File"]]:
        """Files of each day, in order; empty if the files are cut by time."""
        if self._dated is None:
            try:
                self._dated = self._list()
            except OSError as error:
                raise DataError(
                    f"{self.url} cannot be listed: {error}; check that it can be reached"
                ) from None
        return self._dated

    def _list(self) -> dict[date, list["_File"]]:
        if _PLACE.search(self._root):
            files = list(_files_of_pattern(self._root, self._system.glob(_PLACE.sub(_stars, self._root))))
        elif len(paths := self._paths()) == 1:
            return {}
        else:
            named = {path: _day_in(path.removeprefix(self._root)) for path in paths}
            if not any(named.values()):
                return {}
            files = [_File(day, _hour_in(path), path) for path, day in named.items() if day]
            if nameless := [path for path in paths if not named[path]]:
                raise DataError(
                    f"{self.url}: {len(nameless)} of {len(named)} files have no day in their names, such as "
                    f"{nameless[0]}; move them away, or name them with a day such as 2025-01-31"
                )
        if not files:
            raise DataError(f"{self.url} matches no file; check that the data is delivered, and source.url")
        by_day: dict[date, list[_File]] = {}
        for file in sorted(files):
            by_day.setdefault(file.day, []).append(file)
        return by_day

    def _paths(self) -> list[str]:
        """The files that the url stands for, in order."""
        if any(sign in self._root for sign in "*?["):
            paths = [path for path in self._system.glob(self._root) if path.lower().endswith(self.suffixes)]
        elif self._system.isdir(self._root):
            paths = [path for path in self._system.find(self._root) if path.lower().endswith(self.suffixes)]
        else:
            return [self._root]
        if not paths:
            raise DataError(
                f"{self.url} has no {self.kind}; check that the data is delivered, and source.url"
            )
        return sorted(paths)

    def _parent(self, path: str) -> str:
        """The name of the folder that a file is in; "" for none, and where that is a part of a day."""
        name = path.removeprefix(self._root).rpartition("/")[0].rpartition("/")[2]
        in_url = _PLACE.sub(_form, self._root).rpartition("/")[0].rpartition("/")[2]
        is_of_day = bool(_PLACE.search(self._root) and re.search("%[YmdH]", in_url))
        return "" if is_of_day or _day_in(name) or _hour_in(f"{name}/") != NO_HOUR else name

    def _rows_by_day(self) -> tuple[pa.Table, dict[date, Any]]:
        """All rows, and the row numbers of each day; read once."""
        if self._table is None:
            rows = self._joined(self._paths()).combine_chunks()
            filled = pc.fill_null_backward(pc.fill_null_forward(self._times(rows)))
            numbers = filled.cast(pa.date32()).cast(pa.int32()).drop_null().to_numpy()
            order = np.argsort(numbers, kind="stable")
            values, starts = np.unique(numbers[order], return_index=True)
            groups = np.split(order, starts[1:]) if len(values) else []
            epoch = date(1970, 1, 1)
            days = [epoch + timedelta(days=int(value)) for value in values]
            self._table = rows, dict(zip(days, groups, strict=True))
        return self._table

    def _times(self, rows: pa.Table) -> pa.ChunkedArray:
        """The moments of `cut_by`, by which rows are cut into days."""
        if rows.column_names.count(self.cut_by) != 1:
            raise DataError(
                f"{self.url} has no column {self.cut_by} to cut days by, or two, among its columns "
                f"{', '.join(rows.column_names)}; name the column of the time in source.cut_by, or deliver a "
                f"file a day"
            )
        try:
            return _cast(rows[self.cut_by], pa.timestamp("us"), self.zone)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(
                f"{self.url} cannot be cut into days: {self.cut_by} is {rows[self.cut_by].type}, not times: "
                f"{str(error).splitlines()[0]}; fix it, name its format in source.time, or name another "
                f"column in source.cut_by"
            ) from None

    def _joined(self, paths: list[str]) -> pa.Table:
        """The rows of several files, one after the other."""
        parts = [self._read(path) for path in paths]
        for path, part in zip(paths, parts, strict=True):
            if others := sorted(set(part.column_names) ^ set(parts[0].column_names)):
                raise DataError(
                    f"{path} has other columns than {paths[0]}: {', '.join(others)} in one of them alone; "
                    f"have all files delivered with the same columns"
                )
        try:
            return pa.concat_tables(parts, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise DataError(
                f"{paths[0]} to {paths[-1]} have columns of different types: {str(error).splitlines()[0]}; "
                f"have all files delivered with the same types"
            ) from None

    def _read(self, path: str) -> pa.Table:
        """The rows of one file, under the table's names."""
        origin = self.url if path == self._root else path
        parquet = path.lower().endswith(PARQUET)
        self._expect_file(path)
        try:
            with self._system.open(path, "rb", compression=None if parquet else "infer") as file:
                if parquet:
                    delivered = pq.ParquetFile(file)
                    self._expect_room(_num_bytes(delivered), origin)
                    rows = delivered.read()
                else:
                    data = file.read(self.max_bytes + 1)
                    self._expect_room(len(data), origin)
                    is_json = path.lower().removesuffix(".gz").endswith(JSON)
                    rows = _read_json(data) if is_json else self._read_csv(data)
            rows = self._renamed(rows)
            if self.time and self.cut_by in rows.column_names:
                rows = self._parsed(rows)
        except FileNotFoundError:
            raise DataError(f"{origin} does not exist; check that it is delivered, and source.url") from None
        except pa.ArrowInvalid as error:
            raise DataError(f"{_place(origin, str(error))}; fix it, or have it delivered again") from None
        except (OSError, EOFError, UnicodeError) as error:
            raise DataError(f"{origin} cannot be read: {error}; check its permissions and contents") from None
        return rows

    def _expect_file(self, path: str) -> None:
        """Raises DataError where a local path is a device or a pipe, or a link that leads out of the folder.

        The one file that the url names may be a link, as params.yaml says that it is to be read.
        """
        if not isinstance(self._system, LocalFileSystem) or not Path(path).exists():
            return
        if not Path(path).is_file():
            raise DataError(f"{path} is not a file but a pipe, a device or a folder; move it away")
        root = Path(re.split(r"[*?\[{]", self._root)[0])
        folder = root if root.is_dir() else root.parent
        led_to = Path(path).resolve()
        if path != self._root and not self.links and not led_to.is_relative_to(folder.resolve()):
            raise DataError(
                f"{path} is a link that leads out of {folder}, to {led_to}; have the file itself delivered, "
                f"or set source.links: true, if all who write to the folder may read what this user reads"
            )

    def _expect_room(self, num_bytes: int, origin: str) -> None:
        if num_bytes > self.max_bytes:
            raise DataError(
                f"{origin} holds more than {size(self.max_bytes)} of rows, unpacked, which may not fit into "
                f"memory; look who made it, have it delivered in smaller files, or raise source.max_gb"
            )

    def _renamed(self, rows: pa.Table) -> pa.Table:
        """The rows under the table's names; a column whose name another one takes is left out."""
        ours = {theirs: name for name, theirs in self.columns.items() if theirs in rows.column_names}
        kept = [name for name in rows.column_names if name in ours or name not in ours.values()]
        return rows.select(kept).rename_columns([ours.get(name, name) for name in kept])

    def _parsed(self, rows: pa.Table) -> pa.Table:
        """The rows with `cut_by` as times, where it is in the format `time`."""
        texts = rows[self.cut_by]
        if self.time in SINCE_1970:
            times = _since_1970(texts, self.time, self.cut_by)
            return rows.set_column(rows.column_names.index(self.cut_by), self.cut_by, times)
        if not _is_text(texts.type):
            return rows
        times = _without_overflow(
            texts, pc.strptime(texts, format=self.time, unit="us", error_is_null=True), self.time
        )
        if times.null_count > texts.null_count:
            first = pc.and_(times.is_null(), texts.is_valid()).index(pa.scalar(True)).as_py()
            raise pa.ArrowInvalid(
                f"{self.cut_by} of row {first + 1} is {texts[first].as_py()!r}, not a time as {self.time}"
            )
        return rows.set_column(rows.column_names.index(self.cut_by), self.cut_by, times)

    def _read_csv(self, data: bytes) -> pa.Table:
        if data.count(b'"') % 2:  # the reader would take the rest of the file for one value
            odd = next(n for n, line in enumerate(data.splitlines(), 1) if line.count(b'"') % 2)
            raise pa.ArrowInvalid(f"Row #{odd}: a quote is opened and never closed")
        dialect = {
            # with threads an error has no line number
            "read_options": pyarrow.csv.ReadOptions(use_threads=False, encoding=self.encoding),
            "parse_options": pyarrow.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
        }
        names = pyarrow.csv.open_csv(pa.BufferReader(data), **dialect).schema.names
        rows = pyarrow.csv.read_csv(
            pa.BufferReader(data),
            **dialect,
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), null_values=NULLS, strings_can_be_null=True
            ),
        )
        if self.decimal == ".":
            return rows
        with_points = [pc.replace_substring_regex(each, DECIMAL_COMMA, r"\1.\2") for each in rows.columns]
        return pa.table(with_points, schema=rows.schema)


def _since_1970(values: pa.ChunkedArray, unit: str, name: str) -> pa.ChunkedArray:
    """Returns the moments that numbers of a unit stand for; raises ArrowInvalid where one is none."""
    try:
        numbers = values.cast(pa.int64())
        times = pc.multiply(numbers, int(SINCE_1970[unit])) if unit != "ns" else pc.divide(numbers, 1000)
    except pa.ArrowInvalid:  # a part of a second
        numbers = _parsed(values, pa.float64()) if _is_text(values.type) else values.cast(pa.float64())
        times = pc.round(pc.multiply(numbers, SINCE_1970[unit])).cast(pa.int64())
    wrong = pc.or_(pc.less(times, 0), pc.greater(times, END_US)).index(pa.scalar(True)).as_py()
    if wrong >= 0:
        raise pa.ArrowInvalid(
            f"{name} of row {wrong + 1} is {values[wrong].as_py()}, not a time in {unit} since 1970"
        )
    return times.cast(pa.timestamp("us", "UTC"))


def _without_overflow(texts: pa.ChunkedArray, times: pa.ChunkedArray, form: str) -> pa.ChunkedArray:
    """Returns the times with null for a day that its month does not have, such as 30 February.

    The reader takes it for one of the first three days of the next month.
    """
    early = pc.fill_null(pc.less_equal(pc.day(times), 3), False)
    wrong = []
    for text in pc.unique(texts.filter(early)).to_pylist():
        try:
            datetime.strptime(text.strip(), form)
        except ValueError as error:
            if "day is out of range" in str(error):
                wrong.append(text)
    if not wrong:
        return times
    return pc.if_else(pc.is_in(texts, pa.array(wrong, texts.type)), pa.scalar(None, times.type), times)


def _num_bytes(file: pq.ParquetFile) -> int:
    """Returns about what the rows of a file take: a million equal values may be written as two numbers."""
    facts = file.metadata
    packed = sum(facts.row_group(number).total_byte_size for number in range(facts.num_row_groups))
    return int(max(packed, facts.num_rows * facts.num_columns * LEAST_BYTES))


def _read_json(data: bytes) -> pa.Table:
    options = pyarrow.json.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
    rows = pyarrow.json.read_json(pa.BufferReader(data), read_options=options)
    # The reader takes text that looks like a time for one, also where it is the name of a thing.
    texts = [
        pa.field(field.name, pa.string()) if pa.types.is_timestamp(field.type) else field
        for field in rows.schema
    ]
    if pa.schema(texts) == rows.schema:
        return rows
    parse = pyarrow.json.ParseOptions(explicit_schema=pa.schema(texts))
    return pyarrow.json.read_json(pa.BufferReader(data), read_options=options, parse_options=parse)


def _numbered(values: pa.ChunkedArray, label: Label) -> pa.ChunkedArray:
    """Returns the places of classes that are text; NO_CLASS where a value is none of them."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if not _is_text(values.type):
        return values
    places = pc.index_in(values, pa.array(label.classes, values.type))
    return pc.if_else(pc.and_(places.is_null(), values.is_valid()), pa.scalar(NO_CLASS, pa.int32()), places)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _cast(array: pa.ChunkedArray, kind: pa.DataType, zone: str) -> pa.ChunkedArray:
    """The column as `kind`, times in `zone`; raises pyarrow's errors."""
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_floating(array.type):
        array = _without_nan(array)
    if pa.types.is_timestamp(kind):
        return _times(array, kind, zone)
    if pa.types.is_string(kind):
        return _codes(array.cast(kind))
    if pa.types.is_boolean(kind) and not _is_text(array.type):
        array = array.cast(pa.int64())
        if not pc.all(pc.is_in(array, pa.array([0, 1, None]))).as_py():
            raise pa.ArrowInvalid("a number other than 0 and 1 is neither true nor false")
    if pa.types.is_temporal(array.type):
        raise pa.ArrowInvalid("a time is not a number")
    if pa.types.is_fixed_size_list(kind) and array.null_count:
        first = array.is_null().index(pa.scalar(True)).as_py()
        raise pa.ArrowInvalid(f"row {first + 1} is null, and Parquet keeps no missing vector")
    cast = _parsed(array, kind) if _is_text(array.type) else array.cast(kind)
    return _without_nan(cast) if pa.types.is_floating(kind) else cast


def _without_nan(array: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)


def _times(array: pa.ChunkedArray, kind: pa.DataType, zone: str) -> pa.ChunkedArray:
    """Moments without a zone, those of `zone`."""
    array = _as_delivered(array, kind)
    if pa.types.is_timestamp(array.type) and array.type.tz:
        array = pc.local_timestamp(array.cast(pa.timestamp(array.type.unit, zone)))
    return array.cast(kind, safe=False)


def _as_delivered(array: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Times with the zone that they came with, if any; text becomes `kind`, in UTC where it has offsets."""
    if _is_text(array.type):
        try:
            return _parsed(array, kind)
        except pa.ArrowInvalid as error:
            try:
                return array.cast(pa.timestamp("us", "UTC"))  # ISO 8601 with an offset
            except pa.ArrowInvalid:
                raise _mixed(array) or error from None
    if not pa.types.is_temporal(array.type) and not pa.types.is_null(array.type):
        raise pa.ArrowInvalid("a number is not a time")
    return array


def moments_us(array: pa.ChunkedArray, zone: str, *, twice: Literal["earliest", "latest"]) -> pa.ChunkedArray:
    """Returns times as microseconds since 1970 UTC; raises ArrowInvalid where they are none.

    Those without a zone are of `zone`. Where its clocks showed a time twice, `twice` says which one it is.
    """
    array, local = _as_delivered(array, pa.timestamp("us")), pa.timestamp("us")
    if not (pa.types.is_timestamp(array.type) and array.type.tz):
        array = pc.assume_timezone(array.cast(local, safe=False), zone, ambiguous=twice, nonexistent=twice)
    return array.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64())


def as_texts(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns ids as text, as a table has them, however they were delivered."""
    return _cast(array, pa.string(), "UTC")


def _mixed(texts: pa.ChunkedArray) -> pa.ArrowInvalid | None:
    """Returns the error of times of which some have an offset; None where all have, or none has."""
    have = pc.match_substring_regex(texts, r":\d\d(\.\d+)?\s*(Z|[+-]\d\d(:?\d\d)?)$")
    one, other = (have.index(pa.scalar(value)).as_py() for value in (True, False))
    if min(one, other) < 0:
        return None
    return pa.ArrowInvalid(
        f"row {one + 1} is {texts[one].as_py()!r}, with an offset, and row {other + 1} is "
        f"{texts[other].as_py()!r}, without"
    )


def _parsed(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Text as `kind`; the error names the first value that is none, found by halving."""
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        low, high = 0, len(texts)  # those before `low` can be cast, one of those before `high` cannot
        while high - low > 1:
            middle = (low + high) // 2
            try:
                texts.slice(low, middle - low).cast(kind)
                low = middle
            except pa.ArrowInvalid:
                high = middle
        raise pa.ArrowInvalid(f"row {low + 1} is {texts[low].as_py()!r}") from None


def _codes(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """Codes without the `.0` of tools that keep numbers with gaps as floats."""
    if pc.all(pc.match_substring_regex(array, r"^\d+(\.0)$")).as_py():
        return pc.replace_substring_regex(array, r"\.0$", "")
    return array


def _place(origin: str, message: str) -> str:
    """The reader's message with the file and the line first."""
    message = message.splitlines()[0] if message else "is damaged"
    if line := re.search(r"Row #(\d+): (.*)", message):
        column = re.search(r"column #(\d+)", message)
        return f"{origin}, line {line[1]}{f', field {int(column[1]) + 1}' if column else ''}: {line[2]}"
    return f"{origin}: {message}"


def _resolved(url: str) -> str:
    """The url with variables filled in; a relative path from the nearest folder above that has it.

    A night runs in a folder of its own, so that `../shared/sales.parquet`, as the user wrote it in
    the repository, is further up from there.
    """
    url = os.path.expanduser(os.path.expandvars(url))  # noqa: PTH111 - a Path would merge the slashes
    if "://" in url or "::" in url or Path(url).is_absolute():
        return url
    start = re.split(r"[*?\[{]", url)[0]
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / start).exists() or (start != url and (folder / start).parent.is_dir()):
            return str(folder / url)
    return url


def _day_in(path: str) -> date | None:
    """The last day in a path, such as `day=2025-01-31/part-0.parquet` or `sales_20250131.csv`."""
    for year, _, month, day in reversed(re.findall(r"(?<!\d)(\d{4})(-?)(\d\d)\2(\d\d)(?!\d)", path)):
        try:
            return date(int(year), int(month), int(day))
        except ValueError:
            continue
    return None


def _hour_in(path: str) -> int:
    """The hour of a folder such as `hour=07`; NO_HOUR where there is none."""
    match = re.search(r"(?:^|/)hour=([01]?\d|2[0-3])(?=/)", path)
    return int(match[1]) if match else NO_HOUR


def _warn_of_missing(day: date, hours: Collection[int], url: str, *, zone: str) -> None:
    """Warns of the hours of a day that were not delivered, where others were."""
    missing = sorted(set(hours_of(day, zone)) - set(hours))
    if missing and set(hours) - {NO_HOUR}:
        log.warning(
            "%s has no hour %s of %s; the day is taken as it is, and again once they are there, within "
            "ingest.late_days", url, ", ".join(f"{hour:02}" for hour in missing), day,
        )  # fmt: skip


_PLACE = re.compile(r"\{(?:day|hour)(?::[^}]*)?\}")
_FORMATS = {"{day}": "%Y-%m-%d", "{hour}": "%H"}
_DIGITS = {"%Y": r"\d{4}", "%m": r"\d\d", "%d": r"\d\d", "%H": r"\d\d"}
_OF_DAYS = {"%Y", "%m", "%d"}


def _form(place: re.Match[str]) -> str:
    return _FORMATS.get(place[0]) or place[0].partition(":")[2].removesuffix("}")


def _stars(place: re.Match[str]) -> str:
    """A star for each folder, as none reaches over a slash."""
    return "/".join("*" * len(_form(place).split("/")))


def _files_of_pattern(pattern: str, paths: Iterable[str]) -> Iterator["_File"]:
    """The files whose path is `pattern` with a day filled in, and perhaps an hour."""
    pieces: list[str] = []
    end = 0
    for place in _PLACE.finditer(pattern):
        pieces.append(pattern[end : place.start()].replace("%", "%%"))
        pieces += re.split(r"(%[YmdH])", _form(place))
        end = place.end()
    pieces.append(pattern[end:].replace("%", "%%"))
    places = [piece for piece in pieces if piece in _DIGITS]
    if not set(places) >= _OF_DAYS:
        raise ParamsError(f"source.url {pattern} has no complete date; write {{day}} or {{day:%Y/%m/%d}}")
    regex = re.compile("".join(f"({_DIGITS[p]})" if p in _DIGITS else re.escape(p) for p in pieces))
    for path in paths:
        match = regex.fullmatch(path.replace("%", "%%"))
        values = set(zip(places, match.groups(), strict=True)) if match else set()
        if len(values) == len(set(places)):  # a part that occurs twice has the same value twice
            parts = {name: int(value) for name, value in values}
            with contextlib.suppress(ValueError):
                moment = datetime(parts["%Y"], parts["%m"], parts["%d"], parts.get("%H", 0))
                yield _File(moment.date(), parts.get("%H", NO_HOUR), path)


class _File(NamedTuple):
    """A file, in the order in which a day's are joined."""

    day: date
    hour: int
    path: str
