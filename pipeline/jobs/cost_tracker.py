"""What has training cost so far? `meter.json` in the folder of a job, moved on at each look at it.

Where the backend can tell what the job has cost, attempts that were taken away included, that is it. Else it
is estimated: a machine is paid for from the last look at which it was only queued for until the look that
finds it ended, whatever was billed in between: so the meter is never behind, and ahead by two looks at most
for each time that machines were asked for. Where the job itself tells when it ended, that is taken.
"""

import json
from pathlib import Path

from pipeline.storage.journal import Journal

FILE = "meter.json"


class CostTracker:
    """The dollars of one job."""

    def __init__(self, folder: Path, *, night: str = "") -> None:
        self._journal = Journal(folder / FILE, empty={})
        told = self._journal.read()
        self._night: str = told.get("night", night)
        self.usd: float = told.get("usd", 0.0)
        self._time: float | None = told.get("time")

    def move(self, now: float, *, usd_per_s: float, billed_usd: float | None = None) -> None:
        """It is `now`; since the last look, a second has cost so much: 0 where no machine was held.

        `billed_usd` counts instead where it is known: all that the job has cost until now.
        """
        since_s = now - self._time if self._time is not None else 0.0
        if usd_per_s and since_s > 0:
            self.usd += since_s * usd_per_s
        self.usd = self.usd if billed_usd is None else billed_usd
        self._time = now if self._time is None else max(now, self._time)
        self._journal.write({"night": self._night, "time": self._time, "usd": self.usd})


def spent_usd(jobs: Path, *, night: str) -> float:
    """What all jobs of a night have cost so far; other nights may have run in the same folder."""
    told = [json.loads(path.read_text()) for path in jobs.glob(f"*/{FILE}")]
    return float(sum(each["usd"] for each in told if each["night"] == night))
