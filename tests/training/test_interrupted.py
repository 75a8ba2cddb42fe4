"""Real jobs, really killed: they resume, and end as if nothing had happened.

What workers do, alone and together, in any number and with dropout, is for test_chaos.py; here they are
started and ended by torchrun.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from pipeline.backends import Job
from pipeline.backends.local import Local
from pipeline.errors import JobError
from pipeline.launching import jobs
from pipeline.records import Training, replace_text
from pipeline.training.recipe import END_BY
from tests.fakes import read_lines
from tests.launching import trouble
from tests.launching.trouble import processes
from tests.training import nights

pytestmark = pytest.mark.slow
SLOW = {"delay_s": 0.015}  # a batch: so that there is something to interrupt


@pytest.fixture(autouse=True, scope="module")
def surroundings():
    before = Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(nights.ROOT))
        patch.setenv("MLFLOW_TRACKING_URI", "")
        yield
    os.chdir(before)


@dataclass
class Alone:
    """A job on one worker that nothing happened to."""

    training: Training
    weights: dict[str, torch.Tensor]
    job: Path


@pytest.fixture(scope="module")
def alone(tmp_path_factory, surroundings) -> Alone:
    folder = tmp_path_factory.mktemp("alone")
    nights.lay_out(folder)
    training = nights.train(nights.night(), nights.told(dropout=0.0, **SLOW))
    (job,) = (path for path in (folder / "data/work/jobs").iterdir() if path.is_dir())
    return Alone(training, nights.weights(), job)


def seen(job: Path) -> int:
    lines = read_lines(job / "progress.jsonl") if (job / "progress.jsonl").exists() else []
    return int(lines[-1]["seen"]) if lines else 0


class Killer:
    """Kills, at a random moment after each checkpoint that is new, the next of its victims."""

    def __init__(self, *victims: str, seed: int = 0) -> None:
        self.victims = list(victims)
        self.random = random.Random(seed)
        self.newest = ""
        self.killed_at: list[float] = []

    def __call__(self, job: Path) -> None:
        names = sorted(path.name for path in (job / "checkpoints").glob("seen=*"))
        if not self.victims or not names or names[-1] <= self.newest:
            return
        time.sleep(self.random.uniform(0, 0.3))
        found = processes(job)
        victims = found[self.victims[0]]
        if not found["worker"] or not victims:
            return
        for process in victims[-1:] if self.victims[0] == "worker" else victims:
            if process.is_running():
                os.kill(process.pid, signal.SIGKILL)
        self.killed_at.append(time.time())
        self.victims.pop(0)
        self.newest = sorted(path.name for path in (job / "checkpoints").glob("seen=*"))[-1]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_job_killed_at_any_moment_ends_bit_equal_to_one_left_alone(tmp_path, alone):
    nights.lay_out(tmp_path)
    killer = Killer("worker", "torchrun", "all")
    training = nights.train(nights.night(), nights.told(dropout=0.0, **SLOW), between=killer)
    assert not killer.victims
    assert training.num_restarts >= 1  # a start that is killed before it counts itself is none
    assert (training.num_samples, training.num_updates, training.stopped_by) == (3001, 94, "finished")
    sizes = [(epoch.num_samples, epoch.whole) for epoch in training.epochs]
    assert sizes == [(1000, True), (1000, True), (1000, True), (1, False)]
    assert training.epochs == alone.training.epochs
    assert equal(nights.weights(), alone.weights)
    assert training.model_digest == alone.training.model_digest


def run_directly(folder: Path, *, meanwhile: Callable[[], None]) -> None:
    """The job in `folder`, until it ends."""
    command = ("torchrun", "--nnodes=1", "--nproc-per-node=1", "-m", "pipeline.training.worker")
    backend = Local()
    handle = backend.submit(
        Job(
            name="j",
            command=(*command, str(folder)),
            machine="local",
            num_machines=1,
            folder=str(folder),
            timeout_s=120,
            environment={"OMP_NUM_THREADS": "1"},
        )
    )
    while backend.state(handle) == "running":
        meanwhile()
        time.sleep(0.02)


def test_a_job_that_would_be_late_ends_before_the_deadline_with_a_model(tmp_path):
    nights.lay_out(tmp_path)
    night = nights.night(seconds=30)
    plan = nights.plan(num_samples=10**6)
    training = nights.train(night, nights.told(**SLOW), by_plan=plan)
    assert training.stopped_by == "deadline"
    assert 0 < training.num_samples < 10**6
    assert sum(epoch.num_samples for epoch in training.epochs) == training.num_samples
    assert datetime.now(UTC) < night.train_until
    (job,) = (path for path in Path("data/work/jobs").iterdir() if path.is_dir())
    rates = [line["rate"] for line in read_lines(job / "progress.jsonl")]
    assert rates[-1] < 0.1 * max(rates)
    assert nights.weights()


def test_a_loss_that_is_not_a_number_is_tried_again_once_and_names_its_samples(tmp_path):
    nights.lay_out(tmp_path)
    named = (
        r"the loss of update \d+ \(positions \d+ to \d+\) is nan, on 32 samples: (\d+, ){20}\.\.\.; look at"
    )
    with pytest.raises(JobError, match=named):
        nights.train(nights.night(), nights.told(poison=17))
    (job,) = (path for path in Path("data/work/jobs").iterdir() if path.is_dir())
    assert len(read_lines(job / "starts.jsonl")) == 2
    assert not Path("data/run/model").exists()
    assert not trouble.left_behind(tmp_path)


def test_a_worker_that_is_stopped_is_noticed_by_the_other_and_all_go_on(tmp_path, alone, monkeypatch):
    monkeypatch.setattr(jobs, "SHUTDOWN_S", 2)
    nights.lay_out(tmp_path)
    stop = trouble.Sender(signal.SIGSTOP, after=700)
    params = nights.told(num_workers=2, dropout=0.0, hang_after_s=3, **SLOW)
    training = nights.train(nights.night(), params, between=stop)
    assert stop.sent_at
    assert training.num_restarts == 1
    assert training.epochs == alone.training.epochs
    for name, weight in nights.weights().items():
        torch.testing.assert_close(weight, alone.weights[name], rtol=1e-6, atol=1e-6)
    (job,) = (path for path in Path("data/work/jobs").iterdir() if path.is_dir())
    (fault,) = read_lines(job / "errors.jsonl")
    assert fault["error"].startswith("no update for ")
    assert "raise train.hang_after_s (3)" in fault["error"]
    log = (job / "log.txt").read_text()
    assert "most recent call first" in log
    assert "in all_reduce" in log


def test_a_job_that_is_told_of_a_nearer_end_lets_the_rate_decay_to_be_done_by_then(tmp_path, alone):
    nights.lay_out(tmp_path)
    job = tmp_path / "job"
    job.mkdir()
    told = {**json.loads((alone.job / "job.json").read_text()), "num_samples": 10**6}
    (job / "job.json").write_text(json.dumps(told))

    def poor() -> None:
        if (job / "progress.jsonl").exists() and not (job / END_BY).exists():
            replace_text(job / END_BY, json.dumps({"time": time.time() + 6}))

    run_directly(job, meanwhile=poor)
    result = json.loads((job / "result.json").read_text())
    assert result["stopped_by"] == "budget"
    assert 0 < result["num_samples"] < 10**6
    beats = read_lines(job / "progress.jsonl")
    assert beats[0]["end"] == 10**6
    assert beats[-1]["end"] == result["num_samples"]
    assert beats[-1]["rate"] < 0.25 * max(beat["rate"] for beat in beats)
