"""Keeps which versions routers are to serve, and the challengers' shares, in one row that each move replaces.

traffic     the row, moved by compare-and-swap
moves       the row after each move, so that a user's arm at any time is known
stops       experiments that a router stopped, and why

log.traffic.set(replace(log.traffic.read(), challenger=4, share=0.01, experiment=night.id))

Challengers that are tested at once have a slot of the units each (daybreak/statistics/assignment.py);
`in_slot` and `of` give the traffic of one slot, in which there is one challenger at most.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import sqlalchemy as sa

from daybreak.contract.errors import ReleaseError
from daybreak.storage.log_clock import LogClock
from daybreak.storage.traffic_database import MOVES, STOPS, TRAFFIC, TrafficDatabase

NUM_TRIES = 20


@dataclass(frozen=True, kw_only=True)
class SlotTest:
    """A challenger that units of a slot meet."""

    challenger: int
    experiment: str  # its name salts the assignment: the night's id
    share: float = 0.0  # of the units of the slot, for the challenger
    slot: int = 0


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What routers are to serve. A version of 0 means none; champion 0: follow the ledger."""

    revision: int = 0  # counts changes
    champion: int = 0
    challenger: int = 0  # of the oldest test, as are share, experiment and slot
    share: float = 0.0
    experiment: str = ""
    slot: int = 0
    num_slots: int = 1  # into which units are divided
    beside: tuple[SlotTest, ...] = ()  # the other tests that are on, in slots of their own
    ready: int = 0  # another version to keep loaded, which answers nobody yet
    changed_at: float = 0.0

    @property
    def tests(self) -> tuple[SlotTest, ...]:
        """Returns the tests that are on, the oldest first."""
        if not self.experiment:
            return ()
        oldest = SlotTest(
            challenger=self.challenger, experiment=self.experiment, share=self.share, slot=self.slot
        )
        return (oldest, *self.beside)

    def with_tests(self, tests: Iterable[SlotTest]) -> "Traffic":
        """Returns the traffic with these tests on, and no others."""
        on = tuple(tests)
        oldest = on[0] if on else SlotTest(challenger=0, experiment="")
        return replace(self, **asdict(oldest), beside=on[1:])

    def of(self, experiment: str) -> "Traffic":
        """Returns the traffic of that experiment's slot; without any where it is not on."""
        return self.with_tests(test for test in self.tests if test.experiment == experiment)

    def in_slot(self, slot: int) -> "Traffic":
        """Returns the traffic of that slot."""
        return self.with_tests(test for test in self.tests if test.slot == slot)

    def with_share(self, experiment: str, share: float) -> "Traffic":
        """Returns the traffic with another share for that experiment's challenger."""
        return self.with_tests(
            replace(test, share=share) if test.experiment == experiment else test for test in self.tests
        )

    @property
    def is_holdback(self) -> bool:
        """Returns whether the experiment is a holdback, which belongs to no night."""
        return self.experiment == holdback_name(self.challenger)

    @property
    def wanted(self) -> tuple[int, ...]:
        """Returns the versions to keep loaded."""
        challengers = (test.challenger for test in self.tests)
        return tuple(sorted({self.champion, *challengers, self.ready} - {0}))

    def without(self, experiment: str) -> "Traffic":
        """Returns the traffic once the experiment is over; others go on."""
        return self.with_tests(test for test in self.tests if test.experiment != experiment)


def holdback_name(held: int) -> str:
    """Returns the name of the experiment that holds users back on a version, which is its salt.

    It names no other version, so that the same users stay held back whatever is promoted meanwhile.
    """
    return f"holdback-{held}"


def row_of(traffic: Traffic) -> dict[str, Any]:
    """Returns the traffic as the columns of its row."""
    return {**asdict(traffic), "beside": json.dumps([asdict(test) for test in traffic.beside])}


def traffic_of(row: sa.RowMapping) -> Traffic:
    """Returns the traffic that a row with these columns, or more, says."""
    known = {column.name: row[column.name] for column in fields(Traffic)}
    return Traffic(**{**known, "beside": tuple(SlotTest(**test) for test in json.loads(row["beside"]))})


class TrafficRow:
    """The traffic row of a log; threads may share it."""

    def __init__(self, database: TrafficDatabase, clock: LogClock) -> None:
        self._database, self._clock = database, clock

    def read(self) -> Traffic:
        """Returns what routers are to serve now."""
        with self._database.reading() as connection:
            return traffic_of(connection.execute(sa.select(TRAFFIC)).mappings().one())

    def moves(self, *, since: float = 0.0) -> tuple[Traffic, ...]:
        """Returns the traffic as it stood at a time, and as each move since then left it, oldest first."""
        then = sa.select(sa.func.max(MOVES.c.revision)).where(MOVES.c.changed_at <= since)
        first = sa.func.coalesce(then.scalar_subquery(), 0)
        query = sa.select(MOVES).where(MOVES.c.revision >= first).order_by(MOVES.c.revision)
        with self._database.reading() as connection:
            return tuple(traffic_of(row) for row in connection.execute(query).mappings())

    def forget(self, *, before: float) -> None:
        """Removes moves that were over before a time, and stops; `moves` since then returns the same."""
        then = sa.select(sa.func.max(MOVES.c.revision)).where(MOVES.c.changed_at <= before)
        with self._database.writing() as connection:
            connection.execute(sa.delete(MOVES).where(MOVES.c.revision < then.scalar_subquery()))
            connection.execute(sa.delete(STOPS).where(STOPS.c.time < before))

    def set(self, traffic: Traffic) -> Traffic:
        """Sets the traffic if nobody has changed it since `traffic.revision`; returns the new traffic.

        Raises ReleaseError, with nothing changed, if another process set it since it was read.
        """
        _check(traffic)
        moved = replace(traffic, revision=traffic.revision + 1, changed_at=self._clock.now())
        row = row_of(moved)
        with self._database.writing() as connection:
            where = TRAFFIC.c.revision == traffic.revision
            done = connection.execute(sa.update(TRAFFIC).where(where).values(**row))
            if done.rowcount == 1:
                connection.execute(self._database.insert(MOVES), row)
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
    tests = traffic.tests or (SlotTest(challenger=traffic.challenger, experiment="", share=traffic.share),)
    for test in tests:
        if not 0 <= test.share <= 1:
            raise ReleaseError(f"the challenger's share is {test.share:g}; give it one from 0 to 1")
        if test.challenger and (not test.experiment or test.challenger == traffic.champion):
            raise ReleaseError(
                f"version {test.challenger} challenges version {traffic.champion} in experiment "
                f"{test.experiment!r}; name another version, and an experiment"
            )
    slots = {test.slot for test in tests}
    if len(slots) < len(tests) or not slots <= set(range(traffic.num_slots)):
        raise ReleaseError(
            f"{len(tests)} challengers have the slots {sorted(test.slot for test in tests)} of "
            f"{traffic.num_slots}; give each one of its own"
        )
