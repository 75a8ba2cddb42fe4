"""Joins other tables to a day's rows as of their time, as the weather to sales: the source `AsOf`.

A row gets the newest row of the other table that has its key and was known by then:

    time + known_after <= the row's time,    the row's time - time <= max_age

So nothing of the future leaks into a row, and later rows of the other table change no row. Moments are
compared across zones. A time without a zone is in `zone`; where clocks showed a time twice, a row gets the
earlier moment, and the other table the later.

The join is made when a day comes in: all that follows sees a table of a few columns more.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ValidationError

from daybreak.contract import records
from daybreak.contract.data_source import Source
from daybreak.contract.errors import DataError, ParamsError, SourceUnreachable
from daybreak.contract.sections import A_CENTURY, Plug
from daybreak.contract.table import codes
from daybreak.data.casts import moments_us
from daybreak.data.partitions import PART
from daybreak.data.source import write_partition

Names = Sequence[str] | Mapping[str, str]  # ours, or ours to theirs
MAX_HOURS = 24 * A_CENTURY
MICROSECOND, DAY = timedelta(microseconds=1), timedelta(days=1)


class OtherTable:
    """A table that is joined.

    Args:
        rows: the source of its rows.
        columns: columns to join, as a list, or the new name of each to its name here.
        max_age_hours: largest age of a row here at the time of ours; older rows are not joined.
        time: column with the moment of a row.
        key: columns that must be equal, as a list, or our name of each to its name here.
        known_after_hours: how long after its time a row is known; 24 for figures of a whole day.
    """

    def __init__(
        self,
        rows: Any,
        *,
        columns: Names,
        max_age_hours: float,
        time: str = "time",
        key: Names = (),
        known_after_hours: float = 0,
    ) -> None:
        if not 0 <= known_after_hours <= max_age_hours:
            raise ParamsError(
                f"known_after_hours is {known_after_hours:g} and max_age_hours {max_age_hours:g} under "
                f"source.tables, so that no row could be joined; raise max_age_hours"
            )
        self.key, self.columns, self.time = _by_our_name(key), _by_our_name(columns), time
        if not max_age_hours <= MAX_HOURS:
            raise ParamsError(
                f"max_age_hours is {max_age_hours:g} under source.tables; write a number of hours up to "
                f"{MAX_HOURS:,}, a century"
            )
        self.max_age, self.known_after = timedelta(hours=max_age_hours), timedelta(hours=known_after_hours)
        self._source = _made(rows)
        self._days: list[date] | None = None
        self._rows: dict[date, pa.Table] = {}  # of the days that the last join looked at

    def rows_for(self, day: date) -> pa.Table | None:
        """Returns the rows of the other table that may be known on a day, in order; None if there are none.

        Reads the next day as well, since days of this source may begin at another hour; a failure to read
        the next day is ignored.
        """
        if self._days is None:
            self._days = sorted(set(self._source.days()))
        first = day - timedelta(days=ceil(self.max_age / DAY) + 1)
        wanted = [other for other in self._days if first <= other <= day + DAY]
        self._rows = {other: self._rows[other] for other in wanted if other in self._rows}
        for other in wanted:
            if other not in self._rows:
                try:
                    self._rows[other] = self._columns_of(_fetched(self._source, other))
                except DataError:
                    if other <= day:
                        raise
        parts = [self._rows[other] for other in wanted if len(self._rows.get(other, ()))]
        return pa.concat_tables(parts, promote_options="permissive") if parts else None

    def _columns_of(self, rows: pa.Table) -> pa.Table:
        if not len(rows):  # they may have no columns
            return rows
        names = dict.fromkeys([self.time, *self.key.values(), *self.columns.values()])
        _expect(names, rows)
        return rows.select(list(names))


class AsOf:
    """Rows of one source, with columns of other tables.

    Args:
        rows: the source of the rows.
        tables: the arguments of each `OtherTable`, by a name for it.
        time: the rows' column of the time that tables are joined as of.
        zone: of times that came without one; that of the table.
    """

    def __init__(
        self, rows: Any, *, tables: Mapping[str, Mapping[str, Any]], time: str = "time", zone: str = "UTC"
    ) -> None:
        self._source, self._time, self._zone = _made(rows), time, zone
        self._tables: dict[str, OtherTable] = {}
        for name, arguments in tables.items():
            try:
                self._tables[name] = OtherTable(**arguments)
            except TypeError as error:
                raise ParamsError(f"source.tables.{name} refuses its arguments: {error}; fix them") from None
        names = Counter(name for table in self._tables.values() for name in table.columns)
        if twice := {name for name in names if names[name] > 1}:
            raise ParamsError(f"two of source.tables give a column {min(twice)}; name one of them otherwise")
        self.joined: dict[date, dict[str, str]] = {}

    def days(self) -> Iterable[date]:
        """Returns the days that have rows, in order."""
        return self._source.days()

    @property
    def omits_nulls(self) -> bool:
        """Whether the rows lack a column in which none has a value."""
        return bool(getattr(self._source, "omits_nulls", False))

    @property
    def cuts(self) -> bool:
        """Whether the rows are cut into days by time."""
        return bool(getattr(self._source, "cuts", False))

    @property
    def version(self) -> Callable[[date], str] | None:
        """Returns what tells versions of a day of the source; None where it has none."""
        found: Callable[[date], str] | None = getattr(self._source, "version", None)
        return found

    def left_out(self) -> dict[str, list[str]]:
        """Returns the files of the rows that are not read, by the reason why."""
        reasons: dict[str, list[str]] = getattr(self._source, "left_out", dict)()
        return reasons

    def fetch(self, day: date, folder: Path) -> None:
        """Writes the rows of `day` with the columns of the other tables, null where a row has no partner.

        From then on `joined[day]` has, by the name of each table, the digest of the rows that were partners.
        DataError where a table cannot be read, or does not have the columns that are named.
        """
        rows = _fetched(self._source, day)
        columns: dict[str, pa.ChunkedArray] = {}
        fields: dict[str, pa.Field] = {}  # a source marks how its numbers are written
        digests: dict[str, str] = {}
        tables = self._tables if len(rows) else {}  # else the rows may have no columns
        for name, table in tables.items():
            if both := set(table.columns) & set(rows.column_names):
                raise ParamsError(
                    f"the rows have a column {min(both)} of their own; name that of {name} otherwise, "
                    f"under source.tables.{name}.columns"
                )
            try:
                theirs = table.rows_for(day)
                if theirs is None:
                    columns |= {ours: pa.nulls(len(rows)) for ours in table.columns}
                    continue
                partners = partners_of(rows, theirs, table, time=self._time, zone=self._zone)
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, DataError) as error:
                reason = str(error).splitlines()[0]
                failure = SourceUnreachable if isinstance(error, SourceUnreachable) else DataError
                raise failure(f"{name} cannot be joined to the rows of {day}: {reason}") from None
            columns |= {ours: theirs[their].take(partners) for ours, their in table.columns.items()}
            fields |= {ours: theirs.schema.field(their) for ours, their in table.columns.items()}
            digests[name] = _digest(theirs.take(pc.unique(partners.drop_null()).sort()))
        for ours, values in columns.items():
            field = fields[ours].with_name(ours) if ours in fields else ours
            rows = rows.append_column(field, values)
        self.joined[day] = digests
        write_partition(rows, folder)


def partners_of(rows: pa.Table, theirs: pa.Table, table: OtherTable, *, time: str, zone: str) -> pa.Array:
    """Returns for each row the number of the other table's row that it is joined with; null: none.

    Of rows with the same key and time the last one counts, as a correction of those before. A row without a
    time or a key has no partner, and is none. DataError or pyarrow's where columns are missing, or no times.
    """
    import duckdb

    _expect([time, *table.key], rows)
    rows_us = moments_us(rows[time], zone, twice="earliest")
    theirs_us = moments_us(theirs[table.time], zone, twice="latest")
    known_us = pc.subtract(rows_us, table.known_after // MICROSECOND)
    keys = [f"key_{number}" for number in range(len(table.key))]
    connection = duckdb.connect()
    for name, part, us, key in (
        ("ours", rows, known_us, list(table.key)),
        ("theirs", theirs, theirs_us, list(table.key.values())),
    ):
        by_key = {own: codes(part[column]) for own, column in zip(keys, key, strict=True)}
        connection.register(name, pa.table({"number": np.arange(len(part)), "known_us": us, **by_key}))
    by, same = ", ".join(["known_us", *keys]), "".join(f" AND ours.{key} = newest.{key}" for key in keys)
    query = f"""
        WITH newest AS (SELECT {by}, max(number) AS number FROM theirs GROUP BY {by})
        SELECT newest.number FROM ours ASOF LEFT JOIN newest ON ours.known_us >= newest.known_us{same}
        ORDER BY ours.number
    """
    partners = connection.sql(query).to_arrow_table()["number"].combine_chunks()
    age_us = pc.subtract(rows_us, theirs_us.take(partners))
    is_young = pc.less_equal(age_us, table.max_age // MICROSECOND)
    return pc.if_else(is_young, partners, pa.scalar(None, partners.type)).combine_chunks()


def _expect(names: Iterable[str], rows: pa.Table) -> None:
    """Raises DataError where a column is missing, or is there twice."""
    for name in names:
        if rows.column_names.count(name) != 1:
            raise DataError(
                f"there is no column {name}, or two, among {', '.join(rows.column_names)}; fix the names "
                f"under source in params.yaml"
            )


def _made(plug: Any) -> Source:
    """Returns the source that params.yaml names."""
    try:
        source: Source = Plug.model_validate(plug).make()
    except ValidationError:
        raise ParamsError(
            f"under source, rows is {plug!r}, which is not a valid source; write "
            f"{{use: package.module:Class, ...}}"
        ) from None
    return source


def _fetched(source: Source, day: date) -> pa.Table:
    """Returns the rows of a day, as delivered."""
    with tempfile.TemporaryDirectory() as scratch:
        source.fetch(day, Path(scratch))
        path = Path(scratch) / PART
        return pq.read_table(path, partitioning=None, page_checksum_verification=True)


def _by_our_name(names: Names) -> dict[str, str]:
    return dict(names) if isinstance(names, Mapping) else {name: name for name in names}


def _digest(rows: pa.Table) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        write_partition(rows, Path(scratch))
        return records.digest(Path(scratch) / PART)
