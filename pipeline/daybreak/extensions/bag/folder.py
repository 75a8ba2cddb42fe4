"""Keeps a bag in a folder: the request, the events, and the results of runs.

    var/bags/NAME/bag.json       the record `Bag`        events.jsonl   what happened (state.py)
                  leases/0001/   the job of a machine    work/          runs that are not done
                  seeds/17/      files of the run of that seed, with log.txt; there once it succeeded

Workers and the dispatcher add events, one at a time under a lock: each decides by the state in which nothing
else has happened. Where machines do not see this disk, all that goes by way of a bucket (`bucket_bag.py`).
"""

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from daybreak.contract import clock, records
from daybreak.contract.backend import label
from daybreak.contract.errors import DataError
from daybreak.contract.record_parts import Record, Rental
from daybreak.extensions.bag.state import BagState
from daybreak.jobs.reaper import JobOwner
from daybreak.storage import jsonl
from daybreak.storage.home import Home
from daybreak.storage.journal import alone

log = logging.getLogger(__name__)

BAGS = Path("var/bags")  # in the home of the nights
LABEL = "bag-"  # in front of the name of a bag, where a night's job has the night
LOG = "log.txt"  # of a run, in its folder
Event = dict[str, Any]  # its name as `event`, and facts (state.py)


@dataclass(frozen=True, kw_only=True)
class Bag(Record):
    """Runs of one command, one for each seed from 0 to `num_runs` - 1."""

    name: str
    command: tuple[str, ...]  # {seed} and {folder} stand for those of the run
    cwd: str  # that runs begin in
    num_runs: int
    num_needed: int
    save_s: float = 0.0  # that a run takes to save its state; 0: it does not save
    rental: Rental  # of each machine
    url: str = ""  # folder in a bucket that all machines share; "": they see this disk
    until: datetime  # when its last machine ends
    closed_at: datetime | None = None  # when it was done or stopped; None while it goes on

    @property
    def night(self) -> str:
        """Returns the label that the bag's jobs carry in place of a night."""
        return f"{LABEL}{self.name}"


class BagFolder:
    """The folder of a bag, with the state that this process has read from the events."""

    def __init__(self, path: Path, bag: Bag) -> None:
        self.path, self.bag = path, bag
        self.state = BagState(num_runs=bag.num_runs, num_needed=bag.num_needed)
        self.num_events = self._position = 0

    def refreshed(self) -> BagState:
        """Returns the state with all events that have come meanwhile."""
        events, self._position = jsonl.after(self._events, self._position)
        self.num_events += len(events)
        self.state.fold(events)
        return self.state

    def decide(self, choose: Callable[[BagState], Event | None]) -> Event | None:
        """Adds the event that `choose` makes of the state, while nobody else adds one; returns it.

        There is none if `choose` returns None. It may be called again, with a newer state.
        """
        with alone(self._lock):
            event = choose(self.refreshed())
            if event:
                jsonl.add(self._events, event, synced=event["event"] == "lease")
                self.refreshed()
        return event

    def add(self, event: str, **facts: Any) -> None:
        """Adds an event in any state."""
        self.decide(lambda _: {"event": event, **facts})

    # What a worker does with a run

    def begin(self, seed: int) -> None:
        """Prepares the folder of a run: empty, unless the command saves and resumes."""
        if not self.bag.save_s:
            shutil.rmtree(self.work(seed), ignore_errors=True)
        self.work(seed).mkdir(parents=True, exist_ok=True)

    def save(self, lease: str, seed: int) -> None:
        """Does nothing: the next machine finds saved files on this disk."""

    def end(self, event: Event) -> None:
        """Adds how a run ended, unless it is another machine's by now, and keeps the result of one done."""

        def ended(state: BagState) -> Event | None:
            if not state.holds(event["lease"], event["seed"]):
                return None
            if event["event"] == "done":
                self._keep(event["seed"])
            return event

        self.decide(ended)

    def _keep(self, seed: int) -> None:
        result = self.result(seed)
        shutil.rmtree(result, ignore_errors=True)  # of a worker that was killed before its event
        result.parent.mkdir(exist_ok=True)
        self.work(seed).rename(result)

    # What the dispatcher does beside that

    def publish(self) -> None:
        """Has machines see the events that are here, as they see this disk."""

    def fetch(self) -> None:
        """Fetches what runs left, which is on this disk."""

    def lease(self, name: str) -> Path:
        """Returns the folder of the job of a machine."""
        return self.path / "leases" / name

    def result(self, seed: int) -> Path:
        """Returns the folder of a run that is done."""
        return self.path / "seeds" / str(seed)

    def work(self, seed: int) -> Path:
        """Returns the folder of a run that is not done."""
        return self.path / "work" / str(seed)

    @property
    def _lock(self) -> Path:
        return self.path / "events.lock"

    @property
    def _events(self) -> Path:
        return self.path / "events.jsonl"


def bags(home: Path) -> Sequence[Bag]:
    """Returns the bags of a home."""
    return [records.read(Bag, path.parent) for path in _records(home)]


def standings(home: Home) -> dict[str, JobOwner]:
    """Returns the bags of a home by their labels: each may have jobs until it is over or closed.

    A bag whose record cannot be read counts as open.
    """
    owners = {}
    for path in _records(home.folder):
        try:
            bag = records.read(Bag, path.parent)
        except DataError as error:  # it may go on: its jobs stay, and those of others do not
            log.warning("the jobs of the bag in %s are left alone: %s", path.parent, error)
            owners[label(f"{LABEL}{path.parent.name}")] = JobOwner()
        else:
            owners[label(bag.night)] = JobOwner(is_over=clock.utc() > bag.until, closed_at=bag.closed_at)
    return owners


def _records(home: Path) -> list[Path]:
    return sorted((home / BAGS).glob("*/bag.json"))
