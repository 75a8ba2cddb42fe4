"""Every backend runs one live job per name, reports its end, and leaves nothing running.

Local runs on this machine, Vertex on a service on loopback that runs each replica as a process, Kubernetes
on an API server on loopback whose pods are processes, with JobSets and without, Slurm on a cluster of two
nodes whose daemons run here.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from daybreak.backends.local import Local
from daybreak.contract.backend import Backend, Job
from daybreak.contract.errors import JobError
from daybreak.contract.record_parts import Rental
from daybreak.extensions.kubernetes.kubernetes import Kubernetes
from daybreak.extensions.slurm.slurm import Slurm
from daybreak.training import gpus
from tests.backends import rented
from tests.backends.rented import end, wait
from tests.backends.small_place import MACHINE, Cloud, SmallPlace
from tests.fakes import read_lines


@dataclass(frozen=True)
class Place:
    """A backend, how to make jobs for it, and how the world takes a machine away."""

    backend: Backend
    job: Callable[..., Job]
    preempt: Callable[[str], None]
    restock: Callable[[], object]
    never: str  # handle of a job that never was
    again: Callable[[], Backend]  # another object of the backend, as another process has


def local(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    def preempt(handle: str) -> None:
        supervisor = psutil.Process(int((Path(handle) / "pid").read_text()))
        os.killpg(supervisor.pid, signal.SIGKILL)

    def job(script: str = "exit 0", **changes: Any) -> Job:
        given = rented.job(tmp_path, script, machine="local", **changes)
        return replace(given, environment={"PYTHONPATH": str(Path(__file__).parents[2])})

    return Place(Local(), job, preempt, lambda: None, str(tmp_path / "none"), Local)


def vertex(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    service = request.getfixturevalue("service")

    def preempt(handle: str) -> None:
        running = service.jobs[handle.partition(" ")[0]]
        service.market.stock[("us-central1", "g2-standard-8")] = 0
        wait(lambda: running.processes)
        running.tell("preempt")

    def job(script: str = "exit 0", **changes: Any) -> Job:
        return rented.job(tmp_path, script, **changes)

    never = f"projects/p/locations/us-central1/customJobs/7 {tmp_path / 'none'}"
    backend = rented.vertex(service.url)
    return Place(backend, job, preempt, service.market.stock.clear, never, lambda: rented.vertex(service.url))


def slurm(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    cluster = request.getfixturevalue("cluster")

    def job(script: str = "exit 0", **changes: Any) -> Job:
        given = rented.job(tmp_path, script, **{"machine": "node", "strategy": "spot", **changes})
        return replace(given, environment={"PYTHONPATH": str(Path(__file__).parents[2])})

    def preempt(handle: str) -> None:
        cluster.take_away()

    def backend() -> Backend:
        return Slurm(machines=str(tmp_path / "machines.csv"))

    never = f"60000007 {tmp_path / 'none'}"  # far from the numbers of jobs that earlier tests had here
    return Place(backend(), job, preempt, lambda: None, never, backend)


def job_sets(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    request.getfixturevalue("kubernetes").has_job_sets = True
    return kubernetes(tmp_path, request)


def kubernetes(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    cluster = request.getfixturevalue("kubernetes")

    def job(script: str = "exit 0", **changes: Any) -> Job:
        return rented.job(tmp_path, script, **{"machine": "node", **changes})

    def preempt(handle: str) -> None:
        cluster.disrupt(handle.partition(" ")[0])

    def backend() -> Backend:
        return Kubernetes(image="eu.example/trainer:1", bucket="", machines=str(tmp_path / "machines.csv"))

    never = f"daybreak-0-7 {tmp_path / 'none'}"
    return Place(backend(), job, preempt, lambda: None, never, backend)


def small(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """As a team's own place: what it does not say is inherited."""
    monkeypatch = request.getfixturevalue("monkeypatch")
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path / "home"))
    cloud = Cloud()
    request.addfinalizer(lambda: [thing.end() for thing in cloud.things.values()])

    def job(script: str = "exit 0", **changes: Any) -> Job:
        given = rented.job(tmp_path, script, **{"machine": MACHINE.name, **changes})
        return replace(given, environment={"PYTHONPATH": str(Path(__file__).parents[2])})

    def preempt(handle: str) -> None:
        thing = cloud.things[handle.partition(" ")[0]]
        thing.taken = True
        thing.end()

    def backend() -> Backend:
        return SmallPlace(cloud)

    return Place(backend(), job, preempt, lambda: None, f"thing-7 {tmp_path / 'none'}", backend)


RENTED = [
    small,
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in (vertex, slurm, kubernetes, job_sets)),
]


@pytest.fixture(params=[local, *RENTED])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    made: Place = request.param(tmp_path, request)
    return made


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def written(path: Path) -> str:
    """What a job has written; a file is there before its text is."""
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize(
    ("script", "state"),
    [pytest.param("exit 0", "succeeded", marks=pytest.mark.promise), ("exit 3", "failed")],
)
def test_how_a_job_ended_is_told(place, script, state):
    handle = place.backend.submit(place.job(script))
    assert end(place.backend, handle) == state
    assert place.backend.state(handle) == state


