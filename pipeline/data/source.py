"""Defines the protocol `Source` of where data comes from, and implements it for files.

A source writes one partition a day, `part.parquet`, in the columns of `SCHEMA`: the lines of a
shop's invoices as they were delivered, errors included. The same rows give the same bytes.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Protocol

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from pipeline.contract.errors import DataError, ParamsError

PART = "part.parquet"
SCHEMA = pa.schema(
    [
        ("invoice", pa.string()),  # begins with C: a cancellation; with A: an adjustment
        ("item", pa.string()),
        ("description", pa.string()),
        ("quantity", pa.int64()),
        ("time", pa.timestamp("us")),
        ("price", pa.float64()),  # of one piece
        ("customer", pa.string()),  # null: a guest
        ("country", pa.string()),
    ]
)
SUFFIXES = (".parquet", ".pq", ".csv", ".csv.gz", ".tsv", ".tsv.gz")
NULLS = ["", "NULL", "null", "NaN", "nan"]  # not NA: that is a country


class Source(Protocol):
    """A place that data comes from, one day at a time."""

    def days(self) -> Iterable[date]:
        """Returns the days that have data, in order."""

    def fetch(self, day: date, folder: Path) -> None:
        """Writes the rows of `day` to `folder/part.parquet`; the same rows give the same bytes."""


def write_partition(table: pa.Table, folder: Path) -> None:
    """Writes rows in the columns of `SCHEMA` to `folder/part.parquet`, in their order."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = table.combine_chunks()  # otherwise the chunks would change the bytes
    pq.write_table(rows, folder / PART, compression="zstd")


def conform(table: pa.Table, columns: Mapping[str, str], *, origin: str, time: str = "") -> pa.Table:
    """Returns the rows of `table` in the columns and types of `SCHEMA`.

    Args:
        table: as delivered.
        columns: name in `table` of each canonical column.
        origin: what an error calls the table.
        time: strptime format of times that are text; ISO 8601 if empty. Times with a zone become UTC.

    Raises:
        DataError: columns are missing or of another type; the sentence names all of them.
    """
    _require(table.column_names, columns, origin)
    arrays, broken = [], []
    for field in SCHEMA:
        array = table[columns[field.name]]
        try:
            arrays.append(_cast(array, field.type, time))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = str(error).splitlines()[0]
            broken.append(f"{_both(field.name, columns)} is {array.type}, not {field.type}: {reason}")
    if broken:
        raise DataError(
            f"{origin} has another schema: {'; '.join(broken)}; have it delivered in the old types, "
            f"or name the right columns under source.columns in params.yaml"
        )
    return pa.table(arrays, schema=SCHEMA)


