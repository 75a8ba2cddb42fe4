"""Holds the tables of the log of serving, and connects to the SQLite file or the PostgreSQL server with them.

What is committed here is on the disk (synchronous=FULL). Errors of a database come as a JobError, which names
no password.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from daybreak.contract import disk
from daybreak.contract.errors import JobError

# What SQLite and PostgreSQL say of a column that a table lacks.
OTHER_COLUMNS = re.compile("no column named|no such column|column .* does not exist")
BUSY_S = 30.0  # how long a writer waits for another one

METADATA = sa.MetaData()
EXPOSURES = sa.Table(
    "exposures",
    METADATA,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("time", sa.Double, nullable=False),  # seconds since 1970
    sa.Column("experiment", sa.String(200), nullable=False),
    sa.Column("unit", sa.String(16), nullable=False),
    sa.Column("arm", sa.String(16), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("share", sa.Double, nullable=False),
    sa.Column("propensity", sa.Double, nullable=False),
    sa.Column("items", sa.Text, nullable=False),  # JSON, best first
    sa.Column("latency_s", sa.Double, nullable=False),
    sa.Column("error", sa.String(200), nullable=False),
    sa.Column("fallback", sa.Boolean, nullable=False),
    sa.Index("exposures_by_experiment", "experiment", "time"),
)
OUTCOMES = sa.Table(
    "outcomes",
    METADATA,
    sa.Column("exposure", sa.String(32), primary_key=True),
    sa.Column("time", sa.Double, nullable=False),
    sa.Column("items", sa.Text, nullable=False),  # JSON
)
PREDICTIONS = sa.Table(
    "predictions",
    METADATA,
    sa.Column("exposure", sa.String(32), primary_key=True),
    sa.Column("predicted", sa.Text, nullable=False),  # JSON
)
ATTRIBUTES = sa.Table(
    "attributes",
    METADATA,
    sa.Column("exposure", sa.String(32), primary_key=True),
    sa.Column("attributes", sa.Text, nullable=False),  # JSON, by name
)
KEPT_ROWS = sa.Table(
    "kept_rows",
    METADATA,
    sa.Column("exposure", sa.String(32), primary_key=True),
    sa.Column("day", sa.String(10), nullable=False),
    sa.Column("place", sa.Double, nullable=False),  # random, in [0, 1)
    sa.Column("size", sa.Integer, nullable=False),  # in rows; long ones count as several
    sa.Column("rows", sa.Text, nullable=False),  # JSON, as the client sent them
    sa.Column("predictions", sa.Text, nullable=False),  # JSON
    sa.Index("kept_rows_by_day", "day", "place", "size"),
)
SHADOWS = sa.Table(
    "shadows",
    METADATA,
    sa.Column("exposure", sa.String(32), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("dropped", sa.Boolean, nullable=False),
    sa.Column("latency_s", sa.Double, nullable=False),
    sa.Column("error", sa.String(200), nullable=False),
    sa.Column("fallback", sa.Boolean, nullable=False),
    sa.Column("difference", sa.Double),
)
TRAFFIC = sa.Table(
    "traffic",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("champion", sa.Integer, nullable=False),
    sa.Column("challenger", sa.Integer, nullable=False),
    sa.Column("share", sa.Double, nullable=False),
    sa.Column("experiment", sa.String(200), nullable=False),
    sa.Column("slot", sa.Integer, nullable=False),
    sa.Column("num_slots", sa.Integer, nullable=False),
    sa.Column("beside", sa.Text, nullable=False),  # JSON
    sa.Column("ready", sa.Integer, nullable=False),
    sa.Column("changed_at", sa.Double, nullable=False),
    sa.Column("secret", sa.String(64), nullable=False),
)
MOVES = sa.Table(
    "moves",
    METADATA,
    sa.Column("revision", sa.Integer, primary_key=True),
    *(
        sa.Column(column.name, column.type, nullable=False)
        for column in TRAFFIC.columns
        if column.name not in ("id", "revision", "secret")
    ),
)
ROUTERS = sa.Table(
    "routers",
    METADATA,
    sa.Column("id", sa.String(100), primary_key=True),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("champion", sa.Integer, nullable=False),
    sa.Column("challenger", sa.Integer, nullable=False),
    sa.Column("share", sa.Double, nullable=False),
    sa.Column("loaded", sa.Text, nullable=False),  # JSON
    sa.Column("fault", sa.Text, nullable=False),
    sa.Column("seen_at", sa.Double, nullable=False),
)
STOPS = sa.Table(
    "stops",
    METADATA,
    sa.Column("experiment", sa.String(200), primary_key=True),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("time", sa.Double, nullable=False),
)
CLOCKS = sa.Table(
    "clocks",
    METADATA,
    sa.Column("boot", sa.String(100), primary_key=True),
    sa.Column("booted_at", sa.Double, nullable=False),
)
ENDPOINTS = sa.Table(
    "endpoints",
    METADATA,
    sa.Column("id", sa.String(300), primary_key=True),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("since", sa.Double, nullable=False),
)


class TrafficDatabase:
    """The database of a log; threads may share it."""

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if self.is_sqlite and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {"connect_args": {"timeout": BUSY_S}} if self.is_sqlite else {}
        self._engine = sa.create_engine(self.url, **options)
        if self.is_sqlite:
            sa.event.listen(self._engine, "connect", _set_up_sqlite)

    def close(self) -> None:
        """Releases the connections."""
        self._engine.dispose()

    def insert(self, table: sa.Table) -> Any:
        """Returns an insert statement that leaves existing rows as they are."""
        return self.insert_into(table).on_conflict_do_nothing()

    def insert_into(self, table: sa.Table) -> Any:
        """Returns an insert statement in this database's dialect, to say what is done with existing rows."""
        return (sqlite if self.is_sqlite else postgresql).insert(table)

    def text_of(self, statement: Any) -> str:
        """Returns a statement as this database reads it."""
        return str(statement.compile(dialect=self._engine.dialect))

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Opens a transaction that is committed at the end of the block."""
        with self._translating_errors(), self._engine.begin() as connection:
            if self.is_sqlite:  # the lock at once: a reader cannot become a writer if another one wrote
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection

    @contextlib.contextmanager
    def erasing(self) -> Iterator[sa.Connection]:
        """Opens a transaction whose deleted rows are nowhere in the file once it is over."""
        with self.writing() as connection:
            if self.is_sqlite:
                # Else the rows would stay in the file until something is written over them.
                connection.exec_driver_sql("PRAGMA secure_delete = ON")
            yield connection
        if self.is_sqlite:
            with self.reading() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Opens a connection to read."""
        with self._translating_errors(), self._engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def _translating_errors(self) -> Iterator[None]:
        """Raises JobError, without the password, if the database does not answer."""
        try:
            yield
        except sa.exc.DBAPIError as error:
            message = " ".join(str(error.orig).split())[:200]
            path = self.url.database or ""
            if self.is_sqlite and (number := disk.number_in(message, at=Path(path))):
                place = OSError(number, message, path)
                raise JobError(f"the log of serving is not written: {disk.fault(place)}") from error
            where = f"the log of serving at {self.url.render_as_string()}"
            if OTHER_COLUMNS.search(message):
                raise JobError(
                    f"{where} is of another version of Daybreak: {message}; move its tables away while no "
                    f"test is on, or name an empty database in serving.log, as logs of others are not read"
                ) from error
            raise JobError(
                f"{where} does not answer: {message}; start its database, or fix serving.log"
            ) from error


def _set_up_sqlite(connection: Any, _: object) -> None:
    connection.execute("PRAGMA journal_mode=WAL")  # readers and the writer do not wait for each other
    connection.execute("PRAGMA synchronous=FULL")  # what is committed is on the disk
