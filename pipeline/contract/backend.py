"""Where does a job run? The protocol `Backend`, and what it is given."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

from pipeline.contract.errors import JobError
from pipeline.contract.machine import Machine
from pipeline.contract.records import Rental

State = Literal["queued", "running", "succeeded", "failed", "preempted", "refused"]
LIVE: tuple[State, ...] = ("queued", "running")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job; `name` is a digest of what goes in, so that asking twice starts it once."""

    name: str
    module: str  # that is run, as `python -m`
    arguments: tuple[str, ...] = ()  # of the module
    num_workers: int = 0  # by torchrun, on each machine; 0: the module itself, as one process
    rental: Rental
    folder: str  # holds job.json, checkpoints, heartbeat and the model; a path or a URI
    timeout_s: float
    environment: dict[str, str] = field(default_factory=dict)
    # Of the night, if job.json in the folder does not say so: its name, what it trains, and when that ends.
    night: str = ""
    model: str = ""
    until: datetime | None = None


class OutOfTime(JobError):
    """The end of training came before the job could be submitted."""


@dataclass(frozen=True, kw_only=True)
class LiveJob:
    """A job as the place where it runs tells of it."""

    handle: str
    job: str  # its name
    night: str  # its id, or the label of it
    state: State
    created_at: datetime


def label(text: str) -> str:
    """The text as the value of a label: lower case, digits, _ and -, at most 63; unlike texts stay unlike.

    >>> label("2026-11-21"), label("")
    ('2026-11-21', 'none')
    >>> label("Night 7").startswith("night_7-")
    True
    """
    plain = re.sub(r"[^a-z0-9_-]", "_", text.lower())
    if plain == text and len(plain) <= 63:
        return plain or "none"
    return f"{plain[:50]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class Backend(Protocol):
    """Where a job runs, and what can be rented there. Inherit from it: what costs nothing says no more."""

    def submit(self, job: Job) -> str:
        """Start the job, or attach to the one of that name, and return its handle.

        Raises NotYet where that place cannot be asked now: calling again goes on; OutOfTime where training
        has to end before a job could run. One that is submitted late is given the time that is left.
        """

    def state(self, handle: str) -> State:
        """What the job is doing now.

        `preempted` was ended from outside and may be submitted again as it is; `refused` found no machine
        (no capacity, no quota, the wait is over): it has to be asked for otherwise.
        """

    def cancel(self, handle: str) -> None:
        """End the job and all its processes; no error if it has ended."""

    def machines(self) -> Sequence[Machine]:
        """Returns what jobs can run on, with prices; `catalog.AT_HAND` for the machine at hand."""

    def logs(self, handle: str) -> str:
        """Returns where a person reads what the job has printed: a path or an address."""

    def usd(self, folder: Path) -> float | None:
        """What the job in `folder` has cost, with what was taken away; None where it cannot tell."""
        return None

    def live(self) -> Sequence[LiveJob]:
        """The jobs of this pipeline that are queued or running and cost money, whoever asked for them."""
        return ()

    def preflight(self, regions: Sequence[str]) -> Iterator[tuple[str, bool, str]]:
        """What a job needs to be taken: what was looked at, whether it is well, and what is to be done."""
        yield from ()
