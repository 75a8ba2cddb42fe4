"""Where does a job run? The protocol `Backend`, and what it is given."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from pipeline.records import Strategy

State = Literal["queued", "running", "succeeded", "failed", "preempted"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job; `name` is a digest of what goes in, so that asking twice starts it once."""

    name: str
    command: tuple[str, ...]  # torchrun and its arguments
    machine: str
    num_machines: int
    folder: str  # holds job.json, checkpoints, heartbeat and the model; a path or a URI
    timeout_s: float
    region: str = ""  # "" for the machine at hand
    strategy: Strategy = "on-demand"  # spot is cheaper, and may be taken away
    max_wait_s: float = 0.0  # in the queue of flex-start
    environment: dict[str, str] = field(default_factory=dict)


class Backend(Protocol):
    """Where a job runs."""

    def submit(self, job: Job) -> str:
        """Start the job, or attach to the one of that name, and return its handle."""

    def state(self, handle: str) -> State:
        """What the job is doing now."""

    def cancel(self, handle: str) -> None:
        """End the job and all its processes; no error if it has ended."""
