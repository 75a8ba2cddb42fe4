"""Asynchronous workers: each sample counts once in the weights, whoever is stopped, killed or undone."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from daybreak.contract.errors import NotFinite, ParamsError
from daybreak.contract.record_parts import Tuning
from daybreak.contract.sections import TrainParams
from daybreak.extensions.threads.asynchronous import AsynchronousEngine
from daybreak.extensions.threads.thread_policy import TRIAL, ThreadPolicy, ThreadSetting
from daybreak.training.engine import TorchEngine
from daybreak.training.gradients import Signals
from tests.fakes import LineWorkload
from tests.training import counted, nights
from tests.training.nights import ROOT
from tests.training.virtual_cores import UpdateCost, VirtualCores

FOUR = ThreadSetting(num_workers=4, num_parts=4, is_asynchronous=True)


class Momentum(LineWorkload):
    """By SGD with momentum, without chance."""

    def __init__(self, **changed):
        super().__init__(**{"dropout": 0.0, **changed})

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=1.0, momentum=0.9)


class Groups(Momentum):
    """The table learns at a tenth of the rate of the net."""

    def optimizer(self, parameters):
        table, *net = parameters
        return torch.optim.SGD([{"params": net}, {"params": [table], "lr": 0.03}], lr=0.3, momentum=0.9)


def made(workload, data, *, cores=1, setting=None) -> AsynchronousEngine:
    cost = UpdateCost(pass_s=1e-3, sample_s=1e-3, apply_s=1e-4, add_s=1e-4)
    virtual = VirtualCores(lambda time: cores, cost=cost, limit=cores)
    engine = AsynchronousEngine(
        workload, data, seed=1, micro_batch_size=8, tuning=Tuning(), cores=virtual, pool=virtual.of
    )
    if setting:
        engine.queue.policy = ThreadPolicy(batch_size=8, setting=setting, accepted=setting)
    return engine


def train(engine, *, batches: int, rate: float = 0.05) -> None:
    for number in range(batches):
        share = np.arange(8 * number, 8 * number + 8) % 100
        engine.step(share, batch_size=8, rate=rate, signals=Signals())


def run(folder, *options: str, kill: bool = False) -> dict:
    """Returns the last words of a run by two processes, or of one killed after a checkpoint."""
    command = [sys.executable, "-m", "tests.training.counted", str(folder), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    facts = {}
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            facts = json.loads(line)
            if kill and list(folder.glob("seen=*")):
                process.kill()
    return facts


@pytest.mark.parametrize(
    "workload", [Momentum(), Groups(), LineWorkload()], ids=["sgd", "groups", "adam with dropout"]
)
def test_one_worker_is_bit_equal_to_the_usual_engine(workload, folder):
    data = workload.dataset(folder, "train")
    usual = TorchEngine(workload, data, seed=1, micro_batch_size=8, tuning=Tuning())
    engine = made(workload, data)
    for each in (usual, engine):
        train(each, batches=7)
    engine.save()
    for name, weight in usual.weights().items():
        assert torch.equal(weight, engine.weights()[name])


def test_what_was_saved_goes_on_bit_equal(folder):
    workload = Momentum()
    one, other = (made(workload, workload.dataset(folder, "train")) for _ in range(2))
    train(one, batches=5)
    other.load(one.save())
    for engine in (one, other):
        train(engine, batches=2)
        engine.save()
    for name, weight in one.weights().items():
        assert torch.equal(weight, other.weights()[name])


@pytest.mark.parametrize("is_asynchronous", [True, False])
def test_parts_of_a_batch_add_up_to_it(is_asynchronous):
    """By plain SGD on a linear loss, where asynchrony changes nothing."""
    setting = replace(FOUR, is_asynchronous=is_asynchronous)
    engine = made(counted.Counted(), counted.Samples(), cores=4, setting=setting)
    engine.step(np.arange(8), batch_size=8, rate=8.0, signals=Signals())
    engine.save()
    assert engine.weights()["weight"][:, 0].tolist() == [1.0] * 8 + [0.0] * 92


def test_workers_together_take_the_updates_of_one(folder):
    workload = Momentum()
    data = workload.dataset(folder, "train")
    one, three = (
        made(workload, data),
        made(workload, data, cores=3, setting=ThreadSetting(num_workers=3, num_parts=3)),
    )
    for engine in (one, three):
        train(engine, batches=7)
        engine.save()
    for name, weight in one.weights().items():
        torch.testing.assert_close(weight, three.weights()[name], rtol=1e-4, atol=1e-6)


def test_a_window_that_does_harm_is_undone_and_its_samples_are_trained_on_again(folder):
    """Four asynchronous workers, each with a whole batch, at a rate that one worker bears."""
    workload = Momentum()
    engine = made(workload, workload.dataset(folder, "train"), cores=1)
    train(engine, batches=8 + 2 * TRIAL)
    wild = ThreadSetting(num_workers=4, num_parts=1, is_asynchronous=True)
    engine.queue.cores.at = lambda time: 4
    engine.queue.policy = replace(engine.queue.policy, setting=wild, accepted=wild, checked_late=4.0)
    before = {name: weight.clone() for name, weight in engine.weights().items()}
    train(engine, batches=2 * TRIAL, rate=0.1)
    assert engine.queue.policy.num_undone == 1
    assert engine.queue.setting != wild
    engine.save()
    assert all(weight.isfinite().all() for weight in engine.weights().values())
    assert any(not torch.equal(weight, before[name]) for name, weight in engine.weights().items())


@pytest.mark.parametrize("num_batches", [2 * TRIAL, 12 * TRIAL], ids=["saved meanwhile", "in vain"])
def test_windows_in_which_a_loss_is_expected_to_fall_again_are_undone_together(num_batches):
    """The level is one that no loss reaches, so that each asynchronous window rises above it."""
    engine = made(counted.Counted(), counted.Samples(), cores=4)
    engine.queue.policy = ThreadPolicy(
        batch_size=8, setting=FOUR, accepted=FOUR, level=(-1e9, 0.0), elapsed_s=4.0, num_windows=1
    )
    times = np.zeros(100)
    waited = False
    for number in range(num_batches):
        share = np.arange(8 * number, 8 * number + 8) % 100
        engine.step(share, batch_size=8, rate=8.0, signals=Signals())
        times[share] += 1
        waited |= engine.queue.policy.risen is not None
    engine.save()
    assert waited
    assert engine.queue.policy.num_undone >= 1
    assert engine.queue.policy.risen is None
    assert engine.weights()["weight"][:, 0].tolist() == times.tolist()


def test_a_sample_without_an_answer_is_named_whoever_met_it(folder):
    workload = Momentum(poison=13)
    engine = made(workload, workload.dataset(folder, "train"), cores=4, setting=FOUR)
    with pytest.raises(NotFinite, match=r"update 2 is not a number, on 2 samples: 12, 13"):
        train(engine, batches=TRIAL)


@pytest.mark.slow
@pytest.mark.parametrize("way", counted.TWO)
def test_a_core_that_is_taken_away_in_a_long_update_is_given_up_within_a_second(way, tmp_path):
    """The second worker would read for a minute; what it had is trained on by the first."""
    facts = run(tmp_path, f"--way={way}", "--second-reads-s=60", "--lost-after-s=0.5")
    assert facts["workers"] == 1
    assert facts["gave up in"] < 1
    assert facts["counts"] == [counted.EPOCHS] * counted.NUM_SAMPLES
    assert facts["epochs"] == [counted.NUM_SAMPLES] * counted.EPOCHS
    assert facts["left"] == []


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_checkpoint_and_counts_each_sample_once(tmp_path):
    killed = run(tmp_path, "--reads-s=0.02", "--save-every-s=0.1", kill=True)
    facts = run(tmp_path)
    assert "counts" not in killed
    assert 0 < facts["began"] < counted.NUM_SAMPLES * counted.EPOCHS
    assert facts["counts"] == [counted.EPOCHS] * counted.NUM_SAMPLES
    assert facts["epochs"] == [counted.NUM_SAMPLES] * counted.EPOCHS


@pytest.mark.slow
def test_a_night_trains_on_free_cores_to_its_end(tmp_path):
    fixed = nights.make_params(dropout=0.0)
    auto = fixed.model_copy(update={"train": fixed.train.model_copy(update={"threads": "auto"})})
    with nights.surroundings():
        nights.lay_out(tmp_path)
        training = nights.train(nights.night(), auto)
    assert (training.num_samples, training.stopped_by) == (3001, "finished")
    assert [epoch.num_samples for epoch in training.epochs] == [1000, 1000, 1000, 1]


@pytest.mark.parametrize(
    "other",
    [{"num_workers": 2}, {"sync": "every_h_updates"}, {"batch_growth": "goodput"}, {"scaling": "adascale"}],
)
def test_what_divides_batches_too_is_refused(other):
    with pytest.raises(ValueError, match="threads: auto divides batches itself"):
        TrainParams(threads="auto", **other)


def test_an_optimizer_without_a_rule_is_refused(folder):
    class Unruled(Momentum):
        def optimizer(self, parameters):
            return torch.optim.RMSprop(parameters)

    with pytest.raises(ParamsError, match=r"SGD, Adam or Adagrad, not RMSprop in 1 workers"):
        made(Unruled(), counted.Samples())
