"""Keeps a bag in a folder: what it is, its events, and what its runs left.

    var/bags/NAME/bag.json       the record `Bag`        events.jsonl   what happened (pipeline/bag/state.py)
                  leases/0001/   the job of a machine    work/          runs that are not done
                  seeds/17/      what the run of that seed left, log.txt among it; there once it succeeded

Workers on several machines and the dispatcher write events, one at a time under a lock.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.bag.state import State
from pipeline.contract import records
from pipeline.contract.records import Record, Rental
from pipeline.storage import jsonl
from pipeline.storage.journal import alone

BAGS = Path("var/bags")  # in the home of the nights


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
    until: datetime  # when its last machine ends
    closed_at: datetime | None = None  # when it was done or stopped; None while it goes on

    @property
    def night(self) -> str:
        """Returns what its jobs have as the label of their night."""
        return f"bag-{self.name}"


class BagFolder:
    """The folder of one bag, as one process sees it."""

    def __init__(self, path: Path, bag: Bag) -> None:
        self.path, self.bag = path, bag
        self.state = State(num_runs=bag.num_runs, num_needed=bag.num_needed)
        self._position = 0

    @classmethod
    def open(cls, path: Path) -> "BagFolder":
        """Returns the folder of a bag that is there."""
        return cls(path, records.read(Bag, path))

    @contextmanager
    def alone(self) -> Iterator[State]:
        """Keeps all others from writing, and gives the state as it now is."""
        with alone(self.path / "events.lock"):
            yield self.refreshed()

    def refreshed(self) -> State:
        """Returns the state with all events that have come meanwhile."""
        events, self._position = jsonl.after(self._events, self._position)
        self.state.fold(events)
        return self.state

    def add(self, event: str, **facts: Any) -> None:
        """Appends an event; the caller holds the lock."""
        jsonl.add(self._events, {"event": event, **facts})
        self.refreshed()

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
    def _events(self) -> Path:
        return self.path / "events.jsonl"


def bags(home: Path) -> Sequence[Bag]:
    """Returns the bags of a home."""
    return [records.read(Bag, path.parent) for path in sorted((home / BAGS).glob("*/bag.json"))]
