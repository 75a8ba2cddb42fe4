"""Brings in a table of a SQL database, day by day: the source `Database`, on SQLAlchemy.

Types are as the database declares them, so that a day with nothing but nulls has the same types. JSON becomes
text, and so does any type that Arrow lacks. Rows are read in batches, and kept as Arrow's columns.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from daybreak.contract import extras
from daybreak.contract.days import check_zone
from daybreak.contract.errors import DataError, ParamsError, SourceUnreachable
from daybreak.data.source import write_partition

if TYPE_CHECKING:
    import sqlalchemy as sa

NUM_ROWS = 10_000  # of a batch


class Database:
    """A table whose rows have a time; a day is the rows of that time.

    PostgreSQL needs `pip install 'daybreak[postgres]'`, BigQuery `pip install sqlalchemy-bigquery`.

    Args:
        url: of SQLAlchemy, as `postgresql://host/shop` or `bigquery://project/dataset`; variables of the
            environment are filled in, which is the place for a URL with a password: `$SHOP_URL`.
        table: its name, or `schema.name`.
        cut_by: its column whose day a row belongs to.
        zone: in which a day begins, for times that have a zone; that of the table.
        watermark: query of the moment, or the day, up to which all rows are in, as `SELECT max(loaded_until)
            FROM loads`: no later day is offered. A moment without a zone is one of `zone`.
    """

    def __init__(
        self, url: str, *, table: str, cut_by: str = "time", zone: str = "UTC", watermark: str = ""
    ) -> None:
        import sqlalchemy as sa

        check_zone(zone, of="source.zone")
        self._name, self._cut_by, self._zone, self._watermark = table, cut_by, zone, watermark
        try:
            self._engine = sa.create_engine(os.path.expandvars(url))
        except (sa.exc.ArgumentError, ImportError, ValueError) as error:  # a port that is no number
            advice = f"{error}; write a URL of SQLAlchemy's, and install the driver"
            raise ParamsError(f"source.url cannot be used: {extras.missing(error) or advice}") from None

    cuts = True  # a day without rows is not among `days()`

    def days(self) -> list[date]:
        """Returns the days that have rows, in order; DataError if values of `cut_by` are not times."""
        with self._connected() as connection:
            query = days_query(self._cut_table(), self._cut_by, self._dialect, zone=self._zone)
            rows = connection.execute(query).all()
            newest = self._newest_whole(connection) if self._watermark else date.max
        if any(None in row for row in rows):  # SQLite returns null for a text that it cannot read as a date
            raise DataError(
                f"{self._name} cannot be cut into days: {self._cut_by} has values that are not times; have "
                f"them as 2025-01-31 13:45:00, or name another column in source.cut_by"
            )
        days = (date(*(int(part) for part in row)) for row in rows)
        return sorted(day for day in days if day <= newest)

    def version(self, day: date) -> str:
        """Returns the number of rows of a day, as text."""
        import sqlalchemy as sa

        with self._connected() as connection:
            rows = day_query(self._cut_table(), self._cut_by, self._dialect, day, zone=self._zone)
            return str(connection.execute(sa.select(sa.func.count()).select_from(rows.subquery())).scalar())

    def fetch(self, day: date, folder: Path) -> None:
        """Writes the rows of `day` by time, then by the other columns; DataError if there are none."""
        with self._connected() as connection:
            table = self._cut_table()
            query = day_query(table, self._cut_by, self._dialect, day, zone=self._zone)
            rows = _read(connection, query, table, what=f"{self._name} on {day}")
        if not len(rows):
            raise DataError(f"{self._name} has nothing for {day}; check that the day is delivered")
        write_partition(rows, folder)

    def sample(self, num_rows: int) -> pa.Table:
        """Returns some rows, all columns."""
        import sqlalchemy as sa

        with self._connected() as connection:
            table = self._table()
            return _read(connection, sa.select(table).limit(num_rows), table, what=self._name)

    def tables(self) -> list[str]:
        """Returns the names of all tables, of the schema that the url leads to."""
        import sqlalchemy as sa

        with self._connected() as connection:
            return sorted(sa.inspect(connection).get_table_names())

    def _newest_whole(self, connection: "sa.Connection") -> date:
        """Returns the newest day whose rows are all in, by the query `watermark`."""
        import sqlalchemy as sa

        found = connection.execute(sa.text(self._watermark)).scalar()
        if found is None:
            return date.min
        try:
            moment = found if isinstance(found, date) else datetime.fromisoformat(str(found))
        except ValueError:
            raise DataError(
                f"source.watermark found {found!r}, which is no moment; have it return one such as "
                f"2025-01-31 13:45:00"
            ) from None
        if not isinstance(moment, datetime) or (isinstance(found, str) and len(found) == len("2025-01-31")):
            return moment.date() if isinstance(moment, datetime) else moment
        zone = ZoneInfo(self._zone)
        local = moment.astimezone(zone) if moment.tzinfo else moment
        return local.date() - timedelta(days=1)

    @property
    def _dialect(self) -> str:
        return str(self._engine.dialect.name)

    def _table(self) -> "sa.Table":
        import sqlalchemy as sa

        schema, _, name = self._name.rpartition(".")
        return sa.Table(name, sa.MetaData(), schema=schema or None, autoload_with=self._engine)

    def _cut_table(self) -> "sa.Table":
        """Returns the table, once it has the column to cut days by."""
        table = self._table()
        if self._cut_by not in table.columns:
            names = ", ".join(table.columns.keys())
            raise DataError(
                f"{self._name} has no column {self._cut_by} to cut days by, among {names}; "
                f"name the column of the time in source.cut_by"
            )
        return table

    @contextmanager
    def _connected(self) -> "Iterator[sa.Connection]":
        """Yields a connection; raises DataError with the database's message."""
        import sqlalchemy as sa

        try:
            with self._engine.connect() as connection:
                yield connection
        except sa.exc.NoSuchTableError:
            raise DataError(f"the database has no table {self._name}; fix source.table") from None
        except sa.exc.SQLAlchemyError as error:
            message = " ".join(str(getattr(error, "orig", None) or error).split())
            failure = SourceUnreachable if isinstance(error, sa.exc.OperationalError) else DataError
            raise failure(
                f"{self._name} cannot be read: {message}; check source.url and its rights"
            ) from None


