"""Writes every outcome to the disk before it is acknowledged, thousands a second, by group commit.

One thread writes: everything that arrived during the last commit goes into the next. An outcome is
acknowledged after its commit. An exposure may wait up to FLUSH_S for others, since no client waits for its
commit; a router that is killed loses the exposures of that time, and an outcome of a lost exposure is
answered with an error. Otherwise an outcome is written after its exposure.
"""

import asyncio
import logging
import threading
from collections import deque
from dataclasses import replace

from daybreak.contract.errors import JobError
from daybreak.storage.exposures import Exposure, ExposureLog, Outcome, Shadow

log = logging.getLogger(__name__)

FLUSH_S = 0.1
RETRY_S = 1.0
MAX_WAITING = 100_000  # exposures, while the database is down; the oldest are dropped first
MAX_ROWS = 2000  # of a commit
Waiting = tuple[Outcome, "asyncio.Future[bool]"]


class Writer:
    """Writes the exposures and outcomes of the event loop that it is created in."""

    def __init__(self, exposures: ExposureLog) -> None:
        self._log, self._loop = exposures, asyncio.get_running_loop()
        self._exposures: deque[Exposure] = deque(maxlen=MAX_WAITING)
        self._shadows: deque[Shadow] = deque(maxlen=MAX_WAITING)
        self._outcomes: deque[Waiting] = deque()
        self._some, self._urgent = threading.Event(), threading.Event()
        self._ended = False
        self.num_lost = 0  # exposures that were never written
        self.fault = ""  # why it cannot write now
        self._thread = threading.Thread(target=self._work, name="writer", daemon=True)
        self._thread.start()

    def expose(self, exposure: Exposure) -> None:
        """Queues an exposure to be written soon."""
        self.num_lost += len(self._exposures) == MAX_WAITING
        if self.fault and exposure.kept:  # what waits for the database is to stay small
            exposure = replace(exposure, kept=None)
        self._exposures.append(exposure)
        if not self._some.is_set():
            self._some.set()

    def shadow(self, shadow: Shadow) -> None:
        """Queues a challenger's answer that nobody was shown, to be written soon."""
        self._shadows.append(shadow)
        if not self._some.is_set():
            self._some.set()

    def outcome(self, outcome: Outcome) -> "asyncio.Future[bool]":
        """Returns a future, done once the outcome is committed: whether its exposure is known.

        Its error is a JobError if the outcome could not be written.
        """
        future: asyncio.Future[bool] = self._loop.create_future()
        self._outcomes.append((outcome, future))
        self._some.set()
        self._urgent.set()
        return future

    def close(self) -> None:
        """Writes what waits, and ends the thread."""
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
            while self._exposures or self._outcomes or self._shadows:
                if not self._write():
                    self._some.set()  # for what is left
                    break
            if self._ended:
                return

    def _write(self) -> bool:
        """Commits what waits, outcomes after their exposures; returns False if that failed."""
        waiting = [self._outcomes.popleft() for _ in range(min(len(self._outcomes), MAX_ROWS))]
        # Read after the outcomes, so that the exposures of all these outcomes are among them.
        exposures = [self._exposures.popleft() for _ in range(len(self._exposures))]
        shadows = [self._shadows.popleft() for _ in range(len(self._shadows))]
        known: list[bool] | JobError
        try:
            known, self.fault = self._log.write(exposures, [one for one, _ in waiting], shadows), ""
        except JobError as error:
            if not self.fault:
                log.error("%s", error)
            known, self.fault = error, str(error)
            room = MAX_WAITING - len(self._exposures)
            self.num_lost += max(0, len(exposures) - room)
            self._exposures.extendleft(reversed(exposures[-room:] if room else []))
            self._shadows.extendleft(reversed(shadows))
        except Exception as error:  # rows that no database takes are not retried; the next commit may succeed
            log.exception("%d exposures and %d outcomes are not kept", len(exposures), len(waiting))
            known, self.num_lost = JobError(str(error)), self.num_lost + len(exposures)
        if waiting:
            self._loop.call_soon_threadsafe(_acknowledge, waiting, known)
        return not self.fault


class NoLog:
    """Stands in for a writer where there is no log."""

    num_lost, fault = 0, ""

    def expose(self, exposure: Exposure) -> None:
        """Drops the exposure."""

    def shadow(self, shadow: Shadow) -> None:
        """Drops the answer."""

    def outcome(self, outcome: Outcome) -> "asyncio.Future[bool]":
        """Raises JobError, since no outcome can be recorded."""
        raise JobError("no log is kept here")

    def close(self) -> None:
        """Does nothing, since nothing waits."""


def _acknowledge(waiting: list[Waiting], known: "list[bool] | JobError") -> None:
    for place, (_, future) in enumerate(waiting):
        if future.done():
            continue  # the client has gone
        if isinstance(known, JobError):
            future.set_exception(known)
        else:
            future.set_result(known[place])
