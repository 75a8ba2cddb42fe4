"""Defines where a job runs: the protocol `Backend`, and the jobs that it is given."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

from daybreak.contract.errors import JobError
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Rental

JobState = Literal["queued", "running", "succeeded", "failed", "preempted", "refused"]
LIVE: tuple[JobState, ...] = ("queued", "running")
TICK_S = 120.0  # the launcher looks at a running job at least this often


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job; `name` is a digest of its inputs, so that a job submitted twice is started once."""

    name: str
    module: str  # run as `python -m`
    arguments: tuple[str, ...] = ()  # to the module
    num_workers: int = 0  # by torchrun, on each machine; 0: the module itself, as one process
    rental: Rental
    folder: str  # holds job.json, checkpoints, heartbeat and the model; a path or a URI
    timeout_s: float
    environment: dict[str, str] = field(default_factory=dict)
    # Name, model and end of the night, for a job without job.json in its folder.
    night: str = ""
    model: str = ""
    until: datetime | None = None


class OutOfTime(JobError):
    """The end of training came before the job could be submitted."""


@dataclass(frozen=True, kw_only=True)
class LiveJob:
    """A job as the place where it runs reports it."""

    handle: str
    job: str  # its name
    night: str  # its id, or the label of it
    state: JobState
    created_at: datetime


def label(text: str) -> str:
    """Returns the text as the value of a label, distinct for each text: a-z, 0-9, _ and -, at most 63.

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
    """Where a job runs, and what can be rented there.

    Inherit from it: its defaults are right for a place that costs nothing.
    """

    def submit(self, job: Job) -> str:
        """Starts the job, or attaches to a running job of the same name, and returns the handle.

        Raises NotYet where the place does not answer now, so that the next call goes on, and OutOfTime where
        training has to end before a job could run. A job that is submitted late is given the time that is
        left.
        """

    def state(self, handle: str) -> JobState:
        """Returns what the job is doing now.

        A `preempted` job was ended from outside and may be submitted again as it is; a `refused` one got no
        machine (no capacity, no quota, the wait is over) and needs another rental.
        """

    def cancel(self, handle: str) -> None:
        """Ends the job and all its processes; no error if it has ended."""

    def machines(self) -> Sequence[Machine]:
        """Returns what jobs can run on, with prices; `catalog.AT_HAND` for the machine at hand."""

    def logs(self, handle: str) -> str:
        """Returns where a person reads what the job has printed: a path or an address."""

    def usd(self, folder: Path) -> float | None:
        """Returns what the job in `folder` has cost, preempted machines included; None if not known."""
        return None

    def live(self) -> Sequence[LiveJob]:
        """Returns the jobs of this pipeline that are queued or running and cost money, of any night."""
        return ()

    def parts(self) -> "Sequence[Backend]":
        """Returns the backends that this one consists of, each of which may be away by itself."""
        return (self,)

    def part_for(self, rental: Rental) -> "Backend":
        """Returns the backend that rents this way."""
        return self

    def live_in(self, regions: Sequence[str]) -> Sequence[LiveJob]:
        """Returns the live jobs in these regions; more of them where that costs no more.

        Each look at a job asks it, so that a job that another host submitted elsewhere does not live on.
        """
        return self.live()

    @property
    def shares_disk(self) -> bool:
        """Returns whether its machines see the folders of the nights, as this machine does."""
        return True

    @property
    def bucket_url(self) -> str:
        """Returns the URL of the folder in a bucket by which jobs are sent and come back; "" without one."""
        return ""

    def cannot_move(self, checkpoints: str) -> str:
        """Returns why a job could not go on from `train.checkpoints` wherever it may run; "" if it can."""
        return ""

    def preflight(self, regions: Sequence[str]) -> Iterator[tuple[str, bool, str]]:
        """Yields checks of everything that a job needs here: name, whether it passed, result or remedy."""
        yield from ()
