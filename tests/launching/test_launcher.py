"""The reconciler with a scripted backend: one next action a call, whatever the world looks like."""

import json
import os
import resource
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest
import torch

from pipeline import records
from pipeline.backends import Rental
from pipeline.errors import JobError, NotYet
from pipeline.launching import ladder, launcher, reconciler
from pipeline.launching.attempts import Attempts
from pipeline.launching.collector import MODEL
from pipeline.launching.launcher import JOBS, recipe_of
from pipeline.records import Champion, Portion, Rung
from pipeline.training import checkpoint, worker
from pipeline.training.bucket import Bucket
from pipeline.training.checkpoint import State
from pipeline.training.order import indices
from pipeline.training.recipe import MOVING, Progress, Recipe, Result
from pipeline.training.tally import Tally
from pipeline.training.worker import write_facts
from tests.fakes import ScriptedBackend
from tests.training import nights


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    nights.lay_out(tmp_path)


NIGHT = nights.night(seconds=24 * 3600)
RUNG = ladder.first(nights.plan(), train_until=NIGHT.train_until, confidence=0.99)


def call(backend, *, night=NIGHT, plan=None, champion=None, params=None, at_s=0.0):
    """A call so many seconds after the night has begun."""
    return launcher.look_after(
        night,
        nights.dataset(),
        plan or nights.plan(),
        champion,
        backend=backend,
        params=params or nights.told(),
        clock=lambda: night.started_at.timestamp() + at_s,
    )


def job_folder() -> Path:
    (path,) = (path for path in JOBS.iterdir() if path.is_dir())
    return path


def finish(path: Path) -> None:
    """Leave what a worker leaves at its end."""
    recipe = records.loads(Recipe, (path / "job.json").read_text())
    model = path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    write_facts(model, recipe, seen=3001)
    result = Result(
        model_digest=records.digest(model),
        num_samples=3001,
        num_updates=94,
        stopped_by="finished",
        warm=False,
        ended_at=NIGHT.started_at + timedelta(seconds=50),
    )
    starts = [NIGHT.started_at, NIGHT.started_at + timedelta(seconds=20)]
    (path / "starts.jsonl").write_text("".join(json.dumps({"time": t.isoformat()}) + "\n" for t in starts))
    records.write(result, path)


def test_the_first_call_submits_the_second_waits_and_the_last_collects():
    backend = ScriptedBackend("running")
    with pytest.raises(NotYet, match="queued"):
        call(backend)
    with pytest.raises(NotYet, match="starting"):
        call(backend, at_s=20)
    (job,) = backend.jobs
    assert job.command[0] == "torchrun"
    assert job.command[-3:] == ("-m", "pipeline.training.worker", job.folder)
    assert job.environment["PYTHONPATH"].startswith(str(Path.cwd()))
    finish(job_folder())
    training = call(backend, at_s=120)
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
        "time": "2026-01-01T00:00:00Z", "seen": 1020, "num_updates": 32, "loss": 0.21, "rate": 1e-3,
        "samples_per_s": 1203.4, "memory_bytes": 5,
    }  # fmt: skip
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


def on_spot():
    """A plan of spot, with the same machine on demand to fall back on."""
    bought = Rung(machine="local", num_machines=1, spot=False, expected_s=7200, expected_usd=9,
                  latest_start=NIGHT.train_until)  # fmt: skip
    return replace(nights.plan(), spot=True, expected_s=7200, expected_usd=3, ladder=(bought,))


def test_a_job_on_spot_that_was_lost_asks_for_spot_again_while_time_allows():
    backend = ScriptedBackend("preempted")
    for _ in range(3):
        with pytest.raises(NotYet):
            call(backend, plan=on_spot())
    assert [job.strategy for job in backend.jobs] == ["spot", "spot", "spot"]
    assert len({job.name for job in backend.jobs}) == 1


def test_a_job_on_spot_that_was_lost_late_is_bought():
    backend = ScriptedBackend("preempted")
    late = nights.night(seconds=7200 + 900)
    for _ in range(2):
        with pytest.raises(NotYet):
            call(backend, plan=on_spot(), night=late)
    assert [job.strategy for job in backend.jobs] == ["on-demand", "on-demand"]
    assert backend.jobs[0].name.endswith("-local-1-on-demand")
    assert backend.jobs[0].folder == backend.jobs[1].folder


def test_a_job_leaves_the_queue_for_spot_when_it_must_and_once_only():
    backend = ScriptedBackend("queued")
    spare_s = 1950  # another loss could be borne, waiting could not
    night = nights.night(seconds=7200 / (0.8 * 0.98) + spare_s)
    with pytest.raises(NotYet):
        call(backend, plan=on_spot(), night=night)
    with pytest.raises(NotYet):
        call(backend, plan=on_spot(), night=night)
    assert backend.cancelled == [backend.jobs[0].folder]
    assert [job.strategy for job in backend.jobs] == ["spot", "on-demand"]
    with pytest.raises(NotYet, match="queued"):
        call(backend, plan=on_spot(), night=night)
    assert len(backend.jobs) == 2


