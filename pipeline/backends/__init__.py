"""Where does a job run? The protocol `Backend`, and what it is given."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol, runtime_checkable

State = Literal["queued", "running", "succeeded", "failed", "preempted", "refused"]
Strategy = Literal["on_demand", "spot", "flex_start"]
LIVE: tuple[State, ...] = ("queued", "running")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job; `name` is a digest of what goes in, so that asking twice starts it once."""

    name: str
    command: tuple[str, ...]  # torchrun and its arguments
    machine: str
    num_machines: int
    folder: str  # holds job.json, checkpoints, heartbeat and the model; a path or a URI
    timeout_s: float
    spot: bool = False  # cheaper, and may be taken away
    environment: dict[str, str] = field(default_factory=dict)
    region: str = ""  # "": where the backend is at home
    strategy: Strategy = "on_demand"  # `spot` goes before it
    wait_s: float = 0.0  # that flex-start may wait for its machine
    until: datetime | None = None  # when the night's training ends; nothing may be rented beyond it
    night: str = ""
    model: str = ""  # its name in the registry


class Backend(Protocol):
    """Where a job runs."""

    def submit(self, job: Job) -> str:
        """Start the job, or attach to the one of that name, and return its handle."""

    def state(self, handle: str) -> State:
        """What the job is doing now.

        `preempted` was ended from outside and may be submitted again as it is; `refused` found no machine
        (no capacity, no quota, the wait is over): it has to be asked for otherwise.
        """

    def cancel(self, handle: str) -> None:
        """End the job and all its processes; no error if it has ended."""


@dataclass(frozen=True, kw_only=True)
class Rental:
    """A job as the place where it runs tells of it; times are None where they have not come."""

    handle: str
    job: str  # its name
    night: str
    state: State
    created_at: datetime


@runtime_checkable
class Lists(Protocol):
    """A backend that can tell what runs there, whoever submitted it: one that costs money."""

    def live(self) -> list[Rental]:
        """The jobs of this pipeline that are queued or running."""

    def cancel(self, handle: str) -> None:
        """End the job and all its processes; no error if it has ended."""
