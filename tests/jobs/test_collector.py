"""The collector brings back a job's model, or past the deadline the model of its newest good checkpoint."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from daybreak.contract import records
from daybreak.contract.backend import OutOfTime
from daybreak.contract.errors import JobError, NotYet
from daybreak.contract.record_types import Night
from daybreak.contract.sections import Plug
from daybreak.contract.workload import make_model, write_state
from daybreak.jobs import launcher, observed_job
from daybreak.jobs.collector import MODEL, POINTS, collect, loss_points
from daybreak.jobs.cost_tracker import JOBS
from daybreak.jobs.submissions import JobAttempts
from daybreak.registry.weights import load_model
from daybreak.training import checkpoint
from daybreak.training.checkpoint import TrainingState
from daybreak.training.checkpoint_copies import CheckpointCopies
from daybreak.training.recipe import Recipe
from daybreak.training.sample_audit import SampleAudit
from daybreak.training.sample_order import indices
from daybreak.training.sampling import SampleOrder
from tests.fakes import ScriptedBackend
from tests.jobs.calls import NIGHT, call, finish, job_folder
from tests.toy.own.card_payments import Payments
from tests.training import nights

pytestmark = pytest.mark.usefixtures("folder")
PLACEMENT = observed_job.first(nights.plan(), train_until=NIGHT.train_until, confidence=0.99)


def submitted(night: Night) -> tuple[Recipe, Path]:
    """What the worker of a job that was submitted is told, and the job's folder."""
    recipe = nights.recipe_of(night, nights.dataset(), nights.plan(), None, nights.make_params())
    path = JOBS / launcher.name_of(recipe, PLACEMENT.rental, num_workers=1)
    path.mkdir(parents=True)
    asked = JobAttempts(path)
    asked.ask(0.0, job="j", placement=PLACEMENT)
    asked.change(handle="h")
    return recipe, path


def test_past_the_deadline_the_model_of_a_checkpoint_is_proven_as_far_as_it_goes():
    night, backend = nights.night(seconds=-60), ScriptedBackend("running")
    recipe, path = submitted(night)
    tally = SampleAudit(SampleOrder(seed=recipe.seed, num_samples=1000))
    tally.add(0, indices(seed=recipe.seed, num_samples=1000, start=0, stop=1320))
    for seen, name in ((1320, "right"), (1321, "wrong")):
        tally.settle(seen=seen, total=lambda own: own)
        state = TrainingState(
            tensors={"model": {"w": torch.ones(2)}}, scalars={"num_updates": 41, "sample_audit": tally.save()}
        )
        checkpoint.save(path / "checkpoints", state, seen=seen, identity=recipe.identity)
        if name == "right":
            epochs = [(epoch.num_samples, epoch.whole) for epoch in call(backend, night=night).epochs]
            assert epochs == [(1000, True), (320, False)]
            (path / "result.json").unlink()
        else:
            with pytest.raises(JobError, match="epoch 2 was trained on other samples than are due: 320 with"):
                call(backend, night=night)


