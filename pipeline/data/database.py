"""Brings in a table of a SQL database, day by day: the source `Database`, on SQLAlchemy."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.contract.errors import DataError, ParamsError
from pipeline.data.source import write_partition

if TYPE_CHECKING:
    import sqlalchemy as sa


class Database:
    """A table whose rows have a time; a day is the rows of that time, in the zone of the database's session.

    Args:
        url: of SQLAlchemy, as `postgresql://host/shop`; variables of the environment are filled in, which is
            the place for a URL with a password: `$SHOP_URL`.
        table: its name, or `schema.name`.
        cut_by: its column whose day a row belongs to.
    """

    def __init__(self, url: str, *, table: str, cut_by: str = "time") -> None:
        import sqlalchemy as sa

        self._name, self._cut_by = table, cut_by
        try:
            self._engine = sa.create_engine(os.path.expandvars(url))
        except (sa.exc.ArgumentError, ImportError) as error:
            raise ParamsError(
                f"source.url cannot be used: {error}; write it as SQLAlchemy takes it"
            ) from None

    def days(self) -> list[date]:
        """Returns the days that have rows, in order."""
        import sqlalchemy as sa

        with self._connected() as connection:
            column = self._column(self._table())
            parts = [sa.extract(part, column) for part in ("year", "month", "day")]
            found = connection.execute(sa.select(*parts).where(column.is_not(None)).distinct())
            return sorted(date(*(int(part) for part in row)) for row in found)

    def fetch(self, day: date, folder: Path) -> None:
        """Writes the rows of `day` by time, then by the other columns; DataError if there are none."""
        import sqlalchemy as sa

        with self._connected() as connection:
            table = self._table()
            column, start = self._column(table), datetime.combine(day, time())
            others = [other for other in table.columns if other is not column]
            of_day = sa.select(table).where(column >= start, column < start + timedelta(days=1))
            rows = [dict(row) for row in connection.execute(of_day.order_by(column, *others)).mappings()]
        if not rows:
            raise DataError(f"{self._name} has nothing for {day}; check that the day is delivered")
        write_partition(pa.Table.from_pylist(rows), folder)

    def sample(self, num_rows: int) -> pa.Table:
        """Returns some rows, all columns."""
        import sqlalchemy as sa

        with self._connected() as connection:
            found = connection.execute(sa.select(self._table()).limit(num_rows)).mappings()
            return pa.Table.from_pylist([dict(row) for row in found])

    def _table(self) -> "sa.Table":
        import sqlalchemy as sa

        schema, _, name = self._name.rpartition(".")
        return sa.Table(name, sa.MetaData(), schema=schema or None, autoload_with=self._engine)

    def _column(self, table: "sa.Table") -> Any:
        if self._cut_by not in table.columns:
            names = ", ".join(table.columns.keys())
            raise DataError(
                f"{self._name} has no column {self._cut_by} to cut days by, among {names}; "
                f"name the column of the time in source.cut_by"
            )
        return table.columns[self._cut_by]

    @contextmanager
    def _connected(self) -> "Iterator[sa.Connection]":
        """Yields a connection; DataError says what the database says."""
        import sqlalchemy as sa

        try:
            with self._engine.connect() as connection:
                yield connection
        except sa.exc.NoSuchTableError:
            raise DataError(f"the database has no table {self._name}; fix source.table") from None
        except sa.exc.SQLAlchemyError as error:
            message = " ".join(str(getattr(error, "orig", None) or error).split())
            raise DataError(
                f"{self._name} cannot be read: {message}; check source.url and its rights"
            ) from None
