"""Records who serves: live routers by their heartbeat, and the traffic that endpoints follow.

routers     the versions that each live router serves, from its heartbeat, at the database's time
endpoints   the revision of the traffic that an endpoint with draws of its own follows, and since when
"""

import json
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from daybreak.storage.log_clock import LogClock
from daybreak.storage.traffic_database import ENDPOINTS, ROUTERS, TrafficDatabase

ALIVE_S = 10.0  # a router without a heartbeat for longer is gone


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


class LiveServers:
    """The servers that report to a log; threads may share it."""

    def __init__(self, database: TrafficDatabase, clock: LogClock) -> None:
        self._database, self._clock = database, clock

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

    def leave(self, router: str) -> None:
        """Removes a router that ends, and those whose heartbeat ended long ago."""
        gone = (ROUTERS.c.id == router) | (ROUTERS.c.seen_at < self._clock.in_sql() - 100 * ALIVE_S)
        with self._database.writing() as connection:
            connection.execute(sa.delete(ROUTERS).where(gone))

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