def test_past_the_deadline_the_last_good_checkpoint_is_the_model():
    night = nights.night(seconds=-60)
    backend = ScriptedBackend("running")
    recipe, path = submitted(night)
    for seen in (320, 640):
        state = TrainingState(
            tensors={"model": {"w": torch.full((2,), float(seen))}, "optimizer": {}},
            scalars={"num_updates": seen // 32, "device": "NVIDIA L4"},
        )
        checkpoint.save(path / "checkpoints", state, seen=seen, identity=recipe.identity)
    (path / "checkpoints" / "seen=000000000000640" / "model.safetensors").write_bytes(b"torn")
    training = call(backend, night=night)
    assert backend.cancelled == ["h"]
    assert (training.stopped_by, training.num_samples, training.num_updates) == ("deadline", 320, 10)
    assert training.device == "NVIDIA L4"
    assert nights.weights()["w"].tolist() == [320, 320]
    facts = json.loads((MODEL / "model.json").read_text())
    assert facts["seen"] == 320
    assert facts["workload"] == "tests.fakes:LineWorkload"


def test_the_model_of_a_checkpoint_is_loaded_though_it_is_made_from_what_fit_has_made():
    night = nights.night(seconds=-60)
    payments = Plug(use="tests.toy.own.card_payments:Payments")
    params = nights.make_params().model_copy(update={"workload": payments})
    fitted = {"edges": np.array([[0.0, 1.0, 2.0]]), "values_mcc": np.array(["4111", "5411"])}
    write_state(Path("data/arrays"), fitted)
    recipe = nights.recipe_of(night, nights.dataset(), nights.plan(), None, params)
    weights = make_model(Payments(), fitted).state_dict()
    path = JOBS / launcher.name_of(recipe, PLACEMENT.rental, num_workers=1)
    state = TrainingState(tensors={"model": weights}, scalars={"num_updates": 10})
    checkpoint.save(path / "checkpoints", state, seen=320, identity=recipe.identity)
    call(ScriptedBackend("running"), night=night, params=params)
    loaded = load_model(Payments(), MODEL).cpu().state_dict()
    torch.testing.assert_close(loaded, weights, rtol=0, atol=0)


def test_past_the_deadline_a_checkpoint_whose_weights_are_not_finite_is_not_the_model():
    night = nights.night(seconds=-60)
    recipe, path = submitted(night)
    for seen, weight in ((320, 1.0), (640, torch.nan)):
        state = TrainingState(
            tensors={"model": {"w": torch.tensor([weight])}}, scalars={"num_updates": seen // 32}
        )
        checkpoint.save(path / "checkpoints", state, seen=seen, identity=recipe.identity)
    assert call(ScriptedBackend("running"), night=night).num_samples == 320
    assert nights.weights()["w"].tolist() == [1]


def test_past_the_deadline_the_copy_that_outlived_its_machine_is_the_model(tmp_path):
    night, params = nights.night(seconds=-60), nights.make_params()
    params = params.model_copy(
        update={"train": params.train.model_copy(update={"checkpoints": str(tmp_path / "copies")})}
    )
    recipe = nights.recipe_of(night, nights.dataset(), nights.plan(), None, params)
    state = TrainingState(
        tensors={"model": {"w": torch.ones(2)}, "optimizer": {}}, scalars={"num_updates": 10}
    )
    path = checkpoint.save(tmp_path / "lost", state, seen=320, identity=recipe.identity)
    assert path
    assert CheckpointCopies(recipe.copies).send(path)
    assert call(ScriptedBackend("running"), night=night, params=params).num_samples == 320
    assert nights.weights()["w"].tolist() == [1, 1]


def test_where_the_storage_of_copies_fails_by_an_error_of_its_own_the_checkpoint_here_is_the_model(
    monkeypatch, caplog
):
    class HttpError(Exception):
        """As that of gcsfs, no OSError."""

    def fail(*_, **__):
        raise HttpError("503: try again later")

    night, params = nights.night(seconds=-60), nights.make_params()
    params = params.model_copy(
        update={"train": params.train.model_copy(update={"checkpoints": "memory://copies"})}
    )
    recipe = nights.recipe_of(night, nights.dataset(), nights.plan(), None, params)
    path = JOBS / launcher.name_of(recipe, PLACEMENT.rental, num_workers=1)
    state = TrainingState(tensors={"model": {"w": torch.ones(2)}}, scalars={"num_updates": 10})
    checkpoint.save(path / "checkpoints", state, seen=320, identity=recipe.identity)
    monkeypatch.setattr(MemoryFileSystem, "find", fail)
    assert call(ScriptedBackend("running"), night=night, params=params).num_samples == 320
    assert "cannot be read: 503: try again later" in caplog.text


def test_a_job_whose_time_passed_while_it_was_submitted_leaves_the_checkpoint_to_the_next_call():
    class Late(ScriptedBackend):
        def submit(self, job):
            raise OutOfTime(f"job {job.name} was not taken before training has to end, 60 s ago; allow more")

    night = nights.night(seconds=600)
    recipe, path = submitted(night)
    (path / "submissions.json").unlink()
    state = TrainingState(
        tensors={"model": {"w": torch.ones(2)}, "optimizer": {}}, scalars={"num_updates": 10}
    )
    checkpoint.save(path / "checkpoints", state, seen=320, identity=recipe.identity)
    with pytest.raises(NotYet, match="was not taken before training has to end"):
        call(Late("running"), night=night)
    assert call(Late("running"), night=night, at_s=601).num_samples == 320


def test_past_the_deadline_without_a_checkpoint_the_champion_stays():
    backend = ScriptedBackend("running")
    with pytest.raises(
        JobError, match=r"did not reach a checkpoint by .* the champion stays; .*night\.train_hours"
    ):
        call(backend, night=nights.night(seconds=-60))
    assert not backend.jobs


def test_a_model_that_was_changed_after_training_is_refused():
    backend = ScriptedBackend("running")
    with pytest.raises(NotYet):
        call(backend)
    finish(job_folder())
    (job_folder() / "model" / "model.safetensors").write_bytes(b"other")
    with pytest.raises(JobError, match="does not match its digest"):
        call(backend)
    assert not MODEL.exists()


def test_the_record_keeps_the_attempts_their_price_and_the_curve_of_the_loss():
    recipe, path = submitted(NIGHT)
    began = NIGHT.started_at.timestamp()
    dear = replace(PLACEMENT, usd_per_hour=36.0)
    asked = JobAttempts(path)
    asked.change(run_at=began + 10, ended="preempted", ended_at=began + 20)
    asked.ask(began + 21, job="j2", placement=dear)
    asked.change(handle="h2", run_at=began + 30)
    (path / "job.json").write_text(records.dumps(recipe))
    finish(path)
    at_once = {"time": NIGHT.started_at.isoformat(), "num_updates": 1}
    beats = [{**at_once, "seen": 10 * at, "loss": 1 / at} for at in range(1, 601)]
    (path / "progress.jsonl").write_text("".join(json.dumps(one) + "\n" for one in beats))
    training = collect(path, JobAttempts(path), cost_usd=0.3, logs="")
    first, last = training.attempts
    assert (first.end, last.end) == ("preempted", "finished")
    assert last.ran_at and (last.ended_at - last.ran_at).total_seconds() == 20
    assert last.usd == pytest.approx(0.2)
    assert training.restarted_at == (NIGHT.started_at + timedelta(seconds=20),)
    assert len(training.losses) == POINTS
    assert training.losses[-1] == (6000, pytest.approx(1 / 595, rel=0.02))


@pytest.mark.parametrize(
    ("beats", "before"),
    [
        ([(1, 30, "2 x L4"), (19, 600, "2 x L4"), (49, 900, "2 x L4")], (19.0, 600)),
        ([(1, 5_030, "2 x L4"), (19, 5_600, "2 x L4"), (49, 5_900, "2 x L4")], (21.0, 570)),  # went on
        ([(19, 50_010, "2 x L4"), (49, 50_900, "2 x L4")], (19.0, 50_010)),  # of one nobody can tell
    ],
)
def test_what_is_learned_of_a_run_before_a_restart_is_its_own(beats, before):
    recipe, path = submitted(NIGHT)
    (path / "job.json").write_text(records.dumps(recipe))
    finish(path)  # its workers began after 0 and 20 s
    lines = [
        {
            "time": (NIGHT.started_at + timedelta(seconds=at)).isoformat(),
            "num_updates": num_updates,
            "seen": num_updates,
            "loss": 1.0,
            "device": device,
        }
        for at, num_updates, device in beats
    ]
    (path / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    training = collect(path, JobAttempts(path), cost_usd=0.3, logs="")
    assert (training.before_restart, training.first_device) == (before, "2 x L4")


def test_the_curve_of_the_loss_has_nothing_that_a_restart_took_back():
    lost = [{"seen": 10 * at, "loss": 1.0} for at in range(1, 31)]
    again = [{"seen": 200 + 10 * at + 5, "loss": 0.5} for at in range(20)]  # from the checkpoint at 200
    curve = loss_points(lost + again)
    assert curve == (*((10 * at, 1.0) for at in range(1, 21)), *((205 + 10 * at, 0.5) for at in range(20)))


def test_a_job_that_ends_between_two_looks_ran_from_its_first_worker_on():
    recipe, path = submitted(NIGHT)
    began = NIGHT.started_at.timestamp()
    asked = JobAttempts(path)
    asked.change(ended="preempted", ended_at=began + 15)
    asked.ask(began + 16, job="j2", placement=replace(PLACEMENT, usd_per_hour=36.0))
    asked.change(handle="h2", ended="succeeded", ended_at=began + 3600)
    (path / "job.json").write_text(records.dumps(recipe))
    finish(path)  # its workers began after 0 and 20 s, and it ended after 50 s
    first, last = collect(path, JobAttempts(path), cost_usd=0.3, logs="").attempts
    at_s = [
        None if at is None else (at - NIGHT.started_at).total_seconds() for at in (first.ran_at, last.ran_at)
    ]
    assert at_s == [0, 20]
    assert (last.ended_at - NIGHT.started_at).total_seconds() == 50
    assert last.usd == pytest.approx(0.3)


def test_a_job_whose_workers_never_began_only_waited():
    recipe, path = submitted(NIGHT)
    began = NIGHT.started_at.timestamp()
    asked = JobAttempts(path)
    asked.change(ended="refused", ended_at=began + 15)
    asked.ask(began + 30, job="j2", placement=PLACEMENT)
    (path / "job.json").write_text(records.dumps(recipe))
    finish(path)
    (path / "starts.jsonl").write_text(
        json.dumps({"time": (NIGHT.started_at + timedelta(seconds=40)).isoformat()}) + "\n"
    )
    first, last = collect(path, JobAttempts(path), cost_usd=0.3, logs="").attempts
    assert (first.ran_at, first.usd) == (None, 0.0)
    assert last.ran_at == NIGHT.started_at + timedelta(seconds=40)
