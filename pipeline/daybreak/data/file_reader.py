"""Reads a file of rows as they were delivered, under the names of the workload's table."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from daybreak.contract.errors import DataError, SourceUnreachable, is_unreachable
from daybreak.contract.formats import size
from daybreak.data import casts, day_files
from daybreak.data.bad_cells import cast_each
from daybreak.data.file_formats import as_utf8
from daybreak.data.file_listing import FileListing
from daybreak.data.numbers import NumberFormat, marked
from daybreak.data.parser import PARSER
from daybreak.data.parser_process import TooLarge

HEAD_BYTES = 1 << 18  # of a CSV file, from which the dialect is detected


@dataclass(frozen=True, kw_only=True)
class FileReader:
    """Reads the files of a listing; its other fields are arguments of the source `Files`."""

    listing: FileListing
    max_bytes: int  # of an unpacked file
    columns: Mapping[str, str]
    cut_by: str
    time: str
    clock: str
    delimiter: str
    encoding: str
    numbers: NumberFormat

    def read(self, path: str) -> pa.Table:
        """Returns the rows of a file; DataError, which names file and line, if it cannot be read."""
        origin = self._origin(path)
        try:
            with self.listing.opened(path) as file:
                rows = PARSER.rows(
                    file,
                    path=path,
                    origin=origin,
                    max_bytes=self.max_bytes,
                    delimiter=self.delimiter,
                    encoding=self.encoding,
                    kept=self.columns.values(),
                )
            if len(rows):
                for name, value in day_files.keys_in(self.listing.below(path)).items():
                    if name not in rows.column_names:
                        rows = rows.append_column(name, pa.array([value] * len(rows), pa.string()))
            rows = marked(self.renamed(rows), self.numbers)
            if self.clock and self.cut_by in rows.column_names:
                rows = self._with_clock(rows, origin)
            if self.time and self.cut_by in rows.column_names:
                rows = self._with_times(rows)
        except FileNotFoundError:
            raise DataError(f"{origin} does not exist; check that it is delivered, and source.url") from None
        except pa.ArrowInvalid as error:
            raise DataError(f"{_place(origin, str(error))}; fix it, or have it delivered again") from None
        except TooLarge:
            raise self._too_large(path) from None
        except (OSError, ValueError) as error:
            failure = SourceUnreachable if is_unreachable(error) else DataError
            raise failure(f"{origin} cannot be read: {error}; check its permissions and contents") from None
        return rows

    def head(self, path: str) -> bytes:
        """Returns whole lines from the beginning of a file of CSV, unpacked; b"" if it cannot be read."""
        try:
            with self.listing.opened(path) as file:
                data = PARSER.head(file, path=path, max_bytes=self.max_bytes, num_bytes=HEAD_BYTES)
        except (OSError, ValueError, TooLarge, DataError):
            return b""  # the reader of the whole file reports the error
        data = as_utf8(data)
        return data if len(data) < HEAD_BYTES else data[: data.rfind(b"\n") + 1]

    def contents(self, path: str, file: IO[bytes]) -> bytes:
        """Returns the bytes of an opened file; DataError if they are more than `max_bytes`."""
        data = file.read(self.max_bytes + 1)
        if len(data) > self.max_bytes:
            raise self._too_large(path)
        return data

    def renamed(self, rows: pa.Table) -> pa.Table:
        """Returns the rows under the table's names, without a column whose name another one takes.

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

    def _with_times(self, rows: pa.Table) -> pa.Table:
        """The rows with `cut_by` as times, where it is in the format `time`."""
        values = rows[self.cut_by]
        times, bad = cast_each(values, lambda part: casts.times(part, self.time, name=self.cut_by))
        if bad is not None:  # `ingest` keeps the row with the text as delivered
            times = pc.if_else(bad, values.cast(pa.string()), times.cast(pa.string()))
        return rows.set_column(rows.column_names.index(self.cut_by), self.cut_by, times)

    def _too_large(self, path: str) -> DataError:
        return DataError(
            f"{self._origin(path)} holds more than {size(self.max_bytes)} of rows, unpacked, which may not "
            f"fit into memory; look who made it, have it delivered in smaller files, or raise source.max_gb"
        )

    def _origin(self, path: str) -> str:
        """The name of a file in errors: as the user wrote it, if the url names the file itself."""
        return self.listing.url if path == self.listing.root else path


def _place(origin: str, message: str) -> str:
    """The reader's message with the file and the line first."""
    message = message.splitlines()[0] if message else "is damaged"
    if line := re.search(r"Row #(\d+): (.*)", message):
        column = re.search(r"column #(\d+)", message)
        return f"{origin}, line {line[1]}{f', field {int(column[1]) + 1}' if column else ''}: {line[2]}"
    return f"{origin}: {message}"
