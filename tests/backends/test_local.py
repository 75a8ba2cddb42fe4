"""The local backend with real processes: one live job per folder, whoever asks and whoever dies."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from daybreak.backends.local import Local
from daybreak.contract.backend import Job
from daybreak.contract.errors import JobError, ParamsError
from daybreak.contract.record_parts import Rental

ROOT = Path(__file__).parents[2]


def job(folder: Path, script: str, *, timeout_s: float = 60) -> Job:
    return Job(
        name="j",
        module="tests.backends.script",
        arguments=(script,),
        rental=Rental(machine="local"),
        folder=str(folder / "job"),
        timeout_s=timeout_s,
        environment={"PYTHONPATH": str(ROOT)},
    )


def wait(condition: Callable[[], bool], *, timeout_s: float = 300) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.02)


def over(handle: str) -> bool:
    return Local().state(handle) != "running"


@pytest.mark.parametrize("changes", [{"machine": "g2-standard-8"}, {"num_machines": 2}])
def test_a_job_for_another_machine_is_refused_rather_than_run_here(tmp_path, changes):
    asked = replace(job(tmp_path, "exit 0"), rental=Rental(**{"machine": "local", **changes}))
    with pytest.raises(JobError, match=rf"job j is for {asked.rental}, but backend Local has only the"):
        Local().submit(asked)
    assert not (tmp_path / "job").exists()


def test_nothing_is_trained_in_a_pod_that_other_stages_do_not_see(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")  # as Airflow sets it
    with pytest.raises(ParamsError, match=r"a pod of its own, .* set backend.use"):
        Local().submit(job(tmp_path, "exit 0"))
    assert not (tmp_path / "job").exists()


def test_what_a_job_printed_is_where_the_backend_says(tmp_path):
    handle = Local().submit(job(tmp_path, "echo begun"))
    wait(lambda: over(handle))
    assert Path(Local().logs(handle)).read_text() == "begun\n"


def test_a_job_that_was_killed_is_preempted(tmp_path):
    handle = Local().submit(job(tmp_path, "echo begun; kill -9 $$"))
    wait(lambda: over(handle))
    assert Local().state(handle) == "preempted"
    assert (Path(handle) / "log.txt").read_text().startswith("begun")


@pytest.mark.slow
def test_asking_at_the_same_instant_starts_one_job(tmp_path):
    script = f"echo x >> {tmp_path}/starts; sleep 30"
    ask = (
        "import sys, time; from pathlib import Path; from daybreak.backends.local import Local;"
        "from tests.backends.test_local import job;"
        f"there = Path({str(tmp_path)!r}); (there / f'ready {{sys.argv[1]}}').touch();"
        "[time.sleep(0.001) for _ in iter((there / 'go').exists, True)];"
        f"Local().submit(job(Path({str(tmp_path)!r}), {script!r}))"
    )
    askers = [subprocess.Popen([sys.executable, "-c", ask, str(number)], cwd=ROOT) for number in range(4)]
    wait(lambda: len(list(tmp_path.glob("ready *"))) == 4)
    (tmp_path / "go").touch()
    assert [asker.wait() for asker in askers] == [0, 0, 0, 0]
    handle = str(tmp_path / "job")
    wait((tmp_path / "starts").exists)
    assert Local().state(handle) == "running"
    Local().cancel(handle)
    assert (tmp_path / "starts").read_text() == "x\n"
    assert Local().state(handle) == "preempted"


@pytest.mark.slow
def test_the_job_outlives_who_asked_for_it_and_the_death_of_its_supervisor(tmp_path):
    handle = Local().submit(job(tmp_path, "sleep 30; true"))
    supervisor = Path(handle) / "pid"
    wait(supervisor.exists)
    wait(lambda: bool(psutil.Process(int(supervisor.read_text())).children()))
    os.kill(int(supervisor.read_text()), signal.SIGKILL)
    time.sleep(0.2)
    assert Local().state(handle) == "running"
    assert Local().submit(job(tmp_path, "exit 1")) == handle
    assert Local().state(handle) == "running"
    Local().cancel(handle)
    assert Local().state(handle) == "preempted"


@pytest.mark.slow
def test_a_job_that_does_not_listen_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("daybreak.backends.local.STOP_S", 0.3)
    handle = Local().submit(job(tmp_path, f"trap '' TERM; touch {tmp_path}/deaf; while :; do sleep 1; done"))
    wait((tmp_path / "deaf").exists)
    Local().cancel(handle)
    assert over(handle)


def test_a_job_that_has_succeeded_is_not_run_again_but_another_in_its_folder_is(tmp_path):
    once = job(tmp_path, "exit 0")
    handle = Local().submit(once)
    wait(lambda: over(handle))
    token = (tmp_path / "job/attempt").read_text()
    assert Local().submit(once) == handle
    assert (tmp_path / "job/attempt").read_text() == token
    wait(lambda: over(Local().submit(replace(once, name="again"))))
    assert (tmp_path / "job/attempt").read_text() != token
    assert Local().state(handle) == "succeeded"
