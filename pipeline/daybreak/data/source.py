"""Brings in files, day by day: the source `Files`.

Lists the files of a source, and assigns rows to days; file_formats.py reads a file.

A source (daybreak/contract/data_source.py) writes one partition a day, `part.parquet`: the rows as they were
delivered, errors included. `ingest` casts them by casts.py to the columns of the workload's table. The same
rows give the same bytes.
"""

import os
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Literal

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from daybreak.contract.days import check_zone, hours_of
from daybreak.contract.errors import DataError, ParamsError, SourceUnreachable, is_unreachable
from daybreak.contract.formats import counted, size
from daybreak.data import casts, day_files, file_formats
from daybreak.data.bad_cells import cast_each
from daybreak.data.day_files import DayFile
from daybreak.data.file_formats import JSON, PARQUET, SUFFIXES
from daybreak.data.numbers import NumberFormat, marked
from daybreak.data.partitions import PART
from daybreak.machines import this_machine

GLOB, PLACES = r"[*?\[]", r"[*?\[{]"  # signs of one, and of a place for a day
MEMORY_SHARE = 0.25  # of this machine's memory, for an unpacked file
MOST_PEEKED = 8  # files with rows that are searched for values in a column
HEAD_BYTES = 1 << 18  # of a CSV file, from which the dialect is detected


