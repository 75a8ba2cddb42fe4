"""How is every outcome on the disk before it is acknowledged, at thousands a second? By group commit.

One thread writes: all that came while the last commit was under way goes into the next one. An outcome is
acknowledged after its commit. An exposure waits at most FLUSH_S for others, since nobody waits for it; a
router that is killed loses the exposures of that time, and whoever reports on one of them is told that it is
not known. An outcome comes behind its exposure, so it never finds that missing otherwise.
"""

import asyncio
import logging
import threading
from collections import deque

from pipeline.contract.errors import JobError
from pipeline.storage.traffic_log import Exposure, Log, Outcome

log = logging.getLogger(__name__)

FLUSH_S = 0.1
RETRY_S = 1.0
MAX_WAITING = 100_000  # exposures, while the database is away; the oldest go first
MAX_ROWS = 2000  # of a commit
Told = tuple[Outcome, "asyncio.Future[bool]"]


class Writer:
    """Takes exposures and outcomes from the event loop that it is made in."""

    def __init__(self, kept: Log) -> None:
        self._log, self._loop = kept, asyncio.get_running_loop()
        self._exposures: deque[Exposure] = deque(maxlen=MAX_WAITING)
        self._outcomes: deque[Told] = deque()
        self._some, self._urgent = threading.Event(), threading.Event()
        self._ended = False
        self.num_lost = 0  # exposures that were never written
        self.fault = ""  # why it cannot write now
        self._thread = threading.Thread(target=self._work, name="writer", daemon=True)
        self._thread.start()

    def expose(self, exposure: Exposure) -> None:
        """Keep an exposure soon."""
        self.num_lost += len(self._exposures) == MAX_WAITING
        self._exposures.append(exposure)
        if not self._some.is_set():
            self._some.set()

    def outcome(self, outcome: Outcome) -> "asyncio.Future[bool]":
        """Done once it is committed: whether its exposure is known. JobError if it could not be written."""
        future: asyncio.Future[bool] = self._loop.create_future()
        self._outcomes.append((outcome, future))
        self._some.set()
        self._urgent.set()
        return future

    def close(self) -> None:
        """Write what waits, and end."""
        self._ended = True
        self._some.set()
        self._urgent.set()
        self._thread.join()

    def _work(self) -> None:
        while True:
            self._some.wait()
            self._urgent.wait(RETRY_S if self.fault else FLUSH_S)
            self._some.clear()
            self._urgent.clear()
            while self._exposures or self._outcomes:
                if not self._write():
                    self._some.set()  # what is left
                    break
            if self._ended:
                return

    def _write(self) -> bool:
        """Commit what waits, outcomes behind their exposures; False where that failed."""
        told = [self._outcomes.popleft() for _ in range(min(len(self._outcomes), MAX_ROWS))]
        # All exposures that were there before the outcomes were taken, and so all that these are of.
        exposures = [self._exposures.popleft() for _ in range(len(self._exposures))]
        known: list[bool] | JobError
        try:
            known, self.fault = self._log.write(exposures, [outcome for outcome, _ in told]), ""
        except JobError as error:
            if not self.fault:
                log.error("%s", error)
            known, self.fault = error, str(error)
            room = MAX_WAITING - len(self._exposures)
            self.num_lost += max(0, len(exposures) - room)
            self._exposures.extendleft(reversed(exposures[-room:] if room else []))
        except Exception as error:  # the next commit may do: what no database takes is not tried again
            log.exception("%d exposures and %d outcomes are not kept", len(exposures), len(told))
            known, self.num_lost = JobError(str(error)), self.num_lost + len(exposures)
        if told:
            self._loop.call_soon_threadsafe(_acknowledge, told, known)
        return not self.fault


class Nowhere:
    """In the place of a writer where no log is kept."""

    num_lost, fault = 0, ""

    def expose(self, exposure: Exposure) -> None:
        """Nobody asks for it."""

    def outcome(self, outcome: Outcome) -> "asyncio.Future[bool]":
        """Nothing can be kept."""
        raise JobError("no log is kept here")

    def close(self) -> None:
        """Nothing waits."""


def _acknowledge(told: list[Told], known: "list[bool] | JobError") -> None:
    for place, (_, future) in enumerate(told):
        if future.done():
            continue  # whoever told has gone
        if isinstance(known, JobError):
            future.set_exception(known)
        else:
            future.set_result(known[place])
