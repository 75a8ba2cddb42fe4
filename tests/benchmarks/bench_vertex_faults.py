"""Is it ever two jobs, and is one ever left? Submissions to Vertex AI, killed and disturbed, on loopback.

What is done to them is in tests/benchmarks/disturbed.py, the service is tests/backends/fake_vertex.py; CPU of
a look at the state is that of a warm client.

QUICK=1: each eighth line, and a tenth of the trials.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from pipeline.contract.backend import Backend, Job
from tests.backends import killed
from tests.backends.conftest import IMAGE
from tests.backends.fake_vertex import FakeVertex, Trouble
from tests.backends.rented import QUICK, job, vertex
from tests.benchmarks import disturbed
from tests.benchmarks.disturbed import How, Place

RETRY = replace(QUICK, call_s=0.3, give_up_s=0.8, settle_s=0.1, first_pause_s=0.01)
LOOKS = 50
PARTS = 6  # processes
CPU = "CPU of a look at the state s"


class VertexAI(Place):
    """The service on loopback."""

    hows = ("refuse", "busy", "cut before", "cut after", "hang", "hang after")

    def __init__(self, service: FakeVertex) -> None:
        self.service = service

    def backend(self) -> Backend:
        return vertex(self.service.url)

    def impatient(self) -> Backend:
        return vertex(self.service.url, retry=RETRY)

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

    return {CPU: float(killed.in_a_process(act)[1])}


@contextmanager
def place(folder: Path) -> Iterator[Place]:
    """A service whose jobs wait in the queue: what is counted are jobs, not processes."""
    quiet = patch.dict(os.environ, GOOGLE_API_USE_CLIENT_CERTIFICATE="false", NO_GCE_CHECK="true")
    with quiet, FakeVertex(image=IMAGE) as service:
        service.market.quota["us-central1", "g2-standard-8"] = "queued"
        yield VertexAI(service)


if __name__ == "__main__":
    disturbed.run(
        "vertex_faults",
        place,
        measures=(*disturbed.SUBMISSIONS, looks),
        parts=PARTS,
        all_targets=disturbed.targets(lines=150, calls=12, ends=False) | {CPU: ("<=", 0.5)},
    )
