"""Records exposures, outcomes and the versions that routers are to serve, in one SQL database.

    exposures   an answer that a router gave: unit, arm, version, items; never the user's own name
    predictions predictions for rows, to be scored by labels
    outcomes    items that the user then took, or labels of the rows; the first of an exposure stays
    traffic     one row: which versions serve, and the challenger's share; moved by compare-and-swap
    moves       the traffic row after each move, so that a user's arm at any time is known
    routers     the versions that each live router serves, from its heartbeat, at the database's time
    endpoints   the revision of the traffic that an endpoint with draws of its own follows, and since when
    clocks      boot time of this machine by the clock of the log: all times here are boot time plus time
                since boot; with a server, the server's clock

It is the only channel between gate, saga and routers, for any number of routers. It is a SQLite file in WAL
mode by default, or PostgreSQL by `serving.log`. What is committed here is on the disk (synchronous=FULL).

    log = open_log(url)
    log.set_traffic(replace(log.traffic(), challenger=4, share=0.01, experiment=night.id))
    for exposure in log.exposures(night.id): exposure.arm, exposure.items, exposure.taken

Routers need a moment to follow: an exposure records the version and the share that it was drawn with.
"""

import functools
import itertools
import json
import operator
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path

import sqlalchemy as sa

from daybreak.contract.clock import Clock, boot
from daybreak.contract.errors import ParamsError, ReleaseError
from daybreak.contract.sections import ServingParams
from daybreak.storage.bucket import options
from daybreak.storage.checkout import membership
from daybreak.storage.traffic_database import (
    CLOCKS,
    ENDPOINTS,
    EXPOSURES,
    METADATA,
    MOVES,
    OUTCOMES,
    PREDICTIONS,
    ROUTERS,
    STOPS,
    TRAFFIC,
    TrafficDatabase,
)

ALIVE_S = 10.0  # a router without a heartbeat for longer is gone
LOG = Path("var") / "serving.db"  # in the home, unless serving.log names another
NUM_TRIES = 20
MAX_ROWS = 500  # of a statement; SQLite takes 32,766 values


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


@dataclass(frozen=True, kw_only=True)
class RouterState:
    """State of a router, as its heartbeat reports it."""

    id: str
    revision: int = 0  # of the traffic row that it follows
    champion: int = 0
    challenger: int = 0
    share: float = 0.0
    loaded: tuple[int, ...] = ()
    fault: str = ""  # why it does not serve all versions of the traffic row
    seen_at: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Exposure:
    """An answer to a user, and the outcome that the user reported."""

    id: str
    time: float  # seconds since 1970
    experiment: str
    unit: str
    arm: str  # champion or challenger
    version: int
    share: float  # of the challenger when the arm was drawn
    propensity: float  # chance of this arm
    items: tuple[str, ...]  # best first
    latency_s: float  # within the router
    error: str = ""  # why the model did not answer
    fallback: bool = False  # the popular items were shown, not the model's
    predicted: str | None = None  # of rows, JSON: a list by the name of the prediction
    taken: tuple[str, ...] | None = None  # by the user, or labels as JSON; None if not reported (yet)
    taken_at: float | None = None  # when that was reported


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The items that a user took after an exposure, shown or not; or the labels of rows, each as JSON."""

    exposure: str
    items: tuple[str, ...]
    time: float


class _LogClock:
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

    def set(self, connection: sa.Connection, traffic: Traffic) -> None:
        """Sets the clock of a SQLite file by the machine's, but not while a night's experiment is on.

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
        if before == booted_at or (traffic.experiment and not traffic.is_holdback):
            return
        self._booted_at = booted_at
        connection.execute(sa.update(CLOCKS).where(CLOCKS.c.boot == boot()).values(booted_at=booted_at))
        moved = ROUTERS.c.seen_at + (booted_at - before)
        connection.execute(sa.update(ROUTERS).values(seen_at=moved))


def open_log(url: str) -> "Log":
    """Returns the log at a database URL, created if it does not exist; JobError if it does not answer."""
    return Log(url)


