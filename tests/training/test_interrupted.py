"""Real jobs, really killed: they resume, and end as if nothing had happened.

What workers do, alone and together, in any number and with dropout, is for test_chaos.py; here they are
started and ended by torchrun.
"""

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from daybreak.backends import torchrun
from daybreak.contract.errors import JobError
from daybreak.contract.record_types import Training
from tests.fakes import read_lines
from tests.jobs import trouble
from tests.jobs.trouble import processes
from tests.training import nights

pytestmark = pytest.mark.slow
SLOW = {"delay_s": 0.1}  # a batch: so that there is something to interrupt, three times on a busy machine


@pytest.fixture(autouse=True)
def surroundings():
    with nights.surroundings():
        yield


@dataclass
class Alone:
    """A job on one worker that nothing happened to."""

    training: Training
    weights: dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Alone:
    with nights.surroundings():
        nights.lay_out(tmp_path_factory.mktemp("alone"))
        training = nights.train(nights.night(), nights.make_params(dropout=0.0, **SLOW))
        return Alone(training, nights.weights())


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
        by_kind = processes(job)
        victims = by_kind[self.victims[0]]
        if not by_kind["worker"] or not victims:
            return
        for process in victims[-1:] if self.victims[0] == "worker" else victims:
            if process.is_running():
                os.kill(process.pid, signal.SIGKILL)
        self.killed_at.append(time.time())
        self.victims.pop(0)
        self.newest = sorted(path.name for path in (job / "checkpoints").glob("seen=*"))[-1]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.promise
def test_a_job_killed_at_any_moment_ends_bit_equal_to_one_left_alone(tmp_path, alone):
    nights.lay_out(tmp_path)
    killer = Killer("worker", "torchrun", "all")
    training = nights.train(nights.night(), nights.make_params(dropout=0.0, **SLOW), between=killer)
    assert not killer.victims
    assert training.num_restarts >= 1  # a start that is killed before it counts itself is none
    assert (training.num_samples, training.num_updates, training.stopped_by) == (3001, 94, "finished")
    sizes = [(epoch.num_samples, epoch.whole) for epoch in training.epochs]
    assert sizes == [(1000, True), (1000, True), (1000, True), (1, False)]
    assert training.epochs == alone.training.epochs
    assert equal(nights.weights(), alone.weights)
    assert training.model_digest == alone.training.model_digest


def test_a_loss_that_is_not_a_number_is_tried_again_once_and_names_its_samples(tmp_path):
    nights.lay_out(tmp_path)
    named = (
        r"the loss of update \d+ \(positions \d+ to \d+\) is nan, on 32 samples: (\d+, ){20}\.\.\.; look at"
    )
    with pytest.raises(JobError, match=named):
        nights.train(nights.night(), nights.make_params(poison=17))
    (job,) = (path for path in Path("data/work/jobs").iterdir() if path.is_dir())
    assert len(read_lines(job / "starts.jsonl")) == 2
    assert not Path("data/run/model").exists()
    assert not trouble.left_behind(tmp_path)


def test_a_gradient_of_the_last_update_that_is_not_finite_is_found_though_its_loss_is(tmp_path):
    nights.lay_out(tmp_path)
    params = nights.make_params()
    root = params.workload.model_copy(update={"use": "tests.fakes:RootWorkload"})
    with pytest.raises(JobError, match=r"^weight net\.0\.weight is not finite after update 1, the last one"):
        nights.train(
            nights.night(), params.model_copy(update={"workload": root}), by_plan=nights.plan(num_samples=32)
        )
    (job,) = (path for path in Path("data/work/jobs").iterdir() if path.is_dir())
    assert len(read_lines(job / "starts.jsonl")) == 2
    assert not Path("data/run/model").exists()


def test_an_error_of_the_workload_that_comes_again_at_the_same_update_is_not_tried_a_third_time(tmp_path):
    nights.lay_out(tmp_path)
    params = nights.make_params(poison=17)
    odd = params.workload.model_copy(update={"use": "tests.fakes:OddWorkload"})
    with pytest.raises(JobError, match=r"^ValueError: odd, at update \d+ of two starts in turn; correct"):
        nights.train(nights.night(), params.model_copy(update={"workload": odd}))
    (job,) = (path for path in Path("data/work/jobs").iterdir() if path.is_dir())
    assert len(read_lines(job / "starts.jsonl")) == 2


def test_a_worker_that_is_stopped_is_noticed_by_the_other_and_all_go_on(tmp_path, alone, monkeypatch):
    monkeypatch.setattr(torchrun, "SHUTDOWN_S", 2)
    nights.lay_out(tmp_path)
    stop = trouble.Sender(signal.SIGSTOP, after=700)
    params = nights.make_params(num_workers=2, dropout=0.0, hang_after_s=3, **SLOW)
    training = nights.train(nights.night(), params, between=stop)
    assert stop.sent_at
    assert training.num_restarts == 1
    assert training.epochs == alone.training.epochs
    assert training.device == "2 x CPU"  # what was trained on stands in the record
    for name, weight in nights.weights().items():
        torch.testing.assert_close(weight, alone.weights[name], rtol=1e-6, atol=1e-6)
    (job,) = (path for path in Path("data/work/jobs").iterdir() if path.is_dir())
    faults = [fault["error"] for fault in read_lines(job / "errors.jsonl")]
    assert faults  # two on a busy machine, where the stopped one wakes before it is ended
    for fault in faults:
        assert fault.startswith("no update for ")
        assert "raise train.hang_after_s (3)" in fault
    log = (job / "log.txt").read_text()
    assert "most recent call first" in log
    assert "in all_reduce" in log
