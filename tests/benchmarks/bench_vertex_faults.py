"""Is it ever two jobs, and is one ever left? Submissions to Vertex AI, killed and disturbed, on loopback.

Each line: a process that submits is killed, as by SIGKILL, at each line of the backend that a submission
runs, and another submits anew. Each call: every call of a submission is refused, cut, or left hanging,
before the service acts or after. At random: up to four processes in a row, killed at random lines, with
random trouble on every third call, among them a service that answers nothing, and then one undisturbed;
then the night is gone, and the reaper looks. The service is tests/backends/fake_vertex.py; CPU of a look
at the state is that of a warm client.

Almost all of the time is spent in waiting: for calls that hang, for requests to settle. So lines and trials
are dealt out to processes, each with a service and a home of its own. Within one, whoever submits is a fork
of an interpreter that has imported the client.

QUICK=1: each eighth line, and a tenth of the trials.
"""

import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pipeline.jobs.reaper import orphans
from tests.backends import killed
from tests.backends.conftest import IMAGE
from tests.backends.fake_vertex import FakeVertex, Trouble
from tests.backends.rented import QUICK, job, vertex
from tests.benchmarks import frame

RETRY = replace(QUICK, call_s=0.3, give_up_s=0.8, settle_s=0.1, first_pause_s=0.01)
HOWS = ("refuse", "busy", "cut before", "cut after", "hang", "hang after")
TRIALS = 20 if frame.QUICK else 200
LOOKS = 50
PARTS = 6  # processes
TARGETS = {
    "lines killed at": (">=", 20 if frame.QUICK else 150),
    "killed at a line, not one job": ("==", 0),
    "calls disturbed": (">=", 12),
    "a call disturbed, not one job": ("==", 0),
    "random trials": ("==", TRIALS),
    "random trials, not one job": ("==", 0),
    "orphans after the reaper": ("==", 0),
    "wanted jobs ended by the reaper": ("==", 0),
    "CPU of a look at the state s": ("<=", 0.5),
}


def trouble(how: str) -> Trouble:
    """A service that is busy answers 429."""
    return Trouble("refuse", status=429, message="requests per minute") if how == "busy" else Trouble(how)


def made(service: FakeVertex, name: str) -> int:
    """How many jobs of the name were ever made."""
    return sum(running.job.labels["job"] == name for running in service.jobs.values())


def at_each_line(service: FakeVertex, folder: Path, part: int) -> dict[str, float]:
    """Kill a submission at each of its lines, submit again, and count jobs."""
    lines = killed.lines_of(service.url, job(folder / "first", name="first"))
    step = 8 if frame.QUICK else 1
    wrong = 0
    points = list(range(1, lines + 1, step))[part::PARTS]
    for line in points:
        name = f"line{line}"
        told = job(folder / name, name=name)
        status, _ = killed.submit(service.url, told, line=line)
        if status == 0 and line == lines:
            continue  # it waited for the service once less than when its lines were counted
        if status != killed.KILLED:
            raise RuntimeError(f"line {line} of {lines} was not reached: {status}")
        handle = vertex(service.url).submit(told)
        wrong += made(service, name) != 1 or handle.partition(" ")[0] not in service.jobs
    return {"lines killed at": len(points), "killed at a line, not one job": wrong}


def at_each_call(service: FakeVertex, folder: Path, part: int) -> dict[str, float]:
    """Disturb each call of a submission in each way, submit again if it failed, and count jobs."""
    before = len(service.calls)
    vertex(service.url).submit(job(folder / "calls", name="calls"))
    num_calls = len(service.calls) - before
    wrong = tried = 0
    for number in range(num_calls):
        for how in HOWS[part::PARTS]:
            for twice in (False, True):
                name = f"call{number}-{how.replace(' ', '-')}{'-twice' * twice}"
                told = job(folder / name, name=name)
                script = [None] * number + [trouble(how)] * (2 if twice else 1)
                with service.troubled(*script):
                    killed.submit(service.url, told, retry=RETRY)
                vertex(service.url).submit(told)
                tried, wrong = tried + 1, wrong + (made(service, name) != 1)
    return {"calls disturbed": tried, "a call disturbed, not one job": wrong}


def at_random(service: FakeVertex, folder: Path, part: int) -> dict[str, float]:
    """Kill and disturb at random, then look for orphans when nights have gone."""
    wrong = left = lost = 0
    lines = killed.lines_of(service.url, job(folder / "again", name="again"))
    seeds = range(part, TRIALS, PARTS)
    for seed in seeds:
        rng = random.Random(seed)
        name = f"random{seed}"
        told = job(folder / name, name=name, night=f"night{seed}")
        for _ in range(rng.randint(1, 4)):
            away = rng.random() < 0.1  # all of it
            share = 1.0 if away else 1 / 3
            service.trouble = _disturbing(rng, share)
            killed.submit(service.url, told, line=rng.choice([0, rng.randint(1, 2 * lines)]), retry=RETRY)
            service.trouble = lambda method: None
        handle = vertex(service.url).submit(told)
        wrong += made(service, name) != 1
        backend = vertex(service.url)
        alive = {rental.handle.strip() for rental in backend.live() if rental.night == f"night{seed}"}
        lost += handle.partition(" ")[0] not in alive
        later = datetime.fromtimestamp(time.time() + 3600, UTC)
        for rental in orphans(backend.live(), {}, now=later):
            backend.cancel(rental.handle)
        left += len(service.live())
    return {
        "random trials": len(seeds),
        "random trials, not one job": wrong,
        "orphans after the reaper": left,
        "wanted jobs ended by the reaper": lost,
    }


def _disturbing(rng: random.Random, share: float) -> Callable[[str], Trouble | None]:
    return lambda method: trouble(rng.choice(HOWS)) if rng.random() < share else None


def looks(service: FakeVertex, folder: Path, part: int) -> dict[str, float]:
    """CPU seconds of a look at the state, the client being warm."""
    if part:
        return {}
    handle = vertex(service.url).submit(job(folder / "look", name="look"))

    def act() -> float:
        backend = vertex(service.url)
        backend.state(handle)
        began = time.process_time()
        for _ in range(LOOKS):
            backend.state(handle)
        return (time.process_time() - began) / LOOKS

    return {"CPU of a look at the state s": float(killed.in_a_process(act)[1])}


def one_part(part: int) -> dict[str, float]:
    """Run a share of it in a home of its own."""
    os.environ["GOOGLE_API_USE_CLIENT_CERTIFICATE"] = "false"
    os.environ["NO_GCE_CHECK"] = "true"
    with tempfile.TemporaryDirectory() as scratch, FakeVertex(image=IMAGE) as service:
        folder = Path(scratch)
        os.environ["PIPELINE_HOME"] = str(folder / "home")
        # Jobs wait in the queue: what is counted are jobs, not processes.
        service.market.quota["us-central1", "g2-standard-8"] = "queued"
        figures: dict[str, float] = {}
        for measure in (at_each_line, at_each_call, looks, at_random):
            began = time.monotonic()
            figures |= measure(service, folder, part)
            print(f"{part} {measure.__name__}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return figures


def main() -> None:
    """Run all of it, and add up."""
    figures = dict.fromkeys(TARGETS, 0.0)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PARTS, mp_context=context) as pool:
        for found in pool.map(one_part, range(PARTS)):
            for name, figure in found.items():
                figures[name] += figure
    frame.finish("vertex_faults", figures, TARGETS)


if __name__ == "__main__":
    main()
