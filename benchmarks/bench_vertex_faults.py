"""Counts submissions that end in two jobs, a job left or a wrong state, on a Vertex AI on loopback.

What is done to jobs is in benchmarks/disturbed.py, the service is tests/backends/fake_vertex.py; CPU of
a look at the state is that of a warm client. A service that is away for 90 s is one that misses 90 looks.

QUICK=1: each eighth line, a tenth of the trials, each fault once.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from google.cloud.aiplatform_v1.types import JobState

from benchmarks import disturbed
from benchmarks.disturbed import AWAY_S, End, Fault, How, Place, looks_amid
from daybreak.contract.backend import Backend, Job
from daybreak.contract.record_parts import Rental
from tests.backends import killed
from tests.backends.conftest import IMAGE
from tests.backends.fake.running import Running
from tests.backends.fake_vertex import FakeVertex, Trouble
from tests.backends.rented import QUICK, job, vertex, wait
from tests.backends.together import TrainingNight

# A call that nothing is done to is answered in the end, however busy this machine is: a minute is many times
# what that takes, so only calls that hang reach it.
PATIENT = replace(QUICK, call_s=60.0, settle_s=1.0, error_s=30.0, cancel_s=60.0)
IMPATIENT = replace(PATIENT, call_s=2.0, give_up_s=3.0, first_pause_s=0.01)
TRAINING = replace(PATIENT, give_up_s=0.8, first_pause_s=0.01)  # of nights, whose calls never hang
LOOKS = 50
PARTS = 4  # processes
PATIENCE_S = 1.0
CPU = "CPU of a look at the state s"
L4 = ("us-central1", "g2-standard-8")
FAILED = JobState.JOB_STATE_FAILED
OUT_OF_STOCK = "Resources are insufficient in region: us-central1. Please try a different region."
# How a replica ends, in the service's sentence, with what it printed itself behind it.
EXITED = "The replica workerpool0-0 exited with a non-zero status of 1."
KILLED = "The replica workerpool0-0 exited with a non-zero status of 137."
NAMED_STOCKOUT = f"{EXITED} Termination reason: Error. \nTraceback (most recent call last):\n  stockout.py"
DISK_FULL = f"{EXITED} Termination reason: Error. \nTraceback (most recent call last):\nDisk quota exceeded"
BLOOM_FILTER = f"{EXITED} Termination reason: Error. \nTraceback (most recent call last):\nbloom_filter oom"


class VertexAI(Place):
    """The service on loopback."""

    hows = ("refuse", "busy", "cut before", "cut after", "hang", "hang after")

    def __init__(self, service: FakeVertex, folder: Path) -> None:
        self.service = service
        self.bucket = f"file://{folder}/bucket"

    def backend(self) -> Backend:
        return vertex(self.service.url, retry=PATIENT)

    def impatient(self) -> Backend:
        return vertex(self.service.url, retry=IMPATIENT)

    def trainer(self) -> Backend:
        return vertex(self.service.url, retry=TRAINING, bucket=self.bucket)

    def job(self, folder: Path, *, name: str, script: str = "exec sleep 60", **given: object) -> Job:
        return job(folder, script, name=name, **given)

    def alone(self, name: str, handle: str) -> bool:
        made = [job for job, running in self.service.jobs.items() if running.job.labels["job"] == name]
        return made == [handle.partition(" ")[0]]

    def num_live(self) -> int:
        return len(self.service.live())

    @contextmanager
    def troubled(self, how: How) -> Iterator[None]:
        self.service.trouble = lambda method: _trouble(how())
        try:
            yield
        finally:
            self.service.trouble = lambda method: None

    def num_calls(self) -> int:
        return len(self.service.calls)

    @contextmanager
    def wait_in_queue(self) -> Iterator[None]:
        with patch.dict(self.service.market.quota, {L4: "queued"}):
            yield
            self._end_all()

    def _end_all(self) -> None:
        for running in self.service.live():
            running.tell("cancel")
        wait(lambda: not self.service.live())

    def rental(self, num_machines: int) -> Rental:
        return Rental(machine=L4[1], num_machines=num_machines, region=L4[0], strategy="spot")

    @property
    def newest(self) -> Running:
        """The job that was made last."""
        return list(self.service.jobs.values())[-1]

    def ends(self) -> Sequence[End]:
        market = self.service.market

        def ran(code: int, text: str) -> Callable[[str], None]:
            return lambda job: self.service.jobs[job].end_as(FAILED, code, text)

        def short(what: dict[Any, Any], value: object) -> Callable[[], Any]:
            return partial(self._over, what, {L4: value})

        def never_ran(code: int, text: str) -> Callable[[], Any]:
            return partial(self._over, market.quota, {L4: "queued"}, ends=(code, text))

        refused = partial(End, state="refused", waits=True)
        own, memory, lost = "error of its own code", "ran out of the memory", "by a fault of its own"
        return (
            End("done", "succeeded", script="exit 0", waits=True),
            End("an exit status of its own", "failed", words=own, script="exit 3", waits=True),
            End("SIGKILL, as for memory", "failed", words=memory, script="kill -9 $$", waits=True),
            End("SIGABRT, four times", "failed", words=own, script="kill -6 $$", waits=True),
            End(
                "killed for memory, by its reason",
                "failed",
                words=memory,
                act=ran(3, f"{EXITED} Termination reason: OOMKilled."),
            ),
            End(
                "evicted, by its reason",
                "preempted",
                words="taken away",
                act=ran(3, f"{EXITED} Termination reason: Evicted."),
            ),
            End(
                "killed as it was taken away, by its reason",
                "preempted",
                words="taken away",
                act=ran(3, f"{KILLED} Termination reason: Preempted."),
            ),
            End("a file of its own named stockout", "failed", words=own, act=ran(3, NAMED_STOCKOUT)),
            End("a full disk in its traceback", "failed", words=own, act=ran(3, DISK_FULL)),
            End("a bloom filter in its traceback", "failed", words=own, act=ran(3, BLOOM_FILTER)),
            refused("no capacity", words="no capacity", around=short(market.stock, 0)),
            refused(
                "no capacity, said late",
                words="no capacity",
                around=partial(self._late, short(market.stock, 0)),
            ),
            refused(
                "a machine that its region does not have", words="does not take", around=self._unsupported
            ),
            refused("quota, on asking", words="quota does not allow", around=short(market.quota, "429")),
            refused("quota, afterwards", words="quota does not allow", around=short(market.quota, "failed")),
            refused(
                "flex-start did not come",
                words="did not come within",
                rental={"strategy": "flex-start", "max_wait_s": 1.0},
                around=self._flex,
            ),
            End(
                "no such image",
                "failed",
                words="something that is not there",
                waits=True,
                around=never_ran(3, "Image eu.example/daybreak:1 not found."),
            ),
            End(
                "an account without rights",
                "failed",
                words="may not use",
                waits=True,
                around=never_ran(7, "Permission denied on secret x."),
            ),
            End("spot, taken for good", "preempted", words="taken away", act=self._take_for_good),
            End("out of stock after it ran", "preempted", words="taken away", act=ran(8, OUT_OF_STOCK)),
            End("a fault of the service", "preempted", words=lost, act=lambda job: self._tell(job, "lose")),
            End("the service is not available", "preempted", words=lost, act=ran(14, "Unavailable.")),
            End(
                "cancelled by a person",
                "preempted",
                words="cancelled",
                act=lambda job: self._tell(job, "cancel"),
            ),
            End("over its time", "preempted", words="after its time", waits=True, timeout_s=3),
            End(
                "the second of two fails",
                "failed",
                words=own,
                waits=True,
                rental={"num_machines": 2},
                script='case "$CLUSTER_SPEC" in *workerpool1\\",*) exit 3;; esac; exec sleep 60',
            ),
        )

    def _tell(self, job: str, what: Literal["cancel", "preempt", "crash", "lose"]) -> None:
        self.service.jobs[job].tell(what)

    @contextmanager
    def _over(
        self, what: dict[Any, Any], changes: Mapping[Any, object], *, ends: tuple[int, str] | None = None
    ) -> Iterator[None]:
        """The market is so until the job that is submitted meanwhile, if it became one, has ended."""
        before = len(self.service.jobs)
        with patch.dict(what, changes):
            yield
            if len(self.service.jobs) > before:
                if ends:
                    self.newest.end_as(FAILED, *ends)
                wait(lambda: not self.newest.thread.is_alive())

    @contextmanager
    def _late(self, around: Callable[[], Any]) -> Iterator[None]:
        with around():
            self.service.custom.late_error_s = 1.0
            yield

    @contextmanager
    def _flex(self) -> Iterator[None]:
        self.service.market.waits.add(L4)
        yield
        wait(lambda: not self.newest.thread.is_alive())
        self.service.market.waits.clear()

    @contextmanager
    def _unsupported(self) -> Iterator[None]:
        self.service.market.unsupported.add(L4)
        yield
        self.service.market.unsupported.clear()

    def _take_for_good(self, job: str) -> None:
        with patch.dict(self.service.market.stock, {L4: 0}):
            self._tell(job, "preempt")
            wait(lambda: not self.service.jobs[job].thread.is_alive())

    def faults(self) -> Sequence[Fault]:
        return (
            Fault("preempted, and given another", act=lambda night: self._now("preempt")),
            Fault("preempted for good, later there is one", act=self._out_of_stock),
            Fault("a machine lost by the service", act=lambda night: self._now("crash")),
            Fault("the job lost by the service", act=lambda night: self._now("lose")),
            Fault(
                "service away for 90 s",
                restarts=False,
                act=looks_amid(lambda: self.troubled(lambda: "refuse"), AWAY_S),
            ),
            Fault("replies cut", act=looks_amid(lambda: self.troubled(lambda: "cut after")), restarts=False),
            Fault("too many requests", act=looks_amid(lambda: self.troubled(lambda: "busy")), restarts=False),
            Fault("reply to the next submission lost", act=self._lost_reply),
            Fault("quota used up", act=self._quota),
            Fault("one of two machines lost", num_machines=2, act=lambda night: self._now("crash")),
        )

    def _now(self, what: Literal["cancel", "preempt", "crash", "lose"]) -> None:
        (running,) = self.service.live()
        running.tell(what)

    def _out_of_stock(self, night: TrainingNight) -> None:
        with patch.dict(self.service.market.stock, {L4: -1}):  # 0 once the machine that is taken is free
            self._now("preempt")
            night.until(lambda: "refused" in (night.job / "orders.json").read_text())

    def _lost_reply(self, night: TrainingNight) -> None:
        before = len(self.service.jobs)
        self._now("lose")
        with self.service.troubled(*[Trouble("cut after")] * 6, method="create_custom_job"):
            night.until(lambda: len(self.service.jobs) > before)

    def _quota(self, night: TrainingNight) -> None:
        with patch.dict(self.service.market.quota, {L4: "429"}):
            self._now("lose")
            night.until(lambda: "refused" in (night.job / "orders.json").read_text())


def _trouble(how: str) -> Trouble | None:
    """A service that is busy answers 429."""
    if how == "busy":
        return Trouble("refuse", status=429, message="requests per minute")
    return Trouble(how) if how else None  # type: ignore[arg-type]


def looks(place: Place, folder: Path, part: int, parts: int) -> dict[str, float]:
    """CPU seconds of a look at the state, the client being warm."""
    if part:
        return {}
    handle = place.backend().submit(place.job(folder / "look", name="look"))

    def act() -> float:
        backend = place.backend()
        backend.state(handle)
        began = time.process_time()
        for _ in range(LOOKS):
            backend.state(handle)
        return (time.process_time() - began) / LOOKS

    figures = {CPU: float(killed.in_a_process(act)[1])}
    place.backend().cancel(handle)
    return figures


@contextmanager
def place(folder: Path, _: int) -> Iterator[Place]:
    """A service, and a folder for its bucket."""
    quiet = patch.dict(os.environ, GOOGLE_API_USE_CLIENT_CERTIFICATE="false", NO_GCE_CHECK="true")
    soon = patch.multiple("daybreak.jobs.observed_job", PATIENCE_S=PATIENCE_S)
    with quiet, soon, FakeVertex(image=IMAGE) as service:
        yield VertexAI(service, folder)


if __name__ == "__main__":
    disturbed.run(
        "vertex_faults",
        place,
        measures=(*disturbed.ALL, looks),
        parts=PARTS,
        all_targets=disturbed.targets(lines=150, calls=12) | {CPU: ("<=", 0.5)},
    )