def test_a_job_that_runs_on_spot_is_left_in_steps_and_only_then_bought():
    """Another loss could still be borne when it goes to spot, and not after 25 minutes."""
    backend = ScriptedBackend("running")
    backend.slow_to_end = True
    night = nights.night(seconds=7200 / (0.8 * 0.98) + 2000)
    for at_s in (0, 120):
        with pytest.raises(NotYet):
            call(backend, plan=on_spot(), night=night, at_s=at_s)
    assert [job.strategy for job in backend.jobs] == ["spot"]
    with pytest.raises(NotYet, match="is told to end, and has not yet"):
        call(backend, plan=on_spot(), night=night, at_s=1500)
    assert len(backend.jobs) == 1
    with pytest.raises(NotYet, match="queued"):
        call(backend, plan=on_spot(), night=night, at_s=1620)
    assert [job.strategy for job in backend.jobs] == ["spot", "on-demand"]
    (taken,) = Attempts(job_folder()).taken
    assert (taken.name, taken.usd) == ("on-demand", 6.0)
    with pytest.raises(NotYet, match="starting"):
        call(backend, plan=on_spot(), night=night, at_s=1740)
    assert len(backend.cancelled) == 1


def test_a_job_that_was_asked_for_by_one_who_was_killed_is_attached_to():
    backend = ScriptedBackend("queued")
    with pytest.raises(NotYet):
        call(backend)
    log = job_folder() / "submissions.jsonl"
    asked, submitted = log.read_text().splitlines(keepends=True)
    log.write_text(asked)
    with pytest.raises(NotYet, match="queued"):
        call(backend)
    assert [job.name for job in backend.jobs] == [job_folder().name] * 2
    assert log.read_text().splitlines(keepends=True)[0] == asked
    assert json.loads(log.read_text().splitlines()[1])["handle"] == json.loads(submitted)["handle"]


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
        worker._report(path, beat)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    at = NIGHT.started_at.timestamp() + 600
    os.utime(path / MOVING, (at, at))
    with pytest.raises(NotYet, match="starting"):
        call(backend, at_s=600 + reconciler.LOCAL_START_S)
    assert not backend.cancelled
    with suppress(NotYet):
        call(backend, at_s=601 + reconciler.LOCAL_START_S)
    assert backend.cancelled


def test_machines_are_paid_for_from_the_last_look_at_the_queue_until_they_are_seen_ended():
    backend = ScriptedBackend("queued")
    plan = replace(nights.plan(), usd_per_hour=3.6)  # a thousandth of a dollar a second
    spent = []
    looks = [(0, "queued"), (100, "queued"), (200, "running"), (300, "preempted"), (400, "running")]
    for at_s, state in looks:
        backend.script = [state]
        with pytest.raises(NotYet):
            call(backend, plan=plan, at_s=at_s)
        spent.append(round(json.loads((job_folder() / "meter.json").read_text())["usd"], 9))
    assert spent == [0, 0, 0.1, 0.2, 0.3]
    finish(job_folder())
    result = records.read(Result, job_folder())
    records.write(replace(result, ended_at=NIGHT.started_at + timedelta(seconds=450)), job_folder())
    assert call(backend, plan=plan, at_s=5000).cost_usd == pytest.approx(0.35)
    assert call(backend, plan=plan, at_s=9000).cost_usd == pytest.approx(0.35)


class Billed(ScriptedBackend):
    """One that tells what jobs cost, if it can."""

    bill: float | None = None

    def live(self) -> list[Rental]:
        return []

    def premises(self, regions: Sequence[str]) -> Iterator[tuple[str, bool, str]]:
        yield from ()

    def usd(self, folder: Path) -> float | None:
        assert folder == job_folder()
        return self.bill


def test_what_the_backend_says_that_a_job_has_cost_counts_and_is_estimated_only_where_it_cannot_tell():
    backend = Billed("running")
    plan = replace(nights.plan(), usd_per_hour=3.6)
    for at_s, bill in [(0, None), (100, None), (200, 0.5), (300, None)]:
        backend.bill = bill
        with pytest.raises(NotYet):
            call(backend, plan=plan, at_s=at_s)
        estimated = {0: 0, 100: 0.1, 200: 0.5, 300: 0.6}[at_s]
        assert json.loads((job_folder() / "meter.json").read_text())["usd"] == pytest.approx(estimated)
    finish(job_folder())
    backend.bill = 0.55
    assert call(backend, plan=plan, at_s=400).cost_usd == 0.55


