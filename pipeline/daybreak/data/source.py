"""Brings in files, day by day: the source `Files`.

Assigns rows to days; file_listing.py lists the files, and file_reader.py reads one.

A source (daybreak/contract/data_source.py) writes one partition a day, `part.parquet`: the rows as they were
delivered, errors included. `ingest` casts them by casts.py to the columns of the workload's table. The same
rows give the same bytes.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from daybreak.contract.days import check_zone, hours_of
from daybreak.contract.errors import DataError, ParamsError
from daybreak.data import casts, day_files, file_formats
from daybreak.data.bad_cells import cast_each
from daybreak.data.file_formats import JSON, PARQUET, SUFFIXES
from daybreak.data.file_listing import FileListing
from daybreak.data.file_reader import FileReader
from daybreak.data.numbers import NumberFormat
from daybreak.data.partitions import PART
from daybreak.machines import this_machine

MEMORY_SHARE = 0.25  # of this machine's memory, for an unpacked file
MOST_UNMARKED = 31  # newest days that are searched for one with its `success_file`
MOST_PEEKED = 8  # files with rows that are searched for values in a column


def write_partition(rows: pa.Table, folder: Path) -> None:
    """Writes rows to `folder/part.parquet`, in their order; the same rows give the same bytes.

    Vectors of a fixed size of which some are null become lists, since Parquet keeps no missing vector.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for place, field in enumerate(rows.schema):
        if pa.types.is_fixed_size_list(field.type) and rows.column(place).null_count:
            listed = field.with_type(pa.list_(field.type.value_type))
            rows = rows.set_column(place, listed, rows.column(place).cast(listed.type))
    rows = rows.combine_chunks()  # otherwise the chunks would change the bytes
    pq.write_table(rows, folder / PART, compression="zstd", write_page_checksum=True)


