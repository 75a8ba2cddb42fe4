"""What was shown to whom, what came of it, and what shall routers do? One SQL database says all three.

    exposures   an answer that a router gave: unit, arm, version, items; never the user's own name
    outcomes    what the user then took; the first one told of an exposure stays
    traffic     one row: which versions serve, and the challenger's share; moved by compare-and-swap
    routers     what each router that lives serves right now, written by its heartbeat
    endpoints   which revision of the traffic an endpoint does, that draws versions by itself, and since when

It is the only channel between gate, saga and routers, for any number of routers. A SQLite file in WAL mode by
default, PostgreSQL by `serving.log`. What is committed here is on the disk (synchronous=FULL).

    log = open_log(url)
    log.set_traffic(replace(log.traffic(), challenger=4, share=0.01, experiment=night.id))
    for exposure in log.exposures(night.id): exposure.arm, exposure.items, exposure.taken

Routers need a moment to follow: an exposure tells the version and the share that it was drawn with.
"""

import contextlib
import functools
import itertools
import json
import operator
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from pipeline.contract.errors import JobError, ParamsError, ReleaseError
from pipeline.contract.params import ServingParams
from pipeline.storage.bucket import options

ALIVE_S = 10.0  # a router that was not heard of for so long is gone
LOG = Path("var") / "serving.db"  # in the home, where serving.log names no other
BUSY_S = 30.0  # that a writer waits for another one
NUM_TRIES = 20
MAX_ROWS = 500  # of a statement; SQLite takes 32,766 values

