"""The reconciler with a scripted backend: one next action a call, whatever the world looks like."""

import json
import os
import resource
import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from daybreak.contract import records
from daybreak.contract.backend import JobState
from daybreak.contract.errors import JobError, NotYet
from daybreak.contract.record_parts import JobForecast, JobSpan, Placement, Rental, Size
from daybreak.contract.record_types import Plan
from daybreak.jobs import launcher, observed_job, reconciler
from daybreak.jobs.collector import MODEL
from daybreak.jobs.cost_tracker import JOBS, spent_usd
from daybreak.jobs.heartbeats import QUIET_UPDATES
from daybreak.jobs.observed_job import PATIENCE_S
from daybreak.jobs.submissions import JobAttempts
from daybreak.machines import startup
from daybreak.storage.home import Home
from daybreak.training import supervision
from daybreak.training.recipe import MOVING, Progress
from tests.fakes import ScriptedBackend
from tests.jobs.calls import NIGHT, call, finish, job_folder
from tests.minimal_records import minimal_training
from tests.training import nights

pytestmark = pytest.mark.usefixtures("folder")


def test_a_refit_is_planned_at_the_rate_of_the_machines_that_it_gets():
    plan = nights.plan(num_samples=32_000)
    ended_at = NIGHT.started_at + timedelta(hours=6)
    spans = [
        JobSpan(rental=rental, asked_at=asked, ran_at=asked, ended_at=asked + timedelta(hours=3), end="moved")
        for rental, asked in (
            (plan.rental, NIGHT.started_at),
            (replace(plan.rental, machine="slower"), ended_at - timedelta(hours=3)),
        )
    ]
    training = minimal_training(
        num_samples=32_000,
        num_updates=1000,
        num_restarts=1,
        elapsed_s=6 * 3600.0,
        ended_at=ended_at,
        before_restart=(600.0, 500),
    )
    for attempts, expected_s in (((), 6 * 3600.0 / 32_000), (tuple(spans), 600.0 / (500 * 32))):
        refit = launcher._plan_of_refit(plan, replace(training, attempts=attempts), 3_200)
        assert refit.forecast.expected_s == pytest.approx(startup.start_s(plan) + 3_200 * expected_s)
    planned_s = startup.start_s(plan) + 0.1 * (plan.forecast.expected_s - startup.start_s(plan))
    growing = replace(plan, sizes=(Size(batch_size=32, micro_batch_size=16, update_s=1.0),))
    for known, attempts in ((growing, tuple(spans)), (plan, (spans[1],))):
        refit = launcher._plan_of_refit(known, replace(training, attempts=attempts), 3_200)
        assert refit.forecast.expected_s == pytest.approx(planned_s)


def test_the_first_call_submits_the_second_waits_and_the_last_collects():
    backend = ScriptedBackend("running")
    with pytest.raises(NotYet, match="queued"):
        call(backend)
    with pytest.raises(NotYet, match="starting"):
        call(backend, at_s=20)
    (job,) = backend.jobs
    assert (job.module, job.arguments) == ("daybreak.training.worker", (job.folder,))
    assert job.num_workers == 1
    assert job.environment["DAYBREAK_CODE"] == str(Path.cwd())
    finish(job_folder())
    training = call(backend, at_s=120)
    assert training.logs == f"{job.folder}/log.txt"
    assert training.num_samples == 3001
    assert training.num_restarts == 1
    assert training.elapsed_s == 50
    assert training.ended_at == NIGHT.started_at + timedelta(seconds=50)
    assert training.start_s is not None
    assert training.cost_usd == pytest.approx(0.05)
    assert training.model_digest == records.digest(MODEL)
    assert call(backend, at_s=130) == training
    assert len(backend.jobs) == 1


