"""Weights, gradients and moments in shares teach the model the same, in half the memory of two workers."""

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn

from daybreak.contract import records
from daybreak.contract.errors import JobError, ParamsError, PlanError
from daybreak.contract.record_parts import Tuning
from daybreak.extensions.averaging.local_sgd import LocalSgdEngine
from daybreak.extensions.fsdp import fsdp as divisions
from daybreak.extensions.fsdp.fsdp import FsdpEngine
from daybreak.training import accumulation, checkpoint
from daybreak.training.gradients import Signals
from daybreak.training.recipe import Averaging
from tests.fakes import LineWorkload, write_curve
from tests.training import divided
from tests.training.nights import ROOT
from tests.training.recipes import recipe


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    """What two workers left in a folder."""
    folder = tmp_path_factory.mktemp("divided")
    write_curve(folder, num_samples=100)
    write_job(folder, "job", tuning=divided.DIVIDED)
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tests.training.divided"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", *command, str(folder)], env=environment, check=True, cwd=ROOT)
    return folder


def write_job(folder: Path, name: str, **changed) -> None:
    (folder / name).mkdir()
    job = recipe(
        workload="tests.fakes:LineWorkload",
        arguments={"dropout": 0.0},
        arrays=str(folder),
        peak=0.01,
        averaging=Averaging(ema=0.9),
    )
    records.replace_text(folder / name / "job.json", records.dumps(replace(job, **changed)))


@pytest.mark.slow
def test_a_job_with_weights_in_shares_leaves_the_model_of_a_plain_one(shared):
    write_job(shared, "alone")
    command = [sys.executable, "-m", "daybreak.training.worker", str(shared / "alone")]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, cwd=ROOT)
    model, whole = (load_file(shared / name / "model" / "model.safetensors") for name in ("job", "alone"))
    torch.testing.assert_close(model, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", divided.CASES)
def test_weights_in_shares_learn_what_whole_ones_do(shared, kind, monkeypatch):
    """In uneven and empty shares, over a restart; and a plain worker goes on from their checkpoint."""
    monkeypatch.setattr(accumulation, "LOOK_EVERY", 1)
    monkeypatch.setattr(accumulation, "HALVE_EVERY", 1)
    alone = divided.made(shared, kind)
    losses = divided.go(alone, 0, len(divided.BATCHES))
    end, together = alone.save(), torch.load(shared / f"{kind}.pt")
    resumed = divided.made(shared, kind)
    path = checkpoint.newest(shared / kind, identity="divided")
    assert path
    resumed.load(checkpoint.load(path))
    divided.go(resumed, divided.SAVED, len(divided.BATCHES))
    for other in (together, resumed.save().tensors):
        for part in ("model", "optimizer"):
            assert other[part].keys() == end.tensors[part].keys()
            for name, tensor in end.tensors[part].items():
                torch.testing.assert_close(other[part][name], tensor, rtol=1e-5, atol=1e-5)
    assert [loss for loss, _ in together["told"]] == pytest.approx([loss for loss, _ in losses], rel=1e-5)
    # An update of one sample cannot be halved; the second has a share of one sample, which cannot either.
    assert [noise is None for _, noise in together["told"]] == [False, True, True, False, False]


@pytest.mark.slow
def test_two_workers_hold_half_of_the_weights_and_moments_each(shared):
    whole = divided.made(shared, "adamw")
    divided.go(whole, 0, 1)
    weights, moments = divided.held(whole)
    for own in torch.load(shared / "adamw.pt")["held"]:
        assert own == (pytest.approx(weights / 2, rel=0.05), pytest.approx(moments / 2, rel=0.05))


class Short(LineWorkload):
    """Memory suffices for passes of so many samples."""

    most = 4

    def loss(self, model, batch):
        if len(batch["x"]) > self.most:
            raise MemoryError
        return super().loss(model, batch)


@pytest.fixture
def alone():
    """A world of one worker, who waits for nobody in the middle of a pass."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.slow
def test_who_runs_out_of_memory_ends_and_begins_again_with_passes_of_half_the_size(folder, alone):
    """In the middle of a pass others wait, so it cannot be taken again at once."""
    remembered, batch = [32], np.arange(32)
    losses: list[torch.Tensor] = []
    while not losses:
        engine = FsdpEngine(
            Short(),
            Short().dataset(folder, "train"),
            seed=1,
            micro_batch_size=remembered[-1],
            tuning=divided.DIVIDED,
            on_shrink=remembered.append,
        )
        engine.prepare(batch)
        with suppress(MemoryError):
            losses = engine.accumulation.add_up(batch, batch_size=32, update=0).losses
        engine._loader.close()
    assert (remembered, len(losses)) == ([32, 16, 8, 4], 8)
    assert all(weight.grad is not None for weight in engine.model["net"].parameters())


def test_a_sample_that_does_not_fit_is_told_and_not_tried_for_ever(folder, alone, monkeypatch):
    monkeypatch.setattr(Short, "most", 0)
    engine = FsdpEngine(
        Short(), Short().dataset(folder, "train"), seed=1, micro_batch_size=1, tuning=divided.DIVIDED
    )
    engine.prepare(np.arange(2))
    with pytest.raises(JobError, match="for a step on one sample, with weights divided among 1 workers"):
        engine.step(np.arange(2), batch_size=2, rate=0.01, signals=Signals())
    engine._loader.close()


def test_models_that_cannot_be_divided_are_refused():
    def loss(batch: torch.Tensor) -> torch.Tensor:
        return batch

    for model, said in (
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "LayerNorm or GroupNorm"),
        (nn.Embedding(4, 2, sparse=True), "make them dense"),
    ):
        with pytest.raises(PlanError, match=said):
            divisions.shard(model, loss, device=torch.device("cpu"))


def test_workers_who_train_by_themselves_cannot_divide_weights(folder):
    workload = LineWorkload()
    with pytest.raises(ParamsError, match=r"set train\.sync to every_update"):
        LocalSgdEngine(
            workload,
            workload.dataset(folder, "train"),
            seed=1,
            micro_batch_size=8,
            tuning=Tuning(sharded_weights=True),
            sync_every=4,
        )


def test_weights_that_are_used_twice_are_gathered_with_the_whole():
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3), nn.Linear(3, 3, bias=False))
    tied[2].weight = tied[0].weight
    assert list(divisions._units(tied)) == [tied[1]]