def test_a_job_that_was_taken_away_is_preempted_and_may_be_submitted_again(place, tmp_path):
    script = f"echo x >> {tmp_path}/starts; test -e {tmp_path}/back || sleep 60"
    handle = place.backend.submit(place.job(script))
    wait(lambda: written(tmp_path / "starts"))
    place.preempt(handle)
    assert end(place.backend, handle) == "preempted"
    (tmp_path / "back").touch()
    place.restock()
    again = place.backend.submit(place.job(script))
    assert end(place.backend, again) == "succeeded"
    assert (tmp_path / "starts").read_text() == "x\nx\n"


def test_asking_twice_starts_one_job(place, tmp_path):
    script = f"echo x >> {tmp_path}/starts; sleep 60"
    first = place.backend.submit(place.job(script))
    second = place.backend.submit(place.job(script))
    wait(lambda: written(tmp_path / "starts"))
    assert first == second
    assert place.backend.state(first) == "running"
    place.backend.cancel(first)
    assert (tmp_path / "starts").read_text() == "x\n"


def test_a_failed_job_starts_again_and_one_that_succeeded_does_not(place, tmp_path):
    states = []
    for script in ["exit 1", "exit 0", "exit 1"]:
        handle = place.backend.submit(place.job(f"echo x >> {tmp_path}/starts; {script}"))
        states.append(end(place.backend, handle))
    assert states == ["failed", "succeeded", "succeeded"]
    assert (tmp_path / "starts").read_text() == "x\nx\n"


def test_a_cancelled_job_has_ended_with_all_its_processes_when_cancel_returns(place, tmp_path):
    script = f"sleep 60 & echo $! > {tmp_path}/child; wait $!"
    handle = place.backend.submit(place.job(script))
    child = int(wait(lambda: written(tmp_path / "child")))
    place.backend.cancel(handle)
    assert place.backend.state(handle) == "preempted"
    wait(lambda: gone(child))


def test_cancel_of_what_has_ended_or_never_was_is_no_error(place):
    place.backend.cancel(place.never)
    assert place.backend.state(place.never) == "preempted"
    handle = place.backend.submit(place.job("exit 0"))
    assert end(place.backend, handle) == "succeeded"
    place.backend.cancel(handle)
    assert place.backend.state(handle) == "succeeded"


@pytest.mark.slow
@pytest.mark.parametrize("place", [local], indirect=True)  # of others, the next test
def test_a_job_ends_after_its_time_even_if_nobody_asks(place):
    handle = place.backend.submit(place.job("exec sleep 60", timeout_s=1))
    assert end(place.backend, handle) == "preempted"


@pytest.mark.slow
@pytest.mark.parametrize("place", RENTED, indirect=True)
def test_an_end_from_outside_is_told_apart_from_the_time_limit(place, tmp_path):
    for name, script, timeout_s in (
        ("a", "kill -TERM $PPID; exec sleep 60", 3600),
        ("b", "exec sleep 60", 1),
    ):
        handle = place.backend.submit(place.job(script, name=name, timeout_s=timeout_s))
        assert end(place.backend, handle) == "preempted"
    first, second = [line["error"] for line in read_lines(tmp_path / "job" / "errors.jsonl")]
    assert first.startswith("job a was killed on ")
    assert second.startswith("job b was ended after its time")


def test_a_job_for_a_machine_that_it_does_not_have_is_refused_before_anything_starts(place, tmp_path):
    job = replace(place.job(), rental=Rental(machine="b7-imaginary-9"))
    with pytest.raises(
        JobError, match=r"job j is for .*b7-imaginary-9, (but|which) .*; (set|name) .*plan.machines"
    ):
        place.backend.submit(job)
    assert not (tmp_path / "job").exists()


@pytest.mark.slow
@pytest.mark.parametrize("place", [local], indirect=True)  # test_machine_trial.py tries another
def test_a_worker_without_the_gpus_of_its_machine_fails_the_job_with_a_sentence(place, tmp_path):
    job = place.job()
    given = gpus.environment(job.rental.machine, "2 x L4")
    environment = {**job.environment, **given}
    trial = replace(job, module="daybreak.profiling.machine_trial", arguments=(job.folder,))
    handle = place.backend.submit(replace(trial, environment=environment))
    assert end(place.backend, handle) == "failed"
    (error, *_) = read_lines(tmp_path / "job" / "errors.jsonl")
    assert f"the worker on {job.rental.machine} was given 2 x L4 and sees no GPU: " in error["error"]


def test_another_object_of_the_backend_tells_the_same(place):
    """A call of a stage is a process of its own: nothing is known but what is written down."""
    handle = place.backend.submit(place.job("sleep 60"))
    wait(lambda: place.backend.state(handle) == "running")
    again = place.again()
    assert again.submit(place.job("sleep 60")) == handle
    assert again.state(handle) == "running"
    again.cancel(handle)
    assert place.backend.state(handle) == "preempted"