def days_query(table: "sa.Table", cut_by: str, dialect: str, *, zone: str) -> "sa.Select[Any]":
    """Returns the query of year, month and day of all days that have rows."""
    import sqlalchemy as sa

    column: Any = table.columns[cut_by]
    local = column
    if _has_zone(column, dialect):
        local = sa.func.datetime(column, zone) if dialect == "bigquery" else sa.func.timezone(zone, column)
    parts: list[Any] = [sa.extract(part, local) for part in ("year", "month", "day")]
    return sa.select(*parts).where(column.is_not(None)).distinct()


def day_query(table: "sa.Table", cut_by: str, dialect: str, day: date, *, zone: str) -> "sa.Select[Any]":
    """Returns the query of the rows of a day, by time, then by the other columns."""
    import sqlalchemy as sa

    column: Any = table.columns[cut_by]
    cut: Any = column
    ends: list[Any] = [day, day + timedelta(days=1)]
    if dialect == "sqlite":  # keeps times as text; all spellings of a time begin with the day
        cut, ends = sa.type_coerce(column, sa.String), [str(end) for end in ends]
    elif not isinstance(column.type, sa.Date):
        own = ZoneInfo(zone) if _has_zone(column, dialect) else None
        ends = [datetime.combine(end, time(), own) for end in ends]
        ends = [end.astimezone(UTC) if own else end for end in ends]
    others = [_ordered(other, dialect) for other in table.columns if other is not column]
    of_day = sa.select(table).where(cut >= ends[0], cut < ends[1])
    return of_day.order_by(column, *others)


def _has_zone(column: Any, dialect: str) -> bool:
    """Returns whether times of the column are moments, which are on one day or another by zone."""
    import sqlalchemy as sa

    in_bigquery = dialect == "bigquery" and isinstance(column.type, sa.TIMESTAMP)
    return in_bigquery or (dialect == "postgresql" and bool(getattr(column.type, "timezone", False)))


def _ordered(column: Any, dialect: str) -> Any:
    """Returns what to order by for a column; JSON and what is nested have no order but as text."""
    import sqlalchemy as sa

    if dialect == "bigquery":
        scalar = (sa.Boolean, sa.Integer, sa.Numeric, sa.Date, sa.DateTime, sa.Time, sa.String, sa.BINARY)
        return column if isinstance(column.type, scalar) else sa.func.to_json_string(column)
    return sa.cast(column, sa.Text) if isinstance(column.type, sa.JSON | sa.ARRAY) else column


def _read(connection: "sa.Connection", query: "sa.Select[Any]", table: "sa.Table", *, what: str) -> pa.Table:
    """Returns the rows of a query on a table, in the types of its columns.

    Raises DataError, which names the rows by `what`, where a column mixes types.
    """
    names, dialect = list(table.columns.keys()), connection.dialect.name
    kinds = [kind_of(column, dialect) for column in table.columns]
    result = connection.execution_options(stream_results=True, max_row_buffer=NUM_ROWS).execute(query)
    parts = [
        pa.table(
            [_array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)], names
        )
        for rows in result.partitions(NUM_ROWS)
    ]
    if not parts:
        return pa.table([pa.array([], kind or pa.null()) for kind in kinds], names)
    try:
        return pa.concat_tables(parts, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:  # which names the column and both types
        raise DataError(
            f"{what} has a column of mixed types: {str(error).splitlines()[0]}; have it hold one type, or "
            f"read a view that casts it"
        ) from None


def kind_of(column: Any, dialect: str) -> "pa.DataType | None":
    """Returns the type in Arrow of a column in SQL; None where only the values tell."""
    import sqlalchemy as sa

    of = column.type
    if isinstance(of, sa.DateTime):  # a TIMESTAMP is one
        return pa.timestamp("us", "UTC") if _has_zone(column, dialect) else pa.timestamp("us")
    if isinstance(of, sa.Numeric) and not isinstance(of, sa.Float):
        known = of.precision is not None and of.scale is not None and of.precision <= 38
        return pa.decimal128(of.precision, of.scale) if known else None
    kinds: tuple[tuple[type, Callable[[], pa.DataType]], ...] = (
        (sa.Boolean, pa.bool_),
        (sa.Integer, pa.int64),
        (sa.Float, pa.float64),
        (sa.Date, pa.date32),
        (sa.LargeBinary, pa.binary),
        (sa.BINARY, pa.binary),
        (sa.JSON, pa.string),
        (sa.Enum, pa.string),
        (sa.String, pa.string),
        (sa.Uuid, pa.string),
    )
    return next((kind() for sort, kind in kinds if isinstance(of, sort)), None)


def _array(values: Sequence[Any], kind: "pa.DataType | None") -> pa.Array:
    """Returns values as an array of type `kind` if they fit, else of an inferred type, else of text."""
    if kind is not None and pa.types.is_string(kind):
        return pa.array([_text(value) for value in values], kind)
    for wanted in (kind, None):
        try:
            return pa.array(values, wanted)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
            continue
    return pa.array([_text(value) for value in values], pa.string())


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | list | bool) else str(value)
