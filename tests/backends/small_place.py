"""A team's own place to run jobs: a dictionary as the cloud, processes as jobs. CONTRIBUTING shows it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from daybreak import (
    COMMON_FAULTS,
    Fault,
    JobRequest,
    Machine,
    Refused,
    Rented,
    Renting,
    Unreachable,
    rented_machines,
)
from daybreak.storage.home import Home

ENTRYPOINT = "daybreak.backends.entrypoint"
CAUSES = {128 + signal.SIGTERM: "killed"}  # or at its time
MACHINE = next(machine for machine in rented_machines() if machine.name == "n2-standard-8")


@dataclass
class Thing:
    """A job of the cloud."""

    process: "subprocess.Popen[bytes]"
    labels: Mapping[str, str]
    folder: str
    created_at: datetime
    ended_at: datetime | None = None
    taken: bool = False

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
            self.process.wait()


@dataclass
class Cloud:
    """What outlives a backend; `away`, `full` and `unknown` are its moods, and a reply may be lost."""

    things: dict[str, Thing] = field(default_factory=dict)
    away: bool = False
    full: bool = False
    unknown: bool = False
    replies_lost: int = 0


class SmallPlace(Renting):
    """Processes as rented machines."""

    place = "the small place"
    faults: Mapping[str, Fault] = {
        **COMMON_FAULTS,
        "full": Fault(state="refused", text="all of {what} is taken{said}; wait"),
        "unknown": Fault(state="refused", final=True, text="there is no {what}{said}; name another"),
    }

    def __init__(self, cloud: Cloud, *, bucket: str = "", home: Home | None = None) -> None:
        super().__init__(region=MACHINE.region, bucket=bucket, home=home)
        self.cloud = cloud

    def make(self, request: JobRequest) -> Rented:
        self._answer()
        if self.cloud.full:
            raise Refused("no rack is free", cause="full")
        if self.cloud.unknown:
            raise Refused("no rack has such", cause="unknown")
        words = [
            sys.executable,
            "-m",
            ENTRYPOINT,
            "--until",
            str(request.until),
            "--workers",
            str(request.job.num_workers),
            "--",
            request.job.module,
            *request.job.arguments,
        ]
        environment = {**os.environ, **request.job.environment, "DAYBREAK_ATTEMPT": request.attempt}
        process = subprocess.Popen(words, env=environment, start_new_session=True)
        name = f"thing-{len(self.cloud.things)}"
        self.cloud.things[name] = Thing(process, request.labels, str(request.folder), datetime.now(UTC))
        if self.cloud.replies_lost:
            self.cloud.replies_lost -= 1
            raise Unreachable("the small place does not answer")
        return self._rented(name)

    def find(self, regions: Iterable[str], **labels: str) -> Sequence[Rented]:
        self._answer()
        wanted = {"daybreak": self.home_token, **labels}.items()
        return [
            self._rented(name) for name, thing in self.cloud.things.items() if wanted <= thing.labels.items()
        ]

    def get(self, name: str) -> Rented | None:
        self._answer()
        return self._rented(name) if name in self.cloud.things else None

    def end(self, name: str) -> None:
        self._answer()
        if thing := self.cloud.things.get(name):
            thing.taken = thing.taken or thing.process.poll() is None
            thing.end()

    def owns(self, name: str) -> bool:
        return name.startswith("thing-")

    def log_of(self, name: str, folder: Path) -> str:
        return f"smallplace logs {name}"

    def machines(self) -> Sequence[Machine]:
        return (MACHINE,)

    def _answer(self) -> None:
        if self.cloud.away:
            raise Unreachable("the small place does not answer")

    def _rented(self, name: str) -> Rented:
        thing = self.cloud.things[name]
        status = thing.process.poll()
        if status is not None and thing.ended_at is None:
            thing.ended_at = datetime.now(UTC)
        return Rented(
            name=name,
            state="running" if status is None else "ended" if status else "succeeded",
            cause="preempted" if thing.taken else CAUSES.get(status, "error"),
            status=status,
            attempt=thing.labels["attempt"],
            job=thing.labels["job"],
            night=thing.labels["night"],
            folder=thing.folder,
            created_at=thing.created_at,
            there_at=thing.created_at,
            started_at=thing.created_at,
            ended_at=thing.ended_at,
        )
