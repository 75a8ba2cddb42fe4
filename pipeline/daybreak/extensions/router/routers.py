"""Makes routers follow a release: they load its version before, and are read back after, by the serving log.

A live router writes every second which versions it has loaded and serves, and a router that has not written
for ten seconds is gone. If no router is alive, the traffic row counts, and with a new log the ledger: the
next router follows these.
"""

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from daybreak.contract.errors import ReleaseError
from daybreak.contract.record_types import Release
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home

if TYPE_CHECKING:
    from collections.abc import Callable

    from daybreak.storage.live_servers import RouterState
    from daybreak.storage.traffic_log import Log
    from daybreak.storage.traffic_row import Traffic

LOAD_S = 120.0  # the most that routers may take to load a version
SHOW_S = 60.0  # the most that routers may take to serve what they have loaded
POLL_S = 0.05


class Routers:
    """The release target that is all routers; see daybreak/rollout/targets.py."""

    name = "the routers"

    def __init__(self, home: Home, log: "Log") -> None:
        self.home, self.log = home, log

    def prepare(self, release: Release) -> None:
        """Makes all live routers load the version; raises ReleaseError where one cannot."""
        number = release.version

        def ready(traffic: "Traffic") -> "Traffic":
            return traffic if number in traffic.wanted else replace(traffic, ready=number)

        traffic = self.log.traffic.change(ready)
        self._wait(
            lambda router: number in router.loaded,
            what=f"has loaded version {number}",
            limit_s=LOAD_S,
            revision=traffic.revision,
            refused=f"version {number}: ",
        )

    def show(self, release: Release) -> None:
        """Lets the version serve. Its own live test goes on; a test against another champion is over."""
        number = release.version

        def shown(traffic: "Traffic") -> "Traffic":
            free = replace(traffic, ready=0 if traffic.ready == number else traffic.ready)
            if traffic.champion == number:
                return free
            return replace(free, champion=number).with_tests(())

        traffic = self.log.traffic.change(shown)
        self._wait(
            lambda router: router.champion == number,
            what=f"serves version {number}",
            limit_s=SHOW_S,
            revision=traffic.revision,
        )

    def shown(self) -> int:
        """Returns the version that the routers serve; where they disagree, one that differs from the row."""
        promoted = ledger.champion_at(self.home, branch.ledger_tip(self.home))
        champion = self.log.traffic.read().champion or (promoted.version if promoted else 0)
        live = [router.champion for router in self.log.servers.routers()]
        return next((number for number in live if number != champion), champion)

    def discard(self, release: Release) -> None:
        """Lets routers unload a version that is not to serve after all."""
        number = release.version
        self.log.traffic.change(lambda now: replace(now, ready=0 if now.ready == number else now.ready))

    def _wait(
        self,
        done: "Callable[[RouterState], bool]",
        *,
        what: str,
        limit_s: float,
        revision: int,
        refused: str = "",
    ) -> None:
        """Waits until all live routers are `done`; ReleaseError names one that is not, or cannot be."""
        until = time.monotonic() + limit_s
        while left := [router for router in self.log.servers.routers() if not done(router)]:
            for router in left:
                if refused and router.revision >= revision and refused in router.fault:
                    raise ReleaseError(f"router {router.id} cannot load {router.fault}")
            if time.monotonic() > until:
                first = left[0]
                raise ReleaseError(
                    f"not every router {what} after {limit_s:g} s: {first.id} has not"
                    f"{f' ({first.fault})' if first.fault else ''}; look at its log, or end it"
                )
            time.sleep(POLL_S)