def test_ones_own_machine_is_not_metered():
    with pytest.raises(NotYet):
        call(ScriptedBackend("running"), plan=replace(nights.plan(), usd_per_hour=0.0))
    assert not (job_folder() / "meter.json").exists()
    assert not (job_folder() / "end_by.json").exists()


def test_the_job_is_told_a_tick_before_money_ends_and_ended_then():
    backend = ScriptedBackend("running")
    night = nights.night(seconds=24 * 3600, budget_usd=1.0)
    plan = replace(nights.plan(), usd_per_hour=3.6)
    for at_s in (0, 400):
        with pytest.raises(NotYet):
            call(backend, plan=plan, night=night, at_s=at_s)
    end_by = json.loads((job_folder() / "end_by.json").read_text())["time"]
    assert end_by == pytest.approx(night.started_at.timestamp() + 1000 - 120)
    with pytest.raises(
        JobError, match=r"by the time that its budget ended.*the champion stays; .* night\.budget_usd"
    ):
        call(backend, plan=plan, night=night, at_s=900)
    assert len(backend.cancelled) == 1


def test_a_job_stays_in_the_queue_for_spot_while_time_allows():
    backend = ScriptedBackend("queued")
    for _ in range(3):
        with pytest.raises(NotYet, match="queued"):
            call(backend, plan=on_spot())
    assert not backend.cancelled
    assert len(backend.jobs) == 1


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


@pytest.mark.parametrize(
    ("changed", "hours"),
    [
        ({"spot": True, "num_machines": 2}, 16.9 / 2),
        ({}, 24),
        ({"machine": "n1-standard-4"}, 54 * 24 * 16_384 / 8 / 419),
    ],
)
def test_the_interval_may_be_made_anew_by_how_long_machines_live(changed, hours):
    plan = replace(nights.plan(), **changed)
    recipe = recipe_of(NIGHT, nights.dataset(), plan, None, nights.told(checkpoint_every_s=None))
    assert recipe.mean_time_to_loss_s == pytest.approx(hours * 3600)
    assert recipe.checkpoint_every_s == plan.checkpoint_every_s
    fixed = recipe_of(NIGHT, nights.dataset(), plan, None, nights.told(checkpoint_every_s=7))
    assert (fixed.checkpoint_every_s, fixed.mean_time_to_loss_s) == (7, None)


def test_past_the_deadline_the_model_of_a_checkpoint_is_proven_as_far_as_it_goes():
    night, backend = nights.night(seconds=-60), ScriptedBackend("running")
    recipe = recipe_of(night, nights.dataset(), nights.plan(), None, nights.told())
    path = JOBS / launcher.name_of(recipe, RUNG, num_workers=1)
    path.mkdir(parents=True)
    asked = Attempts(path)
    asked.ask(0.0, name="j", rung=RUNG)
    asked.submit(0.0, handle="h")
    tally = Tally(seed=recipe.seed, first_sample=0, num_samples=1000)
    tally.add(0, indices(seed=recipe.seed, num_samples=1000, start=0, stop=1320))
    for seen, name in ((1320, "right"), (1321, "wrong")):
        tally.settle(seen=seen, total=lambda own: own)
        state = State(
            tensors={"model": {"w": torch.ones(2)}}, scalars={"num_updates": 41, "tally": tally.save()}
        )
        checkpoint.save(path / "checkpoints", state, seen=seen, identity=recipe.identity)
        if name == "right":
            told = [(epoch.num_samples, epoch.whole) for epoch in call(backend, night=night).epochs]
            assert told == [(1000, True), (320, False)]
            (path / "result.json").unlink()
        else:
            with pytest.raises(JobError, match="epoch 2 was trained on other samples than are due: 320 with"):
                call(backend, night=night)


