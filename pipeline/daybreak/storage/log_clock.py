"""Tells the time by which the log of serving records and compares: the same for all who write to it.

With a server it is the server's. For a SQLite file it is boot time of this machine plus time since boot, so
that it runs evenly while a night's experiment is on, even if the machine's clock is set meanwhile.
"""

import sqlalchemy as sa

from daybreak.contract.clock import Clock, boot
from daybreak.storage.traffic_database import CLOCKS, ROUTERS, TrafficDatabase


class LogClock:
    """The clock of a log: the server's, or this machine's as it was when a SQLite file was last set by it."""

    def __init__(self, database: TrafficDatabase, here: Clock) -> None:
        self._database, self._here = database, here
        self._booted_at = 0.0

    def now(self) -> float:
        """Returns the seconds since 1970, without asking the database."""
        return self._booted_at + self._here.passed()

    def in_sql(self) -> sa.ColumnElement[float]:
        """Returns the seconds since 1970 as an expression, so that no router is judged by its own clock."""
        if self._database.is_sqlite:
            return sa.literal(self.now(), sa.Double)
        return sa.literal_column(
            "(CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision))", sa.Double
        )

    def read(self, connection: sa.Connection) -> None:
        """Reads when this machine was booted by the clock of the log."""
        if not self._database.is_sqlite:
            now = float(connection.execute(sa.select(self.in_sql())).scalar_one())
            self._booted_at = now - self._here.passed()
            return
        kept = connection.execute(sa.select(CLOCKS.c.booted_at).where(CLOCKS.c.boot == boot())).scalar()
        self._booted_at = self._booted_at if kept is None else float(kept)

    def set(self, connection: sa.Connection, *, keep: bool) -> None:
        """Sets the clock of a SQLite file by the machine's, unless it is to keep its pace.

        What is known of live routers is moved along, so that none looks dead, or alive, by that alone.
        """
        if not self._database.is_sqlite:  # each process reads the clock once
            self.read(connection)
            return
        booted_at = self._here.wall() - self._here.passed()
        if not boot():
            self._booted_at = booted_at
            return
        connection.execute(self._database.insert(CLOCKS).values(boot=boot(), booted_at=booted_at))
        self.read(connection)
        before = self._booted_at
        if keep or before == booted_at:
            return
        self._booted_at = booted_at
        connection.execute(sa.update(CLOCKS).where(CLOCKS.c.boot == boot()).values(booted_at=booted_at))
        moved = ROUTERS.c.seen_at + (booted_at - before)
        connection.execute(sa.update(ROUTERS).values(seen_at=moved))