class Log:
    """The database of the log; threads may share it."""

    def __init__(self, url: str, clock_here: Clock | None = None) -> None:
        """Opens or creates it; tests give it another clock of the machine."""
        self._database = TrafficDatabase(url)
        self._clock = _LogClock(self._database, clock_here or Clock())
        self.url = self._database.url
        self._one_row = self._database.text_of(self._database.insert(EXPOSURES))
        self._secret = bytes.fromhex(self._begin())

    def close(self) -> None:
        """Releases the connections."""
        self._database.close()

    def unit_of(self, user: str) -> str:
        """Returns the unit of a user: a hash of the name, keyed by this log's own secret."""
        return blake2b(user.encode(errors="surrogatepass"), key=self._secret, digest_size=8).hexdigest()

    @property
    def exposure_key(self) -> bytes:
        """Returns the key that binds the ids of exposures to their users, the same for all routers."""
        return blake2b(key=self._secret, digest_size=32, person=b"exposure ids").digest()

    def now(self) -> float:
        """Returns the time by the clock of this log, in seconds since 1970, without asking the database.

        It is the server's; for a SQLite file it is this machine's, which runs evenly during a night's
        experiment even if the clock is set meanwhile: users count by the hours since they came.
        """
        return self._clock.now()

    def expose(self, exposure: Exposure) -> None:
        """Records an exposure."""
        self.write([exposure], [])

    def outcome(self, exposure: str, items: Sequence[str]) -> bool:
        """Records the items taken, unless an outcome is known; returns False for an unknown exposure."""
        outcome = Outcome(exposure=exposure, items=tuple(items), time=self.now())
        return self.write([], [outcome])[0]

    def write(self, exposures: Sequence[Exposure], outcomes: Sequence[Outcome]) -> list[bool]:
        """Records everything in one commit; returns for each outcome whether the exposure is known."""
        with self._database.writing() as connection:
            if exposures:
                self._insert_exposures(connection, exposures)
            if not outcomes:
                return []
            ids = sorted({outcome.exposure for outcome in outcomes})
            known: set[str] = set()
            for start in range(0, len(ids), 500):
                some = sa.select(EXPOSURES.c.id).where(EXPOSURES.c.id.in_(ids[start : start + 500]))
                known |= set(connection.execute(some).scalars())
            rows = [
                {"exposure": outcome.exposure, "time": outcome.time, "items": json.dumps(outcome.items)}
                for outcome in outcomes
                if outcome.exposure in known
            ]
            if rows:
                connection.execute(self._database.insert(OUTCOMES), rows)
        return [outcome.exposure in known for outcome in outcomes]

    def known(self, ids: Sequence[str]) -> dict[str, bool]:
        """Returns the known exposures among `ids`, and for each whether the outcome is known."""
        both = EXPOSURES.outerjoin(OUTCOMES, OUTCOMES.c.exposure == EXPOSURES.c.id)
        query = sa.select(EXPOSURES.c.id, OUTCOMES.c.exposure.is_not(None)).select_from(both)
        has_outcomes: dict[str, bool] = {}
        with self._database.reading() as connection:
            for start in range(0, len(ids), MAX_ROWS):
                some = query.where(EXPOSURES.c.id.in_(ids[start : start + MAX_ROWS]))
                has_outcomes |= {name: has_outcome for name, has_outcome in connection.execute(some)}
        return has_outcomes

    def exposures(self, experiment: str | None, *, since: float = 0.0) -> Iterator[Exposure]:
        """Yields the exposures of an experiment, or of all, since a time, oldest first, with outcomes."""
        both = EXPOSURES.outerjoin(OUTCOMES, OUTCOMES.c.exposure == EXPOSURES.c.id)
        both = both.outerjoin(PREDICTIONS, PREDICTIONS.c.exposure == EXPOSURES.c.id)
        query = (
            sa.select(
                *EXPOSURES.columns,
                PREDICTIONS.c.predicted,
                OUTCOMES.c["items"].label("taken"),
                OUTCOMES.c.time.label("taken_at"),
            )
            .select_from(both)
            .where(EXPOSURES.c.time >= since)
            .order_by(EXPOSURES.c.time, EXPOSURES.c.id)
        )
        if experiment is not None:
            query = query.where(EXPOSURES.c.experiment == experiment)
        with self._database.reading() as connection:
            for row in connection.execution_options(yield_per=10_000).execute(query).mappings():
                taken = None if row["taken"] is None else tuple(json.loads(row["taken"]))
                yield Exposure(**{**row, "items": tuple(json.loads(row["items"])), "taken": taken})

    def traffic(self) -> Traffic:
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

    def set_traffic(self, traffic: Traffic) -> Traffic:
        """Sets the traffic if nobody has changed it since `traffic.revision`; returns the new traffic.

        Raises ReleaseError, with nothing changed, if another process set it since it was read.
        """
        _check(traffic)
        moved = replace(traffic, revision=traffic.revision + 1, changed_at=self.now())
        with self._database.writing() as connection:
            where = TRAFFIC.c.revision == traffic.revision
            done = connection.execute(sa.update(TRAFFIC).where(where).values(**asdict(moved)))
            if done.rowcount == 1:
                connection.execute(self._database.insert(MOVES), asdict(moved))
        if done.rowcount != 1:
            raise ReleaseError(
                f"the traffic is at revision {self.traffic().revision}, not at {traffic.revision}, since "
                f"somebody else moved it; nothing is changed, look at it again"
            )
        return moved

    def change_traffic(self, change: Callable[[Traffic], Traffic]) -> Traffic:
        """Sets the traffic to `change` of the current one, retried if another process sets it meanwhile."""
        for left in reversed(range(NUM_TRIES)):
            now = self.traffic()
            wanted = change(now)
            if wanted == now:
                return now
            try:
                return self.set_traffic(wanted)
            except ReleaseError:
                if not left:
                    raise
        raise AssertionError

    def stop(self, experiment: str, why: str) -> None:
        """Ends an experiment at once, and records why; the first reason stands."""
        row = {"experiment": experiment, "why": why, "time": self.now()}
        insert = self._database.insert_into(STOPS)
        with self._database.writing() as connection:
            connection.execute(insert.on_conflict_do_nothing(), row)
        self.change_traffic(lambda traffic: traffic.without(experiment))

    def why_stopped(self, experiment: str) -> str:
        """Returns why a router stopped an experiment; "" where none did."""
        query = sa.select(STOPS.c.why).where(STOPS.c.experiment == experiment)
        with self._database.reading() as connection:
            why: str | None = connection.execute(query).scalar()
        return why or ""

    def beat(self, state: RouterState) -> None:
        """Records the state of a router, as of now by the clock of the database."""
        with self._database.writing() as connection:
            self._clock.read(connection)
            row = {**asdict(state), "loaded": json.dumps(state.loaded), "seen_at": self._clock.in_sql()}
            insert = self._database.insert_into(ROUTERS).values(row)
            connection.execute(insert.on_conflict_do_update(index_elements=["id"], set_=row))

    def routers(self, *, within_s: float = ALIVE_S) -> tuple[RouterState, ...]:
        """Returns the live routers, by id."""
        query = (
            sa.select(ROUTERS)
            .where(ROUTERS.c.seen_at > self._clock.in_sql() - within_s)
            .order_by(ROUTERS.c.id)
        )
        with self._database.reading() as connection:
            rows = connection.execute(query).mappings().all()
        return tuple(RouterState(**{**row, "loaded": tuple(json.loads(row["loaded"]))}) for row in rows)

    def follow(self, endpoint: str, revision: int, *, since: float) -> None:
        """Records that an endpoint follows the traffic at that revision, since a time."""
        row = {"id": endpoint, "revision": revision, "since": since}
        insert = self._database.insert_into(ENDPOINTS)
        with self._database.writing() as connection:
            connection.execute(insert.on_conflict_do_update(index_elements=["id"], set_=row), row)

    def followed(self, endpoint: str) -> tuple[int, float]:
        """Returns the revision of the traffic that an endpoint follows, and since when; -1 if none."""
        query = sa.select(ENDPOINTS.c.revision, ENDPOINTS.c.since).where(ENDPOINTS.c.id == endpoint)
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        return (row.revision, row.since) if row else (-1, 0.0)

    def leave(self, router: str) -> None:
        """Removes a router that ends, and those whose heartbeat ended long ago."""
        gone = (ROUTERS.c.id == router) | (ROUTERS.c.seen_at < self._clock.in_sql() - 100 * ALIVE_S)
        with self._database.writing() as connection:
            connection.execute(sa.delete(ROUTERS).where(gone))

    def forget(self, *, before: float) -> int:
        """Removes exposures from before a time, with their outcomes; returns the number of exposures."""
        old = sa.select(EXPOSURES.c.id).where(EXPOSURES.c.time < before)
        with self._database.writing() as connection:
            for table in (OUTCOMES, PREDICTIONS):
                connection.execute(sa.delete(table).where(table.c.exposure.in_(old)))
            return connection.execute(sa.delete(EXPOSURES).where(EXPOSURES.c.time < before)).rowcount

    def erase(self, user: str, *, dry_run: bool = False) -> int:
        """Removes all that a user met and did; returns the number of exposures."""
        theirs = EXPOSURES.c.unit == self.unit_of(user)
        ids = sa.select(EXPOSURES.c.id).where(theirs)
        if dry_run:
            with self._database.reading() as connection:
                return connection.execute(sa.select(sa.func.count()).where(theirs)).scalar_one()
        with self._database.writing() as connection:
            if (
                self._database.is_sqlite
            ):  # else the rows would stay in the file until something is written over them
                connection.exec_driver_sql("PRAGMA secure_delete = ON")
            for table in (OUTCOMES, PREDICTIONS):
                connection.execute(sa.delete(table).where(table.c.exposure.in_(ids)))
            num = connection.execute(sa.delete(EXPOSURES).where(theirs)).rowcount
        if self._database.is_sqlite:
            with self._database.reading() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        return num

    def _insert_exposures(self, connection: sa.Connection, exposures: Sequence[Exposure]) -> None:
        predicted = [
            {"exposure": one.id, "predicted": one.predicted} for one in exposures if one.predicted is not None
        ]
        if predicted:
            connection.execute(self._database.insert(PREDICTIONS), predicted)
        rows = [(*row[:_ITEMS], _text(row[_ITEMS]), *row[_ITEMS + 1 :]) for row in map(_row, exposures)]
        if not self._database.is_sqlite:
            connection.execute(
                self._database.insert(EXPOSURES), [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
            )
            return
        # Many rows in one statement, which runs without Python's lock: the event loop goes on meanwhile.
        marks = f"({', '.join('?' * len(_COLUMNS))})"
        for start in range(0, len(rows), MAX_ROWS):
            some = rows[start : start + MAX_ROWS]
            statement = self._one_row.replace(marks, ", ".join([marks] * len(some)))
            connection.exec_driver_sql(statement, tuple(itertools.chain.from_iterable(some)))

    def _begin(self) -> str:
        """Creates the tables and the traffic row if missing; returns the secret."""
        first = {**asdict(Traffic()), "id": 1, "secret": secrets.token_hex(32)}
        with self._database.writing() as connection:
            if not self._database.is_sqlite:  # of routers that start at once, one creates the tables
                connection.exec_driver_sql("SELECT pg_advisory_xact_lock(74565)")
            METADATA.create_all(connection)
            connection.execute(self._database.insert(TRAFFIC), first)
            row = connection.execute(sa.select(TRAFFIC)).mappings().one()
            connection.execute(
                self._database.insert(MOVES), {column.name: row[column.name] for column in MOVES.c}
            )
            self._clock.set(connection, Traffic(**{one.name: row[one.name] for one in fields(Traffic)}))
            return str(row["secret"])


_COLUMNS = tuple(column.name for column in EXPOSURES.columns)
_row = operator.attrgetter(*_COLUMNS)
_ITEMS = _COLUMNS.index("items")


@functools.lru_cache(maxsize=10_000)
def _text(items: tuple[str, ...]) -> str:
    return json.dumps(items)


def _check(traffic: Traffic) -> None:
    """Raises ReleaseError unless routers can serve what the traffic says."""
    if not 0 <= traffic.share <= 1:
        raise ReleaseError(f"the challenger's share is {traffic.share:g}; give it one from 0 to 1")
    if traffic.challenger and (not traffic.experiment or traffic.challenger == traffic.champion):
        raise ReleaseError(
            f"version {traffic.challenger} challenges version {traffic.champion} in experiment "
            f"{traffic.experiment!r}; name another version, and an experiment"
        )


def existing_log(params: ServingParams, home: Path) -> Log | None:
    """Returns the log of serving; None if no router has ever served from this home."""
    url = log_url(params, home)
    if url == _own(home) and not (home / LOG).exists():
        return None
    return open_log(url)


def log_url(params: ServingParams, home: Path) -> str:
    """Returns the URL of the log: $DAYBREAK_LOG, which may hold a password, serving.log, or a SQLite file.

    $DAYBREAK_LOG is the log of one model, so a member of a fleet does not heed it.
    """
    given = "" if membership(home) else os.environ.get("DAYBREAK_LOG")
    return given or params.log or _own(home)


def _own(home: Path) -> str:
    return f"sqlite:///{home / LOG}"


def read_url(uri: str) -> str:
    """Returns the URL of a database from the file at `uri`, so that no environment holds its password.

    Raises ParamsError if the file cannot be read or is empty.
    """
    import fsspec

    try:
        with fsspec.open(uri, "rt", **options(uri)) as file:
            text, reason = str(file.read()).strip(), "it is empty"
    except OSError as error:
        text, reason = "", f"{type(error).__name__}: {error}"
    if text:
        return text
    raise ParamsError(
        f"no URL of a log can be read from {uri} ({reason}); write it there, or change serving.endpoint.log"
    )