def test_progress_is_told_in_one_sentence():
    with pytest.raises(NotYet):
        call(ScriptedBackend("running"))
    beat = {
        "time": "2026-01-01T00:00:00Z",
        "seen": 1020,
        "num_updates": 32,
        "loss": 0.21,
        "rate": 1e-3,
        "samples_per_s": 1203.4,
        "memory_bytes": 5,
    }
    (job_folder() / "progress.jsonl").write_text(json.dumps(beat) + '\n{"half a li')
    sentence = (
        r"job \w+: 34% of 3,001 samples, 1,203 samples/s, "
        r"ETA 7 s \(4 to 10\), in time with 100%; loss 0.21"
    )
    with pytest.raises(NotYet, match=sentence):
        call(ScriptedBackend("running"))


def test_a_preempted_job_is_submitted_again_for_ever_and_a_failing_one_five_times():
    backend = ScriptedBackend("preempted")
    for _ in range(3):
        with pytest.raises(NotYet):
            call(backend)
    backend.script = ["failed"]
    for _ in range(reconciler.MAX_RESTARTS):
        with pytest.raises(NotYet):
            call(backend)
    line = {"attempt": "a", "rank": 1, "error": "ValueError: odd", "final": False}
    later = {"attempt": "a", "rank": 0, "error": "RuntimeError: connection closed", "final": False}
    (job_folder() / "errors.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(later) + "\n")
    with pytest.raises(JobError, match=r"failed 6 times, at last by: ValueError: odd; look at .*log\.txt"):
        call(backend)
    assert len(backend.jobs) == 8
    with pytest.raises(NotYet):  # a retry of the task begins anew
        call(backend)


def lose_the_reply() -> None:
    """Leave the journal of the job as a launcher that is killed before the backend's reply does."""
    JobAttempts(job_folder()).change(handle="")


def test_a_job_that_was_asked_for_by_one_who_was_killed_is_attached_to():
    backend = ScriptedBackend("queued")
    with pytest.raises(NotYet):
        call(backend)
    (submitted,) = JobAttempts(job_folder()).all
    lose_the_reply()
    with pytest.raises(NotYet, match="queued"):
        call(backend)
    assert [job.name for job in backend.jobs] == [job_folder().name] * 2
    assert JobAttempts(job_folder()).all == [submitted]


def test_a_job_whose_heartbeats_find_no_room_on_the_disk_is_no_hang():
    backend = ScriptedBackend("running")
    for at_s in (0, 20):
        with pytest.raises(NotYet):
            call(backend, at_s=at_s)
    path = job_folder()
    beat = Progress(
        time=NIGHT.started_at, seen=1, num_updates=1, loss=1, rate=1, samples_per_s=1, memory_bytes=1
    )
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        supervision._report(path, beat)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    at = NIGHT.started_at.timestamp() + 600
    os.utime(path / MOVING, (at, at))
    for at_s in (600, 600 + reconciler.LOCAL_START_S):
        with pytest.raises(NotYet, match="starting"):
            call(backend, at_s=at_s)
    assert not backend.cancelled
    with suppress(NotYet):
        call(backend, at_s=601 + reconciler.LOCAL_START_S)
    assert backend.cancelled


def test_a_job_of_one_long_update_is_no_hang_before_its_first_heartbeat():
    backend = ScriptedBackend("running")
    forecast = JobForecast(expected_s=100, expected_usd=0.0, interval=(90, 110))
    whole = replace(nights.plan(num_samples=1000), batch_size=1000, micro_batch_size=1000, forecast=forecast)
    for at_s in (0, 20, 20 + 2 * reconciler.LOCAL_START_S):
        with pytest.raises(NotYet):
            call(backend, plan=whole, at_s=at_s)
    assert not backend.cancelled


def test_a_job_that_slept_with_its_laptop_is_no_hang_until_it_is_silent_awake():
    backend = ScriptedBackend("running")
    for at_s in (0, 20):
        with pytest.raises(NotYet):
            call(backend, at_s=at_s, awake_s=at_s)
    slept_s = 8 * 3600
    for awake_s in (30, 20 + reconciler.LOCAL_START_S):
        with pytest.raises(NotYet, match="starting"):
            call(backend, at_s=awake_s + slept_s, awake_s=awake_s)
    assert not backend.cancelled
    with suppress(NotYet):
        call(backend, at_s=21 + reconciler.LOCAL_START_S + slept_s, awake_s=21 + reconciler.LOCAL_START_S)
    assert backend.cancelled


def test_an_error_that_does_not_mend_itself_is_told_at_once():
    backend = ScriptedBackend("failed")
    with pytest.raises(NotYet):
        call(backend)
    line = {
        "attempt": "a",
        "rank": 0,
        "error": "the loss of update 7 is nan; lower train.rate",
        "final": True,
    }
    (job_folder() / "errors.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(JobError, match=r"^the loss of update 7 is nan; lower train\.rate$"):
        call(backend)
    assert len(backend.jobs) == 1


def test_a_job_of_a_changed_plan_waits_until_the_old_one_has_ended():
    backend = ScriptedBackend("running")
    backend.slow_to_end = True
    with pytest.raises(NotYet):
        call(backend)
    with pytest.raises(NotYet, match=r"waits for the end of \w+"):
        call(backend, plan=nights.plan(num_samples=64))
    assert len(backend.jobs) == 1
    with pytest.raises(NotYet, match="queued"):
        call(backend, plan=nights.plan(num_samples=64))


def test_a_changed_plan_ends_the_job_of_the_old_one():
    backend = ScriptedBackend("running")
    with pytest.raises(NotYet):
        call(backend)
    old = backend.jobs[0].folder
    with pytest.raises(NotYet):
        call(backend, plan=nights.plan(num_samples=64))
    assert backend.cancelled == [old]
    assert len(backend.jobs) == 2


def test_a_job_that_cannot_be_cancelled_keeps_no_other_of_an_old_plan_alive():
    class Stuck(ScriptedBackend):
        def cancel(self, handle):
            super().cancel(handle)
            if handle == self.jobs[0].folder:
                raise JobError("the service does not answer; try again")

    backend = Stuck("running")
    first, second = (nights.plan(num_samples=number) for number in (64, 128))
    for plan in (first, second):
        with suppress(NotYet, JobError):
            call(backend, plan=plan)
        for path in JOBS.glob("*/submissions.json"):  # so that the first keeps no second from it
            path.rename(path.with_name("aside"))
    for path in JOBS.glob("*/aside"):
        path.rename(path.with_name("submissions.json"))
    with pytest.raises(JobError, match=r"^job \w+ may still run: the service does not answer; try again$"):
        launcher.end_jobs(Home(Path.cwd()), backend)
    assert sorted(backend.cancelled) == sorted(job.folder for job in backend.jobs)
    assert len(backend.jobs) == 2


def test_a_changed_plan_ends_the_job_of_one_who_was_killed_while_asking_for_it():
    backend = ScriptedBackend("running")
    with pytest.raises(NotYet):
        call(backend)
    old = backend.jobs[0]
    lose_the_reply()
    with pytest.raises(NotYet):
        call(backend, plan=nights.plan(num_samples=64))
    assert backend.cancelled == [old.folder]
    assert [job.name == old.name for job in backend.jobs] == [True, True, False]
    with pytest.raises(NotYet):
        call(backend, plan=nights.plan(num_samples=64))
    assert len(backend.jobs) == 3


def test_what_a_backend_refuses_to_attach_to_is_in_nobodys_way(caplog):
    class Other(ScriptedBackend):
        def submit(self, job):
            if job.name == old.name:
                raise JobError("it rents no such machine")
            return super().submit(job)

    backend = ScriptedBackend("running")
    with pytest.raises(NotYet):
        call(backend)
    old = backend.jobs[0]
    lose_the_reply()
    with pytest.raises(NotYet, match="queued"):
        call(Other("running"), plan=nights.plan(num_samples=64))
    assert "whether it exists is not known: it rents no such machine" in caplog.text


def test_two_calls_at_once_do_not_both_act():
    entered, leave = threading.Event(), threading.Event()

    class Slow(ScriptedBackend):
        def submit(self, job):
            entered.set()
            leave.wait(10)
            return super().submit(job)

    backend = Slow("running")

    def ask() -> None:
        with suppress(NotYet):
            call(backend)

    first = threading.Thread(target=ask)
    first.start()
    entered.wait(10)
    with pytest.raises(NotYet, match="another call looks after it"):
        call(backend)
    leave.set()
    first.join()
    assert len(backend.jobs) == 1


def test_a_place_that_cannot_be_asked_is_asked_again_and_holds_up_no_deadline():
    class Away(ScriptedBackend):
        away = True

        def submit(self, job):
            if self.away:
                raise NotYet(f"job {job.name} is not known to be taken: no answer")
            return super().submit(job)

    backend = Away("running")
    for _ in range(2):
        with pytest.raises(NotYet, match="is not known to be taken"):
            call(backend)
    backend.away = False
    with pytest.raises(NotYet):
        call(backend, at_s=60)
    assert len(backend.jobs) == 1

    shutil.rmtree(JOBS)
    away = Away("running")
    with pytest.raises(NotYet, match="is not known to be taken"):
        call(away)
    with pytest.raises(JobError, match="did not reach a checkpoint"):  # so there is nothing to take
        call(away, at_s=24 * 3600 + 1)
    assert away.cancelled == []


def beats_from(first_s: float, *, to_s: float) -> None:
    """Heartbeats of a job, one in half a minute."""
    with (job_folder() / "progress.jsonl").open("a") as file:
        for number in range(int((to_s - first_s) // 30) + 1):
            line = {"time": (NIGHT.started_at + timedelta(seconds=first_s + 30 * number)).isoformat()}
            line |= {"seen": 10 * number, "num_updates": number, "loss": 1.0, "samples_per_s": 1 / 3}
            file.write(json.dumps({**line, "batch_size": 10, "rate": 0.1, "memory_bytes": 1}) + "\n")


def looked(backend: ScriptedBackend, plan: Plan, at_s: float, state: JobState) -> str:
    backend.script = [state]
    with pytest.raises(NotYet) as raised:
        call(backend, plan=plan, at_s=at_s)
    return str(raised.value)


def waiting_again(backend: ScriptedBackend, plan: Plan) -> None:
    """A job that runs for ten minutes, and then waits for machines again."""
    looked(backend, plan, 0, "queued")
    looked(backend, plan, 30, "running")
    beats_from(60, to_s=630)
    looked(backend, plan, 640, "running")
    looked(backend, plan, 1000, "queued")


def on_a_cluster() -> Plan:
    plan = nights.plan(num_samples=2000)
    forecast = replace(plan.forecast, expected_s=6000, interval=(5000, 7000))
    rental = Rental(machine="g2-standard-8", region="us-central1")
    return replace(plan, rental=rental, usd_per_hour=1.0, forecast=forecast)


def test_a_job_that_waited_again_and_runs_again_is_no_hang_until_it_is_silent_since_then():
    backend, plan = ScriptedBackend("queued"), on_a_cluster()
    waiting_again(backend, plan)
    looked(backend, plan, 4600, "queued")
    looked(backend, plan, 4601, "running")
    looked(backend, plan, 4700, "running")
    assert not backend.cancelled
    silent_from = 4601 + max(2 * startup.restart_s(plan), QUIET_UPDATES * 6000 * 32 / 2000)
    looked(backend, plan, silent_from - 10, "running")
    assert not backend.cancelled
    looked(backend, plan, silent_from + 10, "running")
    assert len(backend.cancelled) == 1


def test_machines_that_are_waited_for_again_are_left_after_as_long_as_at_first():
    last = NIGHT.train_until - timedelta(seconds=60)
    rental = Rental(machine="a2-highgpu-1g", region="us-central1")
    dearer = Placement(rental=rental, expected_s=3000, expected_usd=0.01, latest_start=last, usd_per_hour=4.0)
    backend, plan = ScriptedBackend("queued"), replace(on_a_cluster(), fallbacks=(dearer,))
    waiting_again(backend, plan)
    looked(backend, plan, 1000 + PATIENCE_S - 10, "queued")
    assert not backend.cancelled
    looked(backend, plan, 1000 + 3 * PATIENCE_S, "queued")
    assert len(backend.cancelled) == 1
    looked(backend, plan, 1010 + 3 * PATIENCE_S, "queued")
    assert [job.rental.machine for job in backend.jobs] == ["g2-standard-8", "a2-highgpu-1g"]
    first = JobAttempts(job_folder()).all[0]
    assert first.placement.rental in JobAttempts(job_folder()).refused(since=0)


def rented_plan(**changes: object) -> Plan:
    rental = Rental(machine="g2-standard-8", region="us-central1")
    return replace(nights.plan(**changes), rental=rental, usd_per_hour=10.0)


def ended_after(backend: ScriptedBackend, *, hours: float) -> float:
    """The dollars of all jobs, ended by a person so many hours after the night has begun."""
    at = NIGHT.started_at.timestamp() + 3600 * hours
    launcher.end_jobs(Home(Path.cwd()), backend, clock=lambda: at)
    return spent_usd(JOBS, night=NIGHT.id)


@pytest.mark.parametrize(("state", "usd"), [("queued", 0.0), ("refused", 0.0), ("running", 20.0)])
def test_a_job_that_is_ended_pays_for_the_machines_that_it_held(state, usd):
    backend = ScriptedBackend(state)
    with pytest.raises(NotYet):
        call(backend, plan=rented_plan())
    assert ended_after(backend, hours=2) == pytest.approx(usd)


def test_a_job_that_is_ended_is_paid_by_the_bill_where_there_is_one():
    class Billing(ScriptedBackend):
        def usd(self, folder: Path) -> float | None:
            return 7.5

    backend = Billing("running")
    with pytest.raises(NotYet):
        call(backend, plan=rented_plan())
    assert ended_after(backend, hours=2) == 7.5


def test_a_job_that_may_not_have_been_made_yet_keeps_no_other_alive():
    class Away(ScriptedBackend):
        def submit(self, job):
            raise NotYet("the service does not answer")

    backend = Away("running")
    first = observed_job.first(rented_plan(), train_until=NIGHT.train_until, confidence=0.9)
    for name in "abc":
        attempts = JobAttempts(JOBS / name)
        attempts.ask(0.0, job=name, placement=first)
        if name != "b":
            attempts.change(handle=name)
    with pytest.raises(NotYet, match=r"^job b may still run: the service does not answer$"):
        launcher.end_jobs(Home(Path.cwd()), backend)
    assert sorted(backend.cancelled) == ["a", "c"]


def test_no_job_has_the_name_of_one_that_ended_without_a_result_however_often_train_is_run_again():
    """Backends attach to a job of that name, dead as it is, rather than run another."""
    backend = ScriptedBackend("succeeded")
    for at_s in range(2 * (reconciler.MAX_RESTARTS + 2)):
        with pytest.raises((NotYet, JobError)):
            call(backend, at_s=at_s)
    names = [job.name for job in backend.jobs]
    assert len(names) == 2 * (reconciler.MAX_RESTARTS + 1)
    assert len(set(names)) == len(names)


def test_a_job_whose_result_is_not_whole_is_run_again_from_its_last_checkpoint():
    """Backends run no job again that has succeeded, so it has another name."""
    backend = ScriptedBackend("running")
    with pytest.raises(NotYet):
        call(backend)
    finish(job_folder())
    (job_folder() / "model/model.safetensors").write_bytes(b"torn")
    backend.script = ["succeeded"]
    with pytest.raises(JobError, match="run train again, it goes on from the last checkpoint"):
        call(backend, at_s=60)
    backend.script = ["running"]
    for at_s in (70, 80):
        with pytest.raises(NotYet):
            call(backend, at_s=at_s)
    first, again = (job.name for job in backend.jobs)
    assert again == f"{first}-again-1"
    lose_the_reply()  # of a submitter that was killed
    with pytest.raises(NotYet):
        call(backend, at_s=90)
    launcher.end_jobs(Home(Path.cwd()), backend)
    assert {job.name for job in backend.jobs} == {first, again}