class Files:
    """Parquet or CSV files at any URL that fsspec knows: one file, or one a day.

    One file, or several without a day in their names, are read once and cut by the column `time`;
    a line without a time belongs to the day of the line before. With `{day}` in the url (or
    `{day:%Y/%m/%d}`), or in a folder or glob whose files have a day in their names, a day is
    exactly its files. A file that does not fit into memory is better delivered day by day.

    Args:
        url: `s3://shop/sales/{day}.parquet`, `sales/*.csv`, `../sales.parquet`; variables of the
            environment are filled in; a relative path is searched here, then in the folders above.
        columns: canonical name to the name in the files, where they differ.
        time: strptime format of times that are text, such as `%d/%m/%Y %H:%M`; ISO 8601 if empty.
        delimiter: between the fields of a CSV file.
        encoding: of a CSV file.
        storage: options of the fsspec file system; credentials belong in the environment.
    """

    def __init__(
        self,
        url: str,
        *,
        columns: Mapping[str, str] | None = None,
        time: str = "",
        delimiter: str = ",",
        encoding: str = "utf8",
        storage: Mapping[str, Any] | None = None,
    ) -> None:
        unknown = sorted(set(columns or ()) - set(SCHEMA.names))
        if unknown:
            raise ParamsError(
                f"source.columns names {', '.join(unknown)}, but the columns are {', '.join(SCHEMA.names)}; "
                f"write canonical names on the left, names of the files on the right"
            )
        if time and "%" not in time:
            raise ParamsError(
                f"source.time is {time!r}, which is not a format such as %d/%m/%Y %H:%M; "
                f"name a column under source.columns instead, as time: {time}"
            )
        self.url = url
        self.columns = {name: (columns or {}).get(name, name) for name in SCHEMA.names}
        self.time, self.delimiter, self.encoding = time, delimiter, encoding
        try:
            self._system, self._root = fsspec.core.url_to_fs(_resolved(url), **(storage or {}))
        except (ValueError, ImportError, OSError) as error:
            raise ParamsError(f"source.url {url} cannot be used: {error}; fix it in params.yaml") from None
        self._dated: dict[date, list[str]] | None = None  # files of each day
        self._table: tuple[pa.Table, dict[date, Any]] | None = None  # all rows, and where each day's are

    def days(self) -> list[date]:
        """Returns the days that have rows, or a file, in order."""
        return sorted(self._files_by_day() or self._rows_by_day()[1])

    def fetch(self, day: date, folder: Path) -> None:
        """Writes the rows of `day`, in their order; DataError if they are missing or cannot be read."""
        dated = self._files_by_day()
        if dated:
            parts = [self._read(path) for path in dated.get(day, [])]
            rows = pa.concat_tables(parts) if parts else None
        else:
            table, where = self._rows_by_day()
            rows = table.take(where[day]) if day in where else None
        if rows is None:
            raise DataError(f"{self.url} has nothing for {day}; check that the day is delivered")
        write_partition(rows, folder)

    def _files_by_day(self) -> dict[date, list[str]]:
        """Files of each day; empty if the files are cut by time."""
        if self._dated is None:
            try:
                self._dated = self._list()
            except OSError as error:
                raise DataError(
                    f"{self.url} cannot be listed: {error}; check that it can be reached"
                ) from None
        return self._dated

    def _list(self) -> dict[date, list[str]]:
        if "{day" in self._root:
            dated = dict(_days_of_pattern(self._root, self._system.glob(_PLACE.sub("*", self._root))))
        elif len(paths := self._paths()) == 1:
            return {}
        else:
            named = {path: _day_in(path.removeprefix(self._root)) for path in paths}
            if not any(named.values()):
                return {}
            dated = {path: day for path, day in named.items() if day}
            if nameless := [path for path in paths if path not in dated]:
                raise DataError(
                    f"{self.url}: {len(nameless)} of {len(named)} files have no day in their names, such as "
                    f"{nameless[0]}; move them away, or name them with a day such as 2025-01-31"
                )
        if not dated:
            raise DataError(f"{self.url} matches no file; check that the data is delivered, and source.url")
        by_day: dict[date, list[str]] = {}
        for path, day in sorted(dated.items()):
            by_day.setdefault(day, []).append(path)
        return by_day

    def _paths(self) -> list[str]:
        """The files that the url stands for, in order."""
        if any(sign in self._root for sign in "*?["):
            paths = [path for path in self._system.glob(self._root) if path.endswith(SUFFIXES)]
        elif self._system.isdir(self._root):
            paths = [path for path in self._system.find(self._root) if path.endswith(SUFFIXES)]
        else:
            return [self._root]
        if not paths:
            raise DataError(f"{self.url} has no parquet or CSV file; check that the data is delivered")
        return sorted(paths)

    def _rows_by_day(self) -> tuple[pa.Table, dict[date, Any]]:
        """All rows, and the row numbers of each day; read once."""
        if self._table is None:
            table = pa.concat_tables([self._read(path) for path in self._paths()]).combine_chunks()
            filled = pc.fill_null_backward(pc.fill_null_forward(table["time"]))
            numbers = filled.cast(pa.date32()).cast(pa.int32()).drop_null().to_numpy()
            order = np.argsort(numbers, kind="stable")
            values, starts = np.unique(numbers[order], return_index=True)
            groups = np.split(order, starts[1:]) if len(values) else []
            epoch = date(1970, 1, 1)
            days = [epoch + timedelta(days=int(value)) for value in values]
            self._table = table, dict(zip(days, groups, strict=True))
        return self._table

    def _read(self, path: str) -> pa.Table:
        """The rows of one file, in the columns of `SCHEMA`."""
        origin = self.url if path == self._root else path
        parquet = path.endswith((".parquet", ".pq"))
        try:
            with self._system.open(path, "rb", compression=None if parquet else "infer") as file:
                table = self._read_parquet(file, origin) if parquet else self._read_csv(file)
        except FileNotFoundError:
            raise DataError(f"{origin} does not exist; check that it is delivered, and source.url") from None
        except pa.ArrowInvalid as error:
            raise DataError(f"{_place(origin, str(error))}; fix it, or have it delivered again") from None
        except (OSError, EOFError, UnicodeError) as error:
            raise DataError(f"{origin} cannot be read: {error}; check its permissions and contents") from None
        return conform(table, self.columns, origin=origin, time=self.time)

    def _read_parquet(self, file: Any, origin: str) -> pa.Table:
        opened = pq.ParquetFile(file)
        _require(opened.schema_arrow.names, self.columns, origin)
        return opened.read(columns=list(dict.fromkeys(self.columns.values())))

    def _read_csv(self, file: Any) -> pa.Table:
        data = file.read()
        if data.count(b'"') % 2:  # the reader would take the rest of the file for one value
            odd = next(n for n, line in enumerate(data.splitlines(), 1) if line.count(b'"') % 2)
            raise pa.ArrowInvalid(f"Row #{odd}: a quote is opened and never closed")
        return pyarrow.csv.read_csv(
            pa.BufferReader(data),
            # with threads an error has no line number
            read_options=pyarrow.csv.ReadOptions(use_threads=False, encoding=self.encoding),
            parse_options=pyarrow.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={self.columns[field.name]: field.type for field in SCHEMA},  # codes stay text
                null_values=NULLS,
                strings_can_be_null=True,
                timestamp_parsers=[self.time] if self.time else None,
            ),
        )


