"""Tracks what training has cost so far, in `meter.json` in the folder of a job, at each look at it.

If the backend knows the cost of the job, preempted attempts included, that cost counts. Else the cost is
estimated: a machine is paid for from the last look at which it was still queued until the look that sees its
end. So the estimate is never too low, and too high by two looks at most per attempt. A refused request costs
nothing. If the job itself reports when it ended, that time counts.
"""

import json
from pathlib import Path

from daybreak.contract.record_parts import Placement
from daybreak.contract.record_types import Plan
from daybreak.contract.units import HOUR_S
from daybreak.storage.journal import Journal

JOBS = Path("data/work/jobs")  # a folder for each job of a night
FILE = "meter.json"


class CostTracker:
    """The cost of one job, in dollars."""

    def __init__(self, folder: Path, *, night: str = "") -> None:
        self._journal = Journal(folder / FILE, empty={})
        before = self._journal.read()
        self._night: str = before.get("night", night)
        self.usd: float = before.get("usd", 0.0)
        self._time: float | None = before.get("time")

    def move(self, now: float, *, usd_per_s: float, billed_usd: float | None = None) -> None:
        """Adds the cost since the last look; `usd_per_s` is 0 while no machine was held.

        `billed_usd`, all that the job has cost until `now`, replaces the estimate where it is known.
        """
        since_s = now - self._time if self._time is not None else 0.0
        if usd_per_s and since_s > 0:
            self.usd += since_s * usd_per_s
        self.usd = self.usd if billed_usd is None else billed_usd
        self._time = now if self._time is None else max(now, self._time)
        self._journal.write({"night": self._night, "time": self._time, "usd": self.usd})


def usd_per_hour(way: Plan | Placement) -> float:
    """Returns the price per hour of all machines; without a price, their cost divided by their time."""
    if way.usd_per_hour is not None:
        return way.usd_per_hour * way.rental.num_machines
    expected = way.forecast if isinstance(way, Plan) else way
    return expected.expected_usd / expected.expected_s * HOUR_S if expected.expected_s else 0.0


def spent_usd(jobs: Path, *, night: str) -> float:
    """Returns what all jobs of a night have cost so far; other nights may have run in the same folder."""
    costs = [json.loads(path.read_text()) for path in jobs.glob(f"*/{FILE}")]
    return float(sum(each["usd"] for each in costs if each["night"] == night))