_metadata = sa.MetaData()
_exposures = sa.Table(
    "exposures", _metadata,
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
)  # fmt: skip
_outcomes = sa.Table(
    "outcomes", _metadata,
    sa.Column("exposure", sa.String(32), primary_key=True),
    sa.Column("time", sa.Double, nullable=False),
    sa.Column("items", sa.Text, nullable=False),  # JSON
)  # fmt: skip
_traffic = sa.Table(
    "traffic", _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("champion", sa.Integer, nullable=False),
    sa.Column("challenger", sa.Integer, nullable=False),
    sa.Column("share", sa.Double, nullable=False),
    sa.Column("experiment", sa.String(200), nullable=False),
    sa.Column("ready", sa.Integer, nullable=False),
    sa.Column("changed_at", sa.Double, nullable=False),
    sa.Column("secret", sa.String(64), nullable=False),
)  # fmt: skip
_routers = sa.Table(
    "routers", _metadata,
    sa.Column("id", sa.String(100), primary_key=True),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("champion", sa.Integer, nullable=False),
    sa.Column("challenger", sa.Integer, nullable=False),
    sa.Column("share", sa.Double, nullable=False),
    sa.Column("loaded", sa.Text, nullable=False),  # JSON
    sa.Column("fault", sa.Text, nullable=False),
    sa.Column("seen_at", sa.Double, nullable=False),
)  # fmt: skip
_endpoints = sa.Table(
    "endpoints", _metadata,
    sa.Column("id", sa.String(300), primary_key=True),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("since", sa.Double, nullable=False),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What routers shall do. Versions are 0 where there is none; champion 0: follow MLflow's alias."""

    revision: int = 0  # counts changes
    champion: int = 0
    challenger: int = 0
    share: float = 0.0  # of the units, that meet the challenger
    experiment: str = ""  # its name salts the assignment: the night's id
    ready: int = 0  # another version to hold loaded, that meets nobody yet
    changed_at: float = 0.0

    @property
    def wanted(self) -> tuple[int, ...]:
        """Versions to hold loaded."""
        return tuple(sorted({self.champion, self.challenger, self.ready} - {0}))


@dataclass(frozen=True, kw_only=True)
class RouterState:
    """What a router serves, as it says itself."""

    id: str
    revision: int = 0  # of the traffic that it does
    champion: int = 0
    challenger: int = 0
    share: float = 0.0
    loaded: tuple[int, ...] = ()
    fault: str = ""  # why it does not do all of what the traffic says
    seen_at: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Exposure:
    """An answer to a user, and what came of it."""

    id: str
    time: float  # seconds since 1970
    experiment: str
    unit: str
    arm: str  # champion or challenger
    version: int
    share: float  # of the challenger, that the arm was drawn with
    propensity: float  # chance of this arm
    items: tuple[str, ...]  # best first
    latency_s: float  # within the router
    error: str = ""  # why the model did not answer
    fallback: bool = False  # the popular items were shown, not the model's
    taken: tuple[str, ...] | None = None  # by the user; None where nobody told (yet)
    taken_at: float | None = None  # when that was told


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a user took of an exposure, or besides it."""

    exposure: str
    items: tuple[str, ...]
    time: float = field(default_factory=time.time)


def open_log(url: str) -> "Log":
    """The log at a database URL, made if it is not there; JobError if it does not answer."""
    return Log(url)


class Log:
    """The database. Threads may share it."""

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(url)
        self._is_sqlite = self.url.get_backend_name() == "sqlite"
        if self._is_sqlite and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {"connect_args": {"timeout": BUSY_S}} if self._is_sqlite else {}
        self._engine = sa.create_engine(self.url, **options)
        if self._is_sqlite:
            sa.event.listen(self._engine, "connect", _set_up_sqlite)
        self._one_row = str(self._insert(_exposures).compile(dialect=self._engine.dialect))
        self._secret = bytes.fromhex(self._begin())

    def close(self) -> None:
        """Let go of the connections."""
        self._engine.dispose()

    def unit_of(self, user: str) -> str:
        """The user as the log knows it: a hash keyed by this log's own secret."""
        return blake2b(user.encode(errors="surrogatepass"), key=self._secret, digest_size=8).hexdigest()

    def expose(self, exposure: Exposure) -> None:
        """Keep an exposure."""
        self.write([exposure], [])

    def outcome(self, exposure: str, items: Sequence[str]) -> bool:
        """Keep what was taken; again, it changes nothing. False where there is no such exposure."""
        return self.write([], [Outcome(exposure=exposure, items=tuple(items))])[0]

    def write(self, exposures: Sequence[Exposure], outcomes: Sequence[Outcome]) -> list[bool]:
        """Keep them all in one commit; for each outcome, whether its exposure is known."""
        with self._writing() as connection:
            if exposures:
                self._insert_exposures(connection, exposures)
            if not outcomes:
                return []
            asked = sorted({outcome.exposure for outcome in outcomes})
            known: set[str] = set()
            for start in range(0, len(asked), 500):
                some = sa.select(_exposures.c.id).where(_exposures.c.id.in_(asked[start : start + 500]))
                known |= set(connection.execute(some).scalars())
            rows = [
                {"exposure": told.exposure, "time": told.time, "items": json.dumps(told.items)}
                for told in outcomes if told.exposure in known
            ]  # fmt: skip
            if rows:
                connection.execute(self._insert(_outcomes), rows)
        return [told.exposure in known for told in outcomes]

    def exposures(self, experiment: str | None, *, since: float = 0.0) -> Iterator[Exposure]:
        """Exposures of an experiment, or of all, from a time on, oldest first, each with its outcome."""
        both = _exposures.outerjoin(_outcomes, _outcomes.c.exposure == _exposures.c.id)
        asked = (
            sa.select(
                *_exposures.columns, _outcomes.c["items"].label("taken"), _outcomes.c.time.label("taken_at")
            ).select_from(both)
            .where(_exposures.c.time >= since)
            .order_by(_exposures.c.time, _exposures.c.id)
        )  # fmt: skip
        if experiment is not None:
            asked = asked.where(_exposures.c.experiment == experiment)
        with self._reading() as connection:
            for row in connection.execution_options(yield_per=10_000).execute(asked).mappings():
                taken = None if row["taken"] is None else tuple(json.loads(row["taken"]))
                yield Exposure(**{**row, "items": tuple(json.loads(row["items"])), "taken": taken})

    def traffic(self) -> Traffic:
        """What routers shall do now."""
        asked = sa.select(*(_traffic.c[told.name] for told in fields(Traffic)))
        with self._reading() as connection:
            return Traffic(**connection.execute(asked).mappings().one())

    def set_traffic(self, traffic: Traffic) -> Traffic:
        """Move the traffic, if it still is at the revision given; returns it with its new revision.

        Raises ReleaseError, with nothing changed, if somebody else moved it since it was read.
        """
        _check(traffic)
        moved = replace(traffic, revision=traffic.revision + 1, changed_at=time.time())
        with self._writing() as connection:
            where = _traffic.c.revision == traffic.revision
            done = connection.execute(sa.update(_traffic).where(where).values(**asdict(moved)))
        if done.rowcount != 1:
            raise ReleaseError(
                f"the traffic is at revision {self.traffic().revision}, not at {traffic.revision}, since "
                f"somebody else moved it; nothing is changed, look at it again"
            )
        return moved

    def change_traffic(self, change: Callable[[Traffic], Traffic]) -> Traffic:
        """Move the traffic to what `change` makes of it, whoever else moves it meanwhile."""
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

    def beat(self, state: RouterState) -> None:
        """Keep what a router says of itself, as of now."""
        told = {**asdict(state), "loaded": json.dumps(state.loaded), "seen_at": time.time()}
        insert = self._dialect.insert(_routers)
        same = insert.on_conflict_do_update(index_elements=["id"], set_=told)
        with self._writing() as connection:
            connection.execute(same, told)

    def routers(self, *, within_s: float = ALIVE_S) -> tuple[RouterState, ...]:
        """Routers that live, by id."""
        asked = sa.select(_routers).where(_routers.c.seen_at > time.time() - within_s).order_by(_routers.c.id)
        with self._reading() as connection:
            rows = connection.execute(asked).mappings().all()
        return tuple(RouterState(**{**row, "loaded": tuple(json.loads(row["loaded"]))}) for row in rows)

    def follow(self, endpoint: str, revision: int, *, since: float) -> None:
        """Keep that an endpoint does what the traffic said at that revision, from a time on."""
        told = {"id": endpoint, "revision": revision, "since": since}
        insert = self._dialect.insert(_endpoints)
        with self._writing() as connection:
            connection.execute(insert.on_conflict_do_update(index_elements=["id"], set_=told), told)

    def followed(self, endpoint: str) -> tuple[int, float]:
        """The revision that an endpoint does, and since when; -1 where it does none."""
        asked = sa.select(_endpoints.c.revision, _endpoints.c.since).where(_endpoints.c.id == endpoint)
        with self._reading() as connection:
            found = connection.execute(asked).one_or_none()
        return (found.revision, found.since) if found else (-1, 0.0)

    def leave(self, router: str) -> None:
        """Forget a router that ends, and those that ended long ago without saying so."""
        gone = (_routers.c.id == router) | (_routers.c.seen_at < time.time() - 100 * ALIVE_S)
        with self._writing() as connection:
            connection.execute(sa.delete(_routers).where(gone))

    def forget(self, *, before: float) -> int:
        """Remove exposures from before a time, and their outcomes; how many exposures."""
        old = sa.select(_exposures.c.id).where(_exposures.c.time < before)
        with self._writing() as connection:
            connection.execute(sa.delete(_outcomes).where(_outcomes.c.exposure.in_(old)))
            return connection.execute(sa.delete(_exposures).where(_exposures.c.time < before)).rowcount

    @property
    def _dialect(self) -> Any:
        """Where `insert ... on conflict` of this database is."""
        return sqlite if self._is_sqlite else postgresql

    def _insert_exposures(self, connection: sa.Connection, exposures: Sequence[Exposure]) -> None:
        rows = [(*row[:_ITEMS], _text(row[_ITEMS]), *row[_ITEMS + 1 :]) for row in map(_row, exposures)]
        if not self._is_sqlite:
            connection.execute(
                self._insert(_exposures), [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
            )
            return
        # Many rows in one statement, which runs without Python's lock: the event loop goes on meanwhile.
        marks = f"({', '.join('?' * len(_COLUMNS))})"
        for start in range(0, len(rows), MAX_ROWS):
            some = rows[start : start + MAX_ROWS]
            statement = self._one_row.replace(marks, ", ".join([marks] * len(some)))
            connection.exec_driver_sql(statement, tuple(itertools.chain.from_iterable(some)))

    def _insert(self, table: sa.Table) -> Any:
        """Insert; what is there already stays."""
        return self._dialect.insert(table).on_conflict_do_nothing()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """A transaction that is committed at the end of the block."""
        with self._told(), self._engine.begin() as connection:
            if self._is_sqlite:  # the lock at once: a reader cannot become a writer if another one wrote
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._told(), self._engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """JobError, without the password, where the database does not answer."""
        try:
            yield
        except sa.exc.DBAPIError as error:
            told = " ".join(str(error.orig).split())[:200]
            raise JobError(
                f"the log of serving at {self.url.render_as_string()} does not answer: {told}; "
                f"start its database, or mend serving.log"
            ) from error

    def _begin(self) -> str:
        """Make what is missing; the secret."""
        first = {**asdict(Traffic()), "id": 1, "secret": secrets.token_hex(32)}
        with self._writing() as connection:
            if not self._is_sqlite:  # of routers that start at once, one makes the tables
                connection.exec_driver_sql("SELECT pg_advisory_xact_lock(74565)")
            _metadata.create_all(connection)
            connection.execute(self._insert(_traffic), first)
            return str(connection.execute(sa.select(_traffic.c.secret)).scalar_one())


def _set_up_sqlite(connection: Any, _: object) -> None:
    connection.execute("PRAGMA journal_mode=WAL")  # readers and the writer do not wait for each other
    connection.execute("PRAGMA synchronous=FULL")  # what is committed is on the disk


_COLUMNS = tuple(column.name for column in _exposures.columns)
_row = operator.attrgetter(*_COLUMNS)
_ITEMS = _COLUMNS.index("items")


@functools.lru_cache(maxsize=10_000)
def _text(items: tuple[str, ...]) -> str:
    return json.dumps(items)


def _check(traffic: Traffic) -> None:
    """ReleaseError unless routers can do what the traffic says."""
    if not 0 <= traffic.share <= 1:
        raise ReleaseError(f"the challenger's share is {traffic.share:g}; give it one from 0 to 1")
    if traffic.challenger and (not traffic.experiment or traffic.challenger == traffic.champion):
        raise ReleaseError(
            f"version {traffic.challenger} challenges version {traffic.champion} in experiment "
            f"{traffic.experiment!r}; name another version, and an experiment"
        )


def existing_log(told: ServingParams, home: Path) -> Log | None:
    """The log of serving; None where nobody has ever served from this home."""
    url = log_url(told, home)
    if url == _own(home) and not (home / LOG).exists():
        return None
    return open_log(url)


def log_url(told: ServingParams, home: Path) -> str:
    """URL of the log of serving: $DAYBREAK_LOG, which may hold a password, serving.log, or a SQLite file."""
    return os.environ.get("DAYBREAK_LOG") or told.log or _own(home)


def _own(home: Path) -> str:
    return f"sqlite:///{home / LOG}"


def read_url(uri: str) -> str:
    """Returns the URL of a database that the file at `uri` holds, so that its password is in no environment.

    Raises ParamsError where nothing can be read there.
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
