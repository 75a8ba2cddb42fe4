"""Says which version answers a user, where a team serves by itself.

    assigner = Assigner("postgresql+psycopg2://host/serving")  # serving.log; one in each process
    answers = assigner.assign("14980").version

A router draws by the same hash and the same traffic row, so both agree on every user. The row is read at most
once every READ_S, by one request while the others go on with what was read before; the rest is a hash. Where
the log does not answer, users meet what they met before, as behind a router.
"""

import logging
import threading
import time
from dataclasses import dataclass

from daybreak.contract.errors import JobError
from daybreak.statistics.assignment import CHALLENGER, arm_of, slot_of
from daybreak.storage.traffic_log import open_log
from daybreak.storage.traffic_row import Traffic

log = logging.getLogger(__name__)

READ_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """Which version answers a user now."""

    unit: str  # the user as the log knows it
    arm: str  # champion or challenger
    version: int  # of the registry; 0: none was promoted since the log was made, `status` says which serves
    experiment: str  # "": none is on
    share: float  # of the users who meet the challenger


class Assigner:
    """Follows the traffic row of a log; threads may share it."""

    def __init__(self, url: str) -> None:
        self._log = open_log(url)
        self._reading, self._read_at = threading.Lock(), time.monotonic()
        self._traffic = self._log.traffic.read()

    def assign(self, user: str) -> Assignment:
        """Returns the version that answers the user now, and the arm that this is."""
        if time.monotonic() > self._read_at + READ_S and self._reading.acquire(blocking=False):
            try:
                self._follow()
            finally:
                self._reading.release()
        return assignment(self._log.unit_of(user), self._traffic)

    def close(self) -> None:
        """Releases the connections."""
        self._log.close()

    def _follow(self) -> None:
        try:
            self._traffic = self._log.traffic.read()
        except JobError as error:
            log.warning("%s", error)
        self._read_at = time.monotonic()


def assignment(unit: str, traffic: Traffic) -> Assignment:
    """Returns what the traffic row says of a unit."""
    traffic = traffic.in_slot(slot_of(unit, traffic.num_slots))
    arm = arm_of(unit, experiment=traffic.experiment, share=traffic.share)
    return Assignment(
        unit=unit,
        arm=arm,
        version=traffic.challenger if arm == CHALLENGER else traffic.champion,
        experiment=traffic.experiment,
        share=traffic.share,
    )