class Files:
    """Parquet, CSV or JSON lines at any URL that fsspec knows: one file, or one a day.

    One file, or several without a day in their names, are read once and cut by the column `cut_by`;
    a line without a time belongs to the day of the line before. With `{day}` in the url (or
    `{day:%Y/%m/%d}`), or in a folder or glob whose files have a day in their names, a day is
    exactly its files. A file that does not fit into memory is better delivered day by day.

    With `{hour}` in the url as well, or folders such as `day=2025-01-31/hour=07`, a day is its hours, in
    order. The newest day is not offered before hour 23 is there, since it may not be over, nor before all
    hours are that the day before has. Once a later day has begun, it is offered without waiting, and a
    warning names the missing hours. An hour that the clocks of `zone` skip is not missing, and a repeated
    hour is one folder.

    Names of files and folders that begin with `.` or `_` are no data, as for Spark. `left_out` says of every
    other file below the URL that is not read why not.

    All columns are delivered, also, as text, keys in names of folders, such as `shop` of `shop=north`, if the
    files have no such column. Columns of parquet keep their types; columns of CSV are text, which `ingest`
    casts to the types of the workload's table.

    Args:
        url: `s3://shop/sales/{day}.parquet`, `logs/{day:%Y/%m/%d}/{hour}.jsonl`, `sales/*.csv`,
            `../sales.jsonl`; variables of the environment are filled in; a relative path is searched here,
            then in the folders above.
        columns: name of a column in the table to its name in the files, where these differ.
        cut_by: the table's name of the column whose day a row belongs to.
        time: strptime format of `cut_by` where it is text, such as `%d/%m/%Y %H:%M`; ISO 8601 if empty. `%z`
            reads an offset. `s`, `ms`, `us` or `ns` for a number of these units since 1970, UTC.
        clock: the table's name of a column with the time of day, where `cut_by` has the date alone; both
            become `cut_by`, and `time` is the format of the date, a blank and the time of day.
        zone: time zone in which a day begins, for times that have a zone; the table's zone.
        delimiter: between the fields of a CSV file.
        decimal: sign between a whole number and its fraction in columns of text that the table declares as
            numbers.
        thousands: separator of thousands there: `,`, `.`, a blank of any width, or an apostrophe.
        nulls: further words for a missing value there, besides known ones such as NA and -.
        encoding: of a CSV file without the marks of UTF-16.
        days_by: how a row gets its day: by the `name` of its file, if it has a day, or by the `time` of each
            row, if files are weekly, or named by the day on which they were written.
        storage: options of the fsspec file system; credentials belong in the environment.
        success_file: name of an empty file that is written beside a day's files once they are whole, as
            `_SUCCESS`, or `{day}.done`. No day is offered that is newer than the newest with such a file.
        links: follow links that lead out of a local folder, as git-annex makes them. With links followed,
            whoever may write to the folder can have any file read that the pipeline may read.
        max_gb: largest unpacked file; if 0, a quarter of the memory of this machine, or of this container if
            that is less.
    """

    suffixes = SUFFIXES  # of the files in a folder that are read, in small letters
    kind = "file of parquet, CSV or JSON"  # what an error calls such a file

    def __init__(
        self,
        url: str,
        *,
        columns: Mapping[str, str] | None = None,
        cut_by: str = "time",
        time: str = "",
        clock: str = "",
        zone: str = "UTC",
        delimiter: str = ",",
        decimal: Literal[".", ","] = ".",
        thousands: Literal["", ",", ".", " ", "'"] = "",
        nulls: Sequence[str] = (),
        encoding: str = "utf8",
        days_by: Literal["name", "time"] = "name",
        storage: Mapping[str, Any] | None = None,
        success_file: str = "",
        links: bool = False,
        max_gb: float = 0,
    ) -> None:
        if time and "%" not in time and time not in casts.SINCE_1970:
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
        expect_encoding(encoding, of="source.encoding")
        if days_by not in ("name", "time"):
            raise ParamsError(f"source.days_by is {days_by!r}; write name or time")
        if decimal == thousands:
            raise ParamsError(
                f"source.decimal and source.thousands are both {decimal!r}, so that no number could be read; "
                f"name the other one"
            )
        self.cut_by, self.zone, self.success_file = cut_by, zone, success_file
        self.listing = FileListing(
            url, suffixes=self.suffixes, kind=self.kind, days_by=days_by, storage=storage, links=links
        )
        self.url = self.listing.url
        self.reader = FileReader(
            listing=self.listing,
            max_bytes=int(max_gb * 1e9) or int(MEMORY_SHARE * this_machine.installed_bytes()),
            columns=dict(columns or {}),
            cut_by=cut_by,
            time=time,
            clock=clock,
            delimiter=delimiter,
            encoding=encoding,
            numbers=NumberFormat(decimal=decimal, thousands=thousands, nulls=tuple(nulls)),
        )
        self._table: tuple[pa.Table, dict[date, Any]] | None = None  # all rows, and where each day's are

    def days(self) -> list[date]:
        """Returns the days that have rows, or a file, in order."""
        dated = self.listing.by_day()
        if not dated and self.success_file:
            raise ParamsError(
                f"source.success_file needs files with a day in their names, and {self.url} has none; leave "
                f"it out, and set ingest.newer_day: true"
            )
        if not dated:
            return sorted(self._rows_by_day()[1])
        days = sorted(dated)
        if self.success_file:
            return self._up_to_success(days)
        return days if self._is_whole(days[-1]) else days[:-1]

    def fetch(self, day: date, folder: Path) -> None:
        """Writes the rows of `day`, in their order; DataError if they are missing or cannot be read."""
        dated, wanted = self.listing.by_day(), day_files.filled(self.url, day)
        if dated:
            rows = self._joined([file.path for file in files]) if (files := dated.get(day)) else None
            day_files.warn_of_missing(day, [file.hour for file in files or ()], wanted, zone=self.zone)
        else:
            all_rows, where = self._rows_by_day()
            rows = all_rows.take(where[day]) if day in where else None
        if rows is None:
            raise DataError(f"{wanted} has nothing for {day}; check that the day is delivered")
        write_partition(rows, folder)

    def version(self, day: date) -> str:
        """Returns a digest of the names, sizes and times of a day's files, or of all where days are cut."""
        files = self.listing.by_day().get(day)
        return self.listing.version([file.path for file in files] if files else self.listing.paths())

    @property
    def omits_nulls(self) -> bool:
        """Whether a file lacks a column in which no row has a value, as one of JSON does."""
        return file_formats.is_of(self._newest_first()[0], JSON)

    @property
    def cuts(self) -> bool:
        """Whether days are cut by time, so that one that is not among `days()` has no rows."""
        return not self.listing.by_day()

    def left_out(self) -> dict[str, list[str]]:
        """Returns the files below the URL that are not read, by the reason why."""
        return self.listing.left_out()

    def sample(self, num_rows: int, *, kinds: tuple[str, ...] = (), needed: str = "") -> pa.Table:
        """Returns the first rows of the newest file that has rows, all columns; none where no file has.

        Of the newest files, one of `kinds` with values in the column `needed` is preferred.
        """
        rows, num_read = None, 0
        for path in self._newest_first():
            if kinds and not file_formats.is_of(path, kinds):
                continue
            part = self.reader.read(path)
            is_full = needed in part.column_names and part[needed].null_count < len(part)
            rows = part if rows is None or not len(rows) or (needed and is_full) else rows
            num_read += len(part) > 0
            if len(rows) and (not needed or is_full or num_read == MOST_PEEKED):
                break
        return (pa.table({}) if rows is None else rows).slice(0, num_rows)

    def spread(self, num_files: int) -> list[tuple[date | None, pa.Table]]:
        """Returns the rows of up to `num_files` files, evenly spaced from the oldest to the newest.

        Each comes with the day in its name; None where files have no day in their names.
        """
        files = self.listing.in_order()
        chosen = np.unique(np.linspace(0, len(files) - 1, num_files).astype(int))
        return [(files[n][0], self.reader.read(files[n][1])) for n in chosen]

    def head(self) -> bytes:
        """Returns whole lines from the beginning of the newest file of CSV, unpacked; b"" where none is."""
        path = next(
            (each for each in self._newest_first() if not file_formats.is_of(each, (*PARQUET, *JSON))), ""
        )
        return self.reader.head(path) if path else b""

    def _up_to_success(self, days: list[date]) -> list[date]:
        """Returns the days up to the newest that is whole by its files `success_file`; none without any."""
        for number in range(len(days), max(0, len(days) - MOST_UNMARKED), -1):
            if self._is_marked(days[number - 1], is_newest=number == len(days)):
                return days[:number]
        return []

    def _is_marked(self, day: date, *, is_newest: bool) -> bool:
        """Returns whether all files of a day have the file `success_file` beside them, of all hours.

        Hours that are missing once a later day has begun had no rows, as for days without marks.
        """
        files, name = self.listing.by_day()[day], day_files.filled(self.success_file, day)
        marks = [self.listing.mark_of(file, name) for file in files]
        of_hours = any(day_files.hour_in(f"{mark}/") != day_files.NO_HOUR for mark in marks)
        return all(marks) and (not of_hours or not is_newest or self._is_whole(day))

    def _is_whole(self, day: date) -> bool:
        """Returns whether a day has its last hour, and no gap that the day before has not, as of a night."""
        dated, due = self.listing.by_day(), hours_of(day, self.zone)
        hours = {file.hour for file in dated[day]}
        if day_files.NO_HOUR in hours:
            return True
        before = max((other for other in dated if other < day), default=None)
        usual = {file.hour for file in dated[before]} & set(due) if before else set()
        return due[-1] in hours and not (usual or set(due)) - hours

    def _newest_first(self) -> list[str]:
        return [path for _, path in reversed(self.listing.in_order())]

    def _rows_by_day(self) -> tuple[pa.Table, dict[date, Any]]:
        """All rows, and the row numbers of each day; read once."""
        if self._table is None:
            paths = self.listing.paths()
            parts = [self.reader.read(path) for path in paths]
            rows = self._joined(paths, parts).combine_chunks()
            filled = pc.fill_null_backward(pc.fill_null_forward(self._times(rows)))
            numbers = filled.cast(pa.date32()).cast(pa.int32()).drop_null().to_numpy()
            order = np.argsort(numbers, kind="stable")
            values, starts = np.unique(numbers[order], return_index=True)
            groups = np.split(order, starts[1:]) if len(values) else []
            epoch = date(1970, 1, 1)
            days = [epoch + timedelta(days=int(value)) for value in values]
            self._table = rows, dict(zip(days, groups, strict=True))
            if len(parts) > 1:
                ends = np.cumsum([len(part) for part in parts])
                for day, group in self._table[1].items():
                    of_file = np.searchsorted(ends, group, side="right")
                    numbers = np.unique(of_file)
                    _expect_once(
                        [paths[number] for number in numbers],
                        [rows.take(group[of_file == number]) for number in numbers],
                        of=f" of {day}",
                    )
        return self._table

    def _times(self, rows: pa.Table) -> pa.ChunkedArray:
        """The moments of `cut_by`, by which rows are cut into days; null where a row has none."""
        if rows.column_names.count(self.cut_by) != 1:
            raise DataError(
                f"{self.url} has no column {self.cut_by} to cut days by, or two, among its columns "
                f"{', '.join(rows.column_names)}; name the column of the time in source.cut_by, or deliver a "
                f"file a day"
            )
        try:
            return cast_each(rows[self.cut_by], lambda values: casts.in_zone(values, self.zone))[0]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(
                f"{self.url} cannot be cut into days: {self.cut_by} is {rows[self.cut_by].type}, not times: "
                f"{str(error).splitlines()[0]}; fix it, name its format in source.time, or name another "
                f"column in source.cut_by"
            ) from None

    def _joined(self, paths: list[str], parts: "list[pa.Table] | None" = None) -> pa.Table:
        """The rows of several files, one after the other."""
        parts = parts or [self.reader.read(path) for path in paths]
        if not self.omits_nulls:
            self._expect_same_columns(paths, parts)
        _expect_once(paths, parts)
        try:
            return casts.joined(parts, zone=self.zone)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise DataError(
                f"{paths[0]} to {paths[-1]} have columns of different types: {str(error).splitlines()[0]}; "
                f"have all files delivered with the same types"
            ) from None

    def _expect_same_columns(self, paths: list[str], parts: list[pa.Table]) -> None:
        """Raises DataError where a file has other columns than most have."""
        names = [frozenset(part.column_names) for part in parts]
        usual = Counter(names).most_common(1)[0][0]
        odd = next((n for n, each in enumerate(names) if each != usual), None)
        if odd is not None:
            raise DataError(
                f"{paths[odd]} has other columns than {paths[names.index(usual)]}: "
                f"{other_columns(names[odd], usual)}; have all files delivered with the same columns"
            )


