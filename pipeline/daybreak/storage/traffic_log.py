"""Opens the log of serving: exposures, the traffic row, and the servers that are alive, in one SQL database.

It is the only channel between gate, saga and routers, for any number of routers. It is a SQLite file in WAL
mode by default, or PostgreSQL by `serving.log`. What is committed here is on the disk (synchronous=FULL).

    log = open_log(url)
    log.exposures   what users were answered, and what came of it (exposures.py)
    log.kept_rows   the rows of a sample of these requests (kept_rows.py)
    log.traffic     which versions are to serve (traffic_row.py)
    log.servers     which routers and endpoints serve them (live_servers.py)
    log.now()       the time that all of these go by (log_clock.py)
"""

import os
import secrets
from hashlib import blake2b
from pathlib import Path

import sqlalchemy as sa

from daybreak.contract.clock import Clock
from daybreak.contract.errors import ParamsError
from daybreak.contract.sections import ServingParams
from daybreak.contract.units import DAY_S
from daybreak.storage.bucket import options
from daybreak.storage.checkout import membership
from daybreak.storage.exposures import ExposureLog
from daybreak.storage.kept_rows import KeptRowsLog
from daybreak.storage.live_servers import LiveServers
from daybreak.storage.log_clock import LogClock
from daybreak.storage.traffic_database import METADATA, MOVES, TRAFFIC, TrafficDatabase
from daybreak.storage.traffic_row import Traffic, TrafficRow, row_of, traffic_of

MOVES_DAYS = 365  # that moves of the traffic are kept
LOG = Path("var") / "serving.db"  # in the home, unless serving.log names another


def open_log(url: str) -> "Log":
    """Returns the log at a database URL, created if it does not exist; JobError if it does not answer."""
    return Log(url)


class Log:
    """The database of the log; threads may share it."""

    def __init__(self, url: str, clock_here: Clock | None = None) -> None:
        """Opens or creates it; tests give it another clock of the machine."""
        self._database = TrafficDatabase(url)
        self._clock = LogClock(self._database, clock_here or Clock())
        self.url = self._database.url
        self.exposures = ExposureLog(self._database, self._clock)
        self.kept_rows = KeptRowsLog(self._database)
        self.traffic = TrafficRow(self._database, self._clock)
        self.servers = LiveServers(self._database, self._clock)
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

    def forget(self, *, before: float, dry_run: bool = False) -> int:
        """Removes exposures from before a time, with their outcomes; returns the number of exposures.

        Moves of the traffic and stops of experiments go after a year, when no test that asks for them is on.
        """
        if not dry_run:
            self.traffic.forget(before=min(before, self.now() - MOVES_DAYS * DAY_S))
        return self.exposures.forget(before=before, dry_run=dry_run)

    def now(self) -> float:
        """Returns the time by the clock of this log, in seconds since 1970, without asking the database.

        It is the server's; for a SQLite file it is this machine's, which runs evenly during a night's
        experiment even if the clock is set meanwhile: users count by the hours since they came.
        """
        return self._clock.now()

    def _begin(self) -> str:
        """Creates the tables and the traffic row if missing; returns the secret."""
        first = {**row_of(Traffic()), "id": 1, "secret": secrets.token_hex(32)}
        with self._database.writing() as connection:
            if not self._database.is_sqlite:  # of routers that start at once, one creates the tables
                connection.exec_driver_sql("SELECT pg_advisory_xact_lock(74565)")
            METADATA.create_all(connection)
            connection.execute(self._database.insert(TRAFFIC), first)
            row = connection.execute(sa.select(TRAFFIC)).mappings().one()
            connection.execute(
                self._database.insert(MOVES), {column.name: row[column.name] for column in MOVES.c}
            )
            traffic = traffic_of(row)
            self._clock.set(connection, keep=bool(traffic.experiment) and not traffic.is_holdback)
            return str(row["secret"])


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