def write_partition(rows: pa.Table, folder: Path) -> None:
    """Writes rows to `folder/part.parquet`, in their order; the same rows give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = rows.combine_chunks()  # otherwise the chunks would change the bytes
    pq.write_table(rows, folder / PART, compression="zstd", write_page_checksum=True)


class Files:
    """Parquet, CSV or JSON lines at any URL that fsspec knows: one file, or one a day.

    One file, or several without a day in their names, are read once and cut by the column `cut_by`;
    a line without a time belongs to the day of the line before. With `{day}` in the url (or
    `{day:%Y/%m/%d}`), or in a folder or glob whose files have a day in their names, a day is
    exactly its files. A file that does not fit into memory is better delivered day by day.

    With `{hour}` in the url as well, or folders such as `day=2025-01-31/hour=07`, a day is its hours, in
    order. The newest day is not offered before hour 23 is there, since it may not be over. Once a later day
    has begun, it is offered without waiting, and a warning names the missing hours. An hour that the clocks
    of `zone` skip is not missing, and a repeated hour is one folder.

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
        self.url = url
        self.columns = dict(columns or {})
        self.cut_by, self.time, self.clock, self.zone = cut_by, time, clock, zone
        if decimal == thousands:
            raise ParamsError(
                f"source.decimal and source.thousands are both {decimal!r}, so that no number could be read; "
                f"name the other one"
            )
        self.delimiter, self.encoding = delimiter, encoding
        self.numbers = NumberFormat(decimal=decimal, thousands=thousands, nulls=tuple(nulls))
        self.links, self.days_by = links, days_by
        self.max_bytes = int(max_gb * 1e9) or int(MEMORY_SHARE * this_machine.installed_bytes())
        try:
            self._system, self._root = fsspec.core.url_to_fs(_resolved(url), **(storage or {}))
        except (ValueError, ImportError, OSError) as error:
            raise ParamsError(f"source.url {url} cannot be used: {error}; fix it in params.yaml") from None
        self._listed: dict[str, str] | None = None
        self._dated: dict[date, list[DayFile]] | None = None  # files of each day
        self._table: tuple[pa.Table, dict[date, Any]] | None = None  # all rows, and where each day's are

    def days(self) -> list[date]:
        """Returns the days that have rows, or a file, in order."""
        dated = self._files_by_day()
        if not dated:
            return sorted(self._rows_by_day()[1])
        days = sorted(dated)
        hours = [file.hour for file in dated[days[-1]]]
        return days if hours[-1] in (day_files.NO_HOUR, hours_of(days[-1], self.zone)[-1]) else days[:-1]

    def fetch(self, day: date, folder: Path) -> None:
        """Writes the rows of `day`, in their order; DataError if they are missing or cannot be read."""
        dated, wanted = self._files_by_day(), day_files.filled(self.url, day)
        if dated:
            rows = self._joined([file.path for file in files]) if (files := dated.get(day)) else None
            day_files.warn_of_missing(day, [file.hour for file in files or ()], wanted, zone=self.zone)
        else:
            all_rows, where = self._rows_by_day()
            rows = all_rows.take(where[day]) if day in where else None
        if rows is None:
            raise DataError(f"{wanted} has nothing for {day}; check that the day is delivered")
        write_partition(rows, folder)

    @property
    def omits_nulls(self) -> bool:
        """Whether a file lacks a column in which no row has a value, as one of JSON does."""
        return file_formats.is_of(self._newest_first()[0], JSON)

    @property
    def cuts(self) -> bool:
        """Whether days are cut by time, so that one that is not among `days()` has no rows."""
        return not self._files_by_day()

    def left_out(self) -> dict[str, list[str]]:
        """Returns the files below the URL that are not read, by the reason why."""
        reasons: dict[str, list[str]] = {}
        for path, reason in self._files().items():
            if reason:
                reasons.setdefault(reason, []).append(path.removeprefix(self._fixed()).lstrip("/"))
        return reasons

    def sample(self, num_rows: int, *, kinds: tuple[str, ...] = (), needed: str = "") -> pa.Table:
        """Returns the first rows of the newest file that has rows, all columns; none where no file has.

        Of the newest files, one of `kinds` with values in the column `needed` is preferred.
        """
        rows, num_read = None, 0
        for path in self._newest_first():
            if kinds and not file_formats.is_of(path, kinds):
                continue
            part = self._read(path)
            is_full = needed in part.column_names and part[needed].null_count < len(part)
            rows = part if rows is None or not len(rows) or (needed and is_full) else rows
            num_read += len(part) > 0
            if len(rows) and (not needed or is_full or num_read == MOST_PEEKED):
                break
        return (pa.table({}) if rows is None else rows).slice(0, num_rows)

    def files(self) -> list[str]:
        """Returns the paths of the files in the folder that the url names, from there; none for no folder."""
        if re.search(PLACES, self._root):
            return []
        root = self._root.rstrip("/")
        return [path.removeprefix(f"{root}/") for path in self._paths()] if self._system.isdir(root) else []

    def spread(self, num_files: int) -> list[tuple[date | None, pa.Table]]:
        """Returns the rows of up to `num_files` files, evenly spaced from the oldest to the newest.

        Each comes with the day in its name; None where files have no day in their names.
        """
        dated = self._files_by_day()
        files: list[tuple[date | None, str]] = [
            (day, file.path) for day in sorted(dated) for file in dated[day]
        ]
        files = files or [(None, path) for path in self._paths()]
        chosen = np.unique(np.linspace(0, len(files) - 1, num_files).astype(int))
        return [(files[n][0], self._read(files[n][1])) for n in chosen]

    def head(self) -> bytes:
        """Returns whole lines from the beginning of the newest file of CSV, unpacked; b"" where none is."""
        path = next(
            (each for each in self._newest_first() if not file_formats.is_of(each, (*PARQUET, *JSON))), ""
        )
        if not path:
            return b""
        self._expect_file(path)
        try:
            with file_formats.opened(self._system, path) as file:
                data: bytes = file.read(HEAD_BYTES)
        except (OSError, EOFError, pa.ArrowInvalid):
            return b""  # the reader of the whole file reports the error
        data = file_formats.as_utf8(data)
        return data if len(data) < HEAD_BYTES else data[: data.rfind(b"\n") + 1]

    def _newest_first(self) -> list[str]:
        dated = self._files_by_day()
        in_order = [file.path for day in sorted(dated) for file in dated[day]] or self._paths()
        return in_order[::-1]

    def _files_by_day(self) -> dict[date, list[DayFile]]:
        """Files of each day, in order; empty if the files are cut by time."""
        if self._dated is None:
            try:
                self._dated = self._list()
            except OSError as error:
                failure = SourceUnreachable if is_unreachable(error) else DataError
                raise failure(f"{self.url} cannot be listed: {error}; check that it can be reached") from None
        return self._dated

    def _list(self) -> dict[date, list[DayFile]]:
        paths = self._paths()
        if self.days_by == "time":
            return {}
        if day_files.is_pattern(self._root):
            files = list(day_files.of_pattern(self._root, paths))
        elif len(paths) == 1:
            return {}
        else:
            named = {path: day_files.day_in(path.removeprefix(self._fixed())) for path in paths}
            if not any(named.values()):
                return {}
            files = [DayFile(day, day_files.hour_in(path), path) for path, day in named.items() if day]
            if nameless := [path for path in paths if not named[path]]:
                raise DataError(
                    f"{self.url}: {len(nameless)} of {len(named)} files have no day in the name, such as "
                    f"{nameless[0]}; move these files away, or add a day to the names, such as 2025-01-31"
                )
        by_day: dict[date, list[DayFile]] = {}
        for file in sorted(files):
            by_day.setdefault(file.day, []).append(file)
        return by_day

    def _fixed(self) -> str:
        """The folder that all paths have in common, whose name is not looked at for a day."""
        fixed, *places = re.split(PLACES, self._root, maxsplit=1)
        return fixed.rpartition("/")[0] if places else fixed

    def _files(self) -> dict[str, str]:
        """All files that the url stands for, each with why it is not read; "" for one that is."""
        if self._listed is None:
            if day_files.is_pattern(self._root) or re.search(GLOB, self._root):
                listed = self._system.glob(day_files.globbed(self._root), detail=True)
                paths = [
                    path
                    for path, facts in listed.items()
                    if facts["type"] != "directory" or path.lower().endswith(self.suffixes)
                ]
            elif self._system.isdir(self._root):
                paths = self._system.find(self._root)
            else:
                return {self._root: ""}
            dated = (
                {file.path for file in day_files.of_pattern(self._root, paths)}
                if (day_files.is_pattern(self._root))
                else None
            )
            self._listed = {path: self._reason(path, dated) for path in sorted(paths)}
        return self._listed

    def _reason(self, path: str, dated: Collection[str] | None) -> str:
        if day_files.is_hidden(path.removeprefix(self._fixed())):
            return "begins with . or _, which marks files that are not data"
        if dated is not None:
            return "" if path in dated else f"has no day as {self.url} has it"
        return "" if path.lower().endswith(self.suffixes) else f"is not a {self.kind}"

    def _paths(self) -> list[str]:
        """The files that are read, in order."""
        files = self._files()
        paths = [path for path, reason in files.items() if not reason]
        if not paths:
            what = "matches no file" if day_files.is_pattern(self._root) else f"has no {self.kind}"
            words = left_out_in_words(self.left_out())
            raise DataError(
                f"{self.url} {what}{f' ({words})' if words else ''}; check that the data is delivered, and "
                f"source.url"
            )
        return paths

    def _rows_by_day(self) -> tuple[pa.Table, dict[date, Any]]:
        """All rows, and the row numbers of each day; read once."""
        if self._table is None:
            paths = self._paths()
            parts = [self._read(path) for path in paths]
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
        parts = parts or [self._read(path) for path in paths]
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

    def _read(self, path: str) -> pa.Table:
        """The rows of one file, under the table's names."""
        origin = self.url if path == self._root else path
        self._expect_file(path)
        try:
            with file_formats.opened(self._system, path) as file:
                if path.lower().endswith(PARQUET):
                    delivered = pq.ParquetFile(file)
                    self._expect_room(file_formats.num_bytes(delivered), origin)
                    rows = file_formats.without_views(delivered.read())
                else:
                    data = file.read(self.max_bytes + 1)
                    self._expect_room(len(data), origin)
                    rows = (
                        file_formats.read_json(data)
                        if file_formats.is_of(path, JSON)
                        else (
                            file_formats.read_csv(
                                data,
                                delimiter=self.delimiter,
                                encoding=self.encoding,
                                kept={*self.columns.values()},
                            )
                        )
                    )
            if len(rows):
                for name, value in day_files.keys_in(path.removeprefix(self._fixed())).items():
                    if name not in rows.column_names:
                        rows = rows.append_column(name, pa.array([value] * len(rows), pa.string()))
            rows = self._renamed(rows)
            rows = marked(rows, self.numbers)
            if self.clock and self.cut_by in rows.column_names:
                rows = self._with_clock(rows, origin)
            if self.time and self.cut_by in rows.column_names:
                rows = self._parsed(rows)
        except FileNotFoundError:
            raise DataError(f"{origin} does not exist; check that it is delivered, and source.url") from None
        except pa.ArrowInvalid as error:
            raise DataError(f"{_place(origin, str(error))}; fix it, or have it delivered again") from None
        except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
            failure = SourceUnreachable if is_unreachable(error) else DataError
            raise failure(f"{origin} cannot be read: {error}; check its permissions and contents") from None
        return rows

    def _expect_file(self, path: str) -> None:
        """Raises DataError where a local path is a device or a pipe, or a link that leads out of the folder.

        A single file that the url names may be a link, since params.yaml names it.
        """
        if not isinstance(self._system, LocalFileSystem) or not Path(path).exists():
            return
        if not Path(path).is_file():
            raise DataError(f"{path} is not a file but a pipe, a device or a folder; move it away")
        root = Path(re.split(PLACES, self._root)[0])
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
        """The rows under the table's names; a column whose name another one takes is left out.

        Columns of one name are numbered, so that none is taken for the other.
        """
        names = rows.column_names
        if len(set(names)) < len(names):
            nth = [(name, names[: n + 1].count(name), names.count(name)) for n, name in enumerate(names)]
            rows = rows.rename_columns(
                [f"{name} ({n} of {num})".strip() if num > 1 else name for name, n, num in nth]
            )
        ours = {theirs: name for name, theirs in self.columns.items() if theirs in rows.column_names}
        kept = [name for name in rows.column_names if name in ours or name not in ours.values()]
        return rows.select(kept).rename_columns([ours.get(name, name) for name in kept])

    def _with_clock(self, rows: pa.Table, origin: str) -> pa.Table:
        """The rows with the time of day in `cut_by`, and without the column `clock`."""
        if rows.column_names.count(self.clock) != 1:
            raise DataError(
                f"{origin} has no column {self.clock} of the time of day, or two, among its columns "
                f"{', '.join(rows.column_names)}; name it in source.clock"
            )
        times = casts.with_clock(rows[self.cut_by], rows[self.clock])
        place = rows.column_names.index(self.cut_by)
        return rows.set_column(place, self.cut_by, times).drop_columns([self.clock])

    def _parsed(self, rows: pa.Table) -> pa.Table:
        """The rows with `cut_by` as times, where it is in the format `time`."""
        values = rows[self.cut_by]
        times, bad = cast_each(values, lambda part: casts.times(part, self.time, name=self.cut_by))
        if bad is not None:  # `ingest` keeps the row with the text as delivered
            times = pc.if_else(bad, values.cast(pa.string()), times.cast(pa.string()))
        return rows.set_column(rows.column_names.index(self.cut_by), self.cut_by, times)


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
    for n, part in enumerate(parts):
        same = next((k for k in range(n) if len(part) > 1 and part.equals(parts[k])), None)
        if same is not None:
            raise DataError(
                f"{paths[same]} and {paths[n]} hold the same {len(part):,} rows{of}, which would be learned "
                f"from twice; move one of the files away"
            )


def left_out_in_words(left_out: Mapping[str, Sequence[str]]) -> str:
    """Returns a sentence on files that are not read, and why; "" where all are.

    >>> left_out_in_words({"is not a file of CSV": ["notes.txt", "old/a.xls"]})
    '2 files are left out: notes.txt and 1 more, as each is not a file of CSV'
    """
    if not left_out:
        return ""
    num = sum(map(len, left_out.values()))
    which = [
        f"{paths[0]}{f' and {len(paths) - 1:,} more, as each' if len(paths) > 1 else ', as it'} {reason}"
        for reason, paths in left_out.items()
    ]
    return f"{counted(num, 'file')} {'is' if num == 1 else 'are'} left out: {'; '.join(which)}"


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
    start = re.split(PLACES, url)[0]
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / start).exists() or (start != url and (folder / start).parent.is_dir()):
            return str(folder / url)
    return url
