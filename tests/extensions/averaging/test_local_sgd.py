"""Workers that agree now and then: nothing of what all of them learned is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from daybreak.contract.errors import ParamsError
from daybreak.contract.record_parts import Tuning
from daybreak.contract.sections import TrainParams
from daybreak.extensions.averaging.local_sgd import LocalSgdEngine
from daybreak.training.gradients import Signals
from tests.fakes import LineWorkload, write_curve
from tests.training import apart
from tests.training.nights import ROOT

EVERY = 3


class Plain(LineWorkload):
    """By SGD, without chance."""

    def __init__(self):
        super().__init__(dropout=0.0)

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=1.0)


def made(folder, **options) -> LocalSgdEngine:
    workload = Plain()
    data = workload.dataset(folder, "train")
    return LocalSgdEngine(workload, data, seed=1, micro_batch_size=8, tuning=Tuning(), **options)


def step(engine: LocalSgdEngine, number: int) -> None:
    share = np.arange(8 * number, 8 * number + 8)
    engine.step(share, batch_size=8, rate=0.1, signals=Signals())


def test_a_worker_alone_takes_the_way_of_its_updates_as_the_gradient_of_an_outer_sgd(folder):
    """Against torch's own SGD with Nesterov momentum, over three agreements."""
    engine, inner = made(folder, sync_every=EVERY), made(folder, sync_every=1000)
    outer = [weight.detach().clone().requires_grad_() for weight in inner.model.parameters()]
    sgd = torch.optim.SGD(outer, lr=0.7, momentum=0.9, nesterov=True)
    for number in range(3 * EVERY):
        step(engine, number)
        step(inner, number)
        if (number + 1) % EVERY == 0:
            for weight, parameter in zip(outer, inner.model.parameters(), strict=True):
                weight.grad = weight.detach() - parameter.detach()
            sgd.step()
            for weight, parameter in zip(outer, inner.model.parameters(), strict=True):
                parameter.data.copy_(weight.detach())
    for weight, parameter in zip(outer, engine.model.parameters(), strict=True):
        torch.testing.assert_close(weight.detach(), parameter.detach(), rtol=1e-5, atol=1e-6)


def test_signals_are_told_when_workers_agree(folder):
    engine = made(folder, sync_every=2)
    signals = Signals(stop=1, end_in=7)
    heard = [engine.step(np.arange(8), batch_size=8, rate=0.1, signals=signals).signals for _ in range(4)]
    assert heard == [Signals(), signals, Signals(), signals]


def test_to_save_is_to_agree_and_what_was_saved_goes_on_bit_equal(folder):
    one, other = made(folder, sync_every=EVERY), made(folder, sync_every=EVERY)
    for number in range(EVERY):
        step(one, number)
    state = one.save()
    assert set(state.tensors["outer"]) == {name for name, _ in one.model.named_parameters()}
    other.load(state)
    for engine in (one, other):
        for number in range(EVERY, 3 * EVERY):
            step(engine, number)
    for name, weight in one.model.state_dict().items():
        assert torch.equal(weight, other.model.state_dict()[name])


def test_an_empty_share_changes_no_weight_and_makes_the_moments(folder):
    workload = LineWorkload(dropout=0.0)
    engine = LocalSgdEngine(
        workload, workload.dataset(folder, "train"), seed=1, micro_batch_size=8, tuning=Tuning(), sync_every=5
    )
    before = {name: weight.clone() for name, weight in engine.model.state_dict().items()}
    engine.step(np.arange(0), batch_size=1, rate=0.1, signals=Signals())
    assert all(torch.equal(weight, before[name]) for name, weight in engine.model.state_dict().items())
    assert len(engine.optimizer.state) == len(list(engine.model.parameters()))


@pytest.fixture(scope="module")
def left_by_two(tmp_path_factory) -> Path:
    """What two workers left, in a folder for each mode."""
    folder = tmp_path_factory.mktemp("apart")
    for mode in apart.MODES:
        write_curve(folder / mode, num_samples=apart.NUM_SAMPLES)
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tests.training.apart"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for modes in (apart.MODES[:2], apart.MODES[2:]):
        words = [*command, str(folder), *modes]
        subprocess.run([sys.executable, "-m", *words], env=environment, check=True, cwd=ROOT)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("mode", apart.MODES)
def test_two_workers_resume_bit_equal_resize_and_lose_no_sample(left_by_two, mode):
    folder = left_by_two / mode
    stopped, resized = {"barrier": ((8, 24), 12), "late": ((12, 28), 16), "refused": ((41, 50), 12)}[mode]
    for rank in (0, 1):
        seen = json.loads((folder / f"worker-{rank}.json").read_text())
        # When they next agree; without a barrier they know of it one interval later.
        assert seen["stopped"] == [8 * each for each in stopped]
        assert seen["bit-equal"]
        assert seen["workers agree"]
        assert seen["resized at"] == resized * 8
        assert seen["sync"] == [1 if mode == "refused" else apart.EVERY] * 2
        assert (seen["moments"] > 0) == (mode == "barrier")
    assert json.loads((folder / "worker-0.json").read_text())["epochs"] == [100] * 5
    alone = apart.train(folder, name="resized", mode=mode)
    assert alone.seen == 500
    assert [(epoch.num_samples, epoch.whole) for epoch in alone.audit.proven()] == [(100, True)] * 5


@pytest.mark.parametrize("other", [{"batch_growth": "goodput"}, {"scaling": "adascale"}])
def test_what_needs_all_workers_together_is_refused(other):
    with pytest.raises(ValueError, match="every_h_updates leaves workers apart, and"):
        TrainParams(sync="every_h_updates", **other)


def test_an_optimizer_in_shares_is_refused(folder):
    workload = Plain()
    with pytest.raises(ParamsError, match=r"not suffice for that; set train\.sync to every_update"):
        LocalSgdEngine(
            workload,
            workload.dataset(folder, "train"),
            seed=1,
            micro_batch_size=8,
            tuning=Tuning(sharded=True),
            sync_every=4,
        )