def _require(names: list[str], columns: Mapping[str, str], origin: str) -> None:
    """Raises DataError unless each column is there once."""
    missing = [_both(name, columns) for name in SCHEMA.names if names.count(columns[name]) != 1]
    if missing:
        raise DataError(
            f"{origin} has another schema: no {', no '.join(missing)} among its columns {', '.join(names)}; "
            f"have it delivered in the old one, or name the new columns under source.columns in params.yaml"
        )


def _both(name: str, columns: Mapping[str, str]) -> str:
    return columns[name] if columns[name] == name else f"{columns[name]} ({name})"


def _cast(array: pa.ChunkedArray, kind: pa.DataType, time: str) -> pa.ChunkedArray:
    """The column as `kind`; raises pyarrow's errors."""
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    if pa.types.is_timestamp(kind):
        if text and time:
            return pc.strptime(array, format=time, unit="us")
        if not text and not pa.types.is_temporal(array.type):
            raise pa.ArrowInvalid("a number is not a time")
        return array.cast(kind, safe=False)
    if pa.types.is_string(kind):
        return _codes(array.cast(kind))
    return array.cast(kind)


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


_PLACE = re.compile(r"\{day(?::([^}]*))?\}")
_DIGITS = {"%Y": r"\d{4}", "%m": r"\d\d", "%d": r"\d\d"}


def _days_of_pattern(pattern: str, paths: Iterable[str]) -> Iterator[tuple[str, date]]:
    """Each path that is `pattern` with a day filled in, and the day."""
    pieces: list[str] = []
    for number, part in enumerate(_PLACE.split(pattern)):  # text, format, text, format, ..., text
        pieces += re.split(r"(%[Ymd])", part or "%Y-%m-%d") if number % 2 else [part.replace("%", "%%")]
    places = [piece for piece in pieces if piece in _DIGITS]
    if set(places) != set(_DIGITS):
        raise ParamsError(f"source.url {pattern} has no complete date; write {{day}} or {{day:%Y/%m/%d}}")
    regex = re.compile("".join(f"({_DIGITS[p]})" if p in _DIGITS else re.escape(p) for p in pieces))
    for path in paths:
        match = regex.fullmatch(path.replace("%", "%%"))
        values = set(zip(places, match.groups(), strict=True)) if match else set()
        if len(values) == len(_DIGITS):  # a part of the day that occurs twice has the same value twice
            parts = dict(values)
            with contextlib.suppress(ValueError):
                yield path, date(int(parts["%Y"]), int(parts["%m"]), int(parts["%d"]))