def test_past_the_deadline_the_last_good_checkpoint_is_the_model():
    night = nights.night(seconds=-60)
    backend = ScriptedBackend("running")
    recipe = recipe_of(night, nights.dataset(), nights.plan(), None, nights.told())
    path = JOBS / launcher.name_of(recipe, RUNG, num_workers=1)
    path.mkdir(parents=True)
    asked = Attempts(path)
    asked.ask(0.0, name="j", rung=RUNG)
    asked.submit(0.0, handle="h")
    for seen in (320, 640):
        state = State(
            tensors={"model": {"w": torch.full((2,), float(seen))}, "optimizer": {}},
            scalars={"num_updates": seen // 32},
        )
        checkpoint.save(path / "checkpoints", state, seen=seen, identity=recipe.identity)
    (path / "checkpoints" / "seen=000000000000640" / "model.safetensors").write_bytes(b"torn")
    training = call(backend, night=night)
    assert backend.cancelled == ["h"]
    assert (training.stopped_by, training.num_samples, training.num_updates) == ("deadline", 320, 10)
    assert nights.weights()["w"].tolist() == [320, 320]
    facts = json.loads((MODEL / "model.json").read_text())
    assert facts["seen"] == 320
    assert facts["workload"] == "tests.fakes:LineWorkload"


def test_past_the_deadline_the_copy_that_outlived_its_machine_is_the_model(tmp_path):
    night, params = nights.night(seconds=-60), nights.told()
    params = params.model_copy(
        update={"train": params.train.model_copy(update={"checkpoints": str(tmp_path / "copies")})}
    )
    recipe = recipe_of(night, nights.dataset(), nights.plan(), None, params)
    state = State(tensors={"model": {"w": torch.ones(2)}, "optimizer": {}}, scalars={"num_updates": 10})
    path = checkpoint.save(tmp_path / "lost", state, seen=320, identity=recipe.identity)
    assert path
    assert Bucket(recipe.copies).send(path)
    assert call(ScriptedBackend("running"), night=night, params=params).num_samples == 320
    assert nights.weights()["w"].tolist() == [1, 1]


@pytest.mark.parametrize(("after_s", "earlier_s"), [(30.0, 0.0), (90.5, 31.0)])
def test_training_leaves_the_time_that_the_decision_needs(after_s, earlier_s):
    """The night gives a minute to what follows training."""
    after = (Portion(name="evaluation", expected_s=after_s, expected_usd=0.0),)
    made = recipe_of(NIGHT, nights.dataset(), replace(nights.plan(), after=after), None, nights.told())
    assert made.train_until == NIGHT.train_until - timedelta(seconds=earlier_s)


def test_past_the_deadline_without_a_checkpoint_the_champion_stays():
    backend = ScriptedBackend("running")
    with pytest.raises(
        JobError, match=r"did not reach a checkpoint by .* the champion stays; .*night\.train_hours"
    ):
        call(backend, night=nights.night(seconds=-60))
    assert not backend.jobs


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


def test_a_changed_plan_ends_the_job_of_one_who_was_killed_while_asking_for_it():
    backend = ScriptedBackend("running")
    with pytest.raises(NotYet):
        call(backend)
    old, log = backend.jobs[0], job_folder() / "submissions.jsonl"
    log.write_text(log.read_text().splitlines(keepends=True)[0])
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
    old, log = backend.jobs[0], job_folder() / "submissions.jsonl"
    log.write_text(log.read_text().splitlines(keepends=True)[0])
    with pytest.raises(NotYet, match="queued"):
        call(Other("running"), plan=nights.plan(num_samples=64))
    assert "whether it is there is not known: it rents no such machine" in caplog.text


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


def test_a_model_that_was_changed_after_training_is_refused():
    backend = ScriptedBackend("running")
    with pytest.raises(NotYet):
        call(backend)
    finish(job_folder())
    (job_folder() / "model" / "model.safetensors").write_bytes(b"other")
    with pytest.raises(JobError, match="does not match its digest"):
        call(backend)
    assert not MODEL.exists()


@pytest.fixture
def champion() -> Champion:
    path = launcher.CHAMPION
    path.mkdir(parents=True)
    facts = {"workload": "tests.fakes:LineWorkload", "arguments": {}}
    (path / "model.json").write_text(json.dumps(facts))
    (path / "model.safetensors").write_bytes(b"weights")
    return Champion(champion=3, replaced=2, model_digest=records.digest(path))


def warm(champion: Champion | None, *, day: date = date(2026, 1, 2), **arguments) -> bool:
    params = nights.told(**arguments)
    recipe = recipe_of(nights.night(day=day), nights.dataset(), nights.plan(), champion, params)
    return bool(recipe.warm_from)


def test_training_starts_from_the_champion_except_every_so_many_nights(champion):
    first = date(2026, 1, 1)
    cold = [day for day in range(14) if not warm(champion, day=first + timedelta(days=day))]
    assert len(cold) == 2
    assert cold[1] - cold[0] == 7
    assert not warm(champion, day=first + timedelta(days=cold[0] + 1), cold_every=1)


def test_training_starts_cold_from_no_champion_or_another_or_a_changed_one(champion, caplog):
    assert warm(champion)
    assert not warm(None)
    assert not warm(champion, width=8)
    (launcher.CHAMPION / "model.safetensors").write_bytes(b"other")
    assert not warm(champion)
    assert "is not the model of version 3" in caplog.text
    shutil.rmtree(launcher.CHAMPION)
    launcher.CHAMPION.mkdir()
    assert not warm(champion)