def expect_encoding(name: str, *, of: str) -> None:
    """Raises ParamsError, which names the key `of`, if `name` is not a known text encoding."""
    try:
        "".encode(name)
    except LookupError:
        raise ParamsError(
            f"{of} is {name!r}, which is not a known encoding; write one such as utf8, cp1252, latin-1 or "
            f"utf-16-le"
        ) from None


def other_columns(names: Collection[str], usual: Collection[str]) -> str:
    """Returns in words which columns are there that usually are not, and which are missing."""
    new, missing = sorted(set(names) - set(usual)), sorted(set(usual) - set(names))
    words = [f"it has {', '.join(new)}"] if new else []
    return " and ".join([*words, *([f"lacks {', '.join(missing)}"] if missing else [])])


def _expect_once(paths: Sequence[str], parts: Sequence[pa.Table], *, of: str = "") -> None:
    """Raises DataError where two files hold the same rows, as a copy and a packed one beside the other do."""
    alike: dict[tuple[int, str], list[int]] = {}  # parts that may be the same, by number of rows and the ends
    for n, part in enumerate(parts):
        if len(part) < 2:
            continue
        rows = part.slice(0, 1), part.slice(len(part) - 1)
        ends = str([values.combine_chunks().to_string() for row in rows for values in row.columns])
        others = alike.setdefault((len(part), ends), [])
        same = next((k for k in others if part.equals(parts[k])), None)
        if same is not None:
            raise DataError(
                f"{paths[same]} and {paths[n]} hold the same {len(part):,} rows{of}, which would be learned "
                f"from twice; move one of the files away"
            )
        others.append(n)
