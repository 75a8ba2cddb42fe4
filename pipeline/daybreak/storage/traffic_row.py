"""Keeps which versions routers are to serve, and the challenger's share, in one row that each move replaces.

traffic     the row, moved by compare-and-swap
moves       the row after each move, so that a user's arm at any time is known
stops       experiments that a router stopped, and why

log.traffic.set(replace(log.traffic.read(), challenger=4, share=0.01, experiment=night.id))
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace

import sqlalchemy as sa

from daybreak.contract.errors import ReleaseError
from daybreak.storage.log_clock import LogClock
from daybreak.storage.traffic_database import MOVES, STOPS, TRAFFIC, TrafficDatabase

NUM_TRIES = 20


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What routers are to serve. A version of 0 means none; champion 0: follow the ledger."""

    revision: int = 0  # counts changes
    champion: int = 0
    challenger: int = 0
    share: float = 0.0  # of the units, for the challenger
    experiment: str = ""  # its name salts the assignment: the night's id
    ready: int = 0  # another version to keep loaded, which answers nobody yet
    changed_at: float = 0.0

    @property
    def is_holdback(self) -> bool:
        """Returns whether the experiment is a holdback, which belongs to no night."""
        return self.experiment == holdback_name(self.challenger)

    @property
    def wanted(self) -> tuple[int, ...]:
        """Returns the versions to keep loaded."""
        return tuple(sorted({self.champion, self.challenger, self.ready} - {0}))

    def without(self, experiment: str) -> "Traffic":
        """Returns the traffic once the experiment is over; as it is where another one is on."""
        if self.experiment != experiment:
            return self
        return replace(self, challenger=0, share=0.0, experiment="")


def holdback_name(held: int) -> str:
    """Returns the name of the experiment that holds users back on a version, which is its salt.

    It names no other version, so that the same users stay held back whatever is promoted meanwhile.
    """
    return f"holdback-{held}"


class TrafficRow:
    """The traffic row of a log; threads may share it."""

    def __init__(self, database: TrafficDatabase, clock: LogClock) -> None:
        self._database, self._clock = database, clock

    def read(self) -> Traffic:
        """Returns what routers are to serve now."""
        query = sa.select(*(TRAFFIC.c[column.name] for column in fields(Traffic)))
        with self._database.reading() as connection:
            return Traffic(**connection.execute(query).mappings().one())

    def moves(self, *, since: float = 0.0) -> tuple[Traffic, ...]:
        """Returns the traffic as it stood at a time, and as each move since then left it, oldest first."""
        then = sa.select(sa.func.max(MOVES.c.revision)).where(MOVES.c.changed_at <= since)
        first = sa.func.coalesce(then.scalar_subquery(), 0)
        query = sa.select(MOVES).where(MOVES.c.revision >= first).order_by(MOVES.c.revision)
        with self._database.reading() as connection:
            return tuple(Traffic(**row) for row in connection.execute(query).mappings())

    def set(self, traffic: Traffic) -> Traffic:
        """Sets the traffic if nobody has changed it since `traffic.revision`; returns the new traffic.

        Raises ReleaseError, with nothing changed, if another process set it since it was read.
        """
        _check(traffic)
        moved = replace(traffic, revision=traffic.revision + 1, changed_at=self._clock.now())
        with self._database.writing() as connection:
            where = TRAFFIC.c.revision == traffic.revision
            done = connection.execute(sa.update(TRAFFIC).where(where).values(**asdict(moved)))
            if done.rowcount == 1:
                connection.execute(self._database.insert(MOVES), asdict(moved))
        if done.rowcount != 1:
            raise ReleaseError(
                f"the traffic is at revision {self.read().revision}, not at {traffic.revision}, since "
                f"somebody else moved it; nothing is changed, look at it again"
            )
        return moved

    def change(self, change: Callable[[Traffic], Traffic]) -> Traffic:
        """Sets the traffic to `change` of the current one, retried if another process sets it meanwhile."""
        for left in reversed(range(NUM_TRIES)):
            now = self.read()
            wanted = change(now)
            if wanted == now:
                return now
            try:
                return self.set(wanted)
            except ReleaseError:
                if not left:
                    raise
        raise AssertionError

    def stop(self, experiment: str, why: str) -> None:
        """Ends an experiment at once, and records why; the first reason stands."""
        row = {"experiment": experiment, "why": why, "time": self._clock.now()}
        insert = self._database.insert_into(STOPS)
        with self._database.writing() as connection:
            connection.execute(insert.on_conflict_do_nothing(), row)
        self.change(lambda traffic: traffic.without(experiment))

    def why_stopped(self, experiment: str) -> str:
        """Returns why a router stopped an experiment; "" where none did."""
        query = sa.select(STOPS.c.why).where(STOPS.c.experiment == experiment)
        with self._database.reading() as connection:
            why: str | None = connection.execute(query).scalar()
        return why or ""


def _check(traffic: Traffic) -> None:
    """Raises ReleaseError unless routers can serve what the traffic says."""
    if not 0 <= traffic.share <= 1:
        raise ReleaseError(f"the challenger's share is {traffic.share:g}; give it one from 0 to 1")
    if traffic.challenger and (not traffic.experiment or traffic.challenger == traffic.champion):
        raise ReleaseError(
            f"version {traffic.challenger} challenges version {traffic.champion} in experiment "
            f"{traffic.experiment!r}; name another version, and an experiment"
        )
