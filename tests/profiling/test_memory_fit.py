"""Remedies are tried in order under a limit that the kernel enforces, no further than needed.

The processes that measure are forked from one that has loaded torch, as loading is most of what they do. So
each begins with what that one has, and its limit is exact.
"""

import resource
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from daybreak.contract.errors import PlanError
from daybreak.contract.record_parts import Tuning
from daybreak.contract.sections import ProfileParams, TrainParams
from daybreak.machines import this_machine
from daybreak.profiling import memory, memory_fit
from daybreak.profiling.harness import Harness

MIB = 1 << 20


class Deep:
    """A deep network of `num_layers` products, each of `width` by `width`."""

    def __init__(self, *, width: int, num_layers: int):
        self.width, self.num_layers = width, num_layers

    def dataset(self, folder: Path, split: str) -> Tensor:
        return torch.ones(1 << 16)

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(1, self.width),
            *(nn.Linear(self.width, self.width, bias=False) for _ in range(self.num_layers)),
            nn.Linear(self.width, 1),
        )

    def optimizer(self, parameters):
        return torch.optim.Adam(parameters, foreach=False)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch[:, None])[:, 0] - batch) ** 2

    def score(self, model: nn.Module, batch: Tensor) -> Tensor:
        return -self.loss(model, batch)


def of_activations() -> dict[str, Any]:
    """Passes of 32 Ki samples keep 8 MiB for each of 40 layers, unless they are computed again."""
    job, params = Deep(width=64, num_layers=40), ProfileParams(batch_sizes=(1 << 15, 1 << 16))
    with memory_fit.fitting(job, Path(), params, TrainParams(batch_size=1 << 15)) as climbed:
        footing = climbed()
    return {"tuning": footing.tuning, "notes": footing.notes, "bytes": footing.peaks.step_bytes[0]}


def of_moments() -> dict[str, Any]:
    """100 MiB of weights need as much for gradients, and twice that for the moments of Adam."""
    job, params = Deep(width=1024, num_layers=25), ProfileParams(batch_sizes=(1, 2))
    with memory_fit.fitting(job, Path(), params, TrainParams(batch_size=2, num_workers=8)) as climbed:
        footing = climbed()
    return {"tuning": footing.tuning, "notes": footing.notes}


def of_weights() -> dict[str, Any]:
    """The same, where not even weights and gradients fit; and what a profile tells of steps like these."""
    job, params = Deep(width=1024, num_layers=25), ProfileParams(batch_sizes=(1, 2))
    with memory_fit.fitting(job, Path(), params, TrainParams(batch_size=2, num_workers=8)) as climbed:
        footing = climbed()
    harness = Harness(Deep(width=64, num_layers=25), Path(), seed=0)
    harness.build(footing.tuning, num_workers=8)
    operators = harness.operators([harness.load(2)], 2)
    harness.noise(1)
    return {
        "tuning": footing.tuning,
        "notes": footing.notes,
        "flops": sum(operator.flops for operator in operators),
        "held": sum(weight.to_local().numel() for weight in harness.model.parameters()),
    }


def of_one_worker() -> dict[str, Any]:
    """The same, with none to share the moments with."""
    job, params = Deep(width=1024, num_layers=25), ProfileParams(batch_sizes=(1, 2))
    try:
        with memory_fit.fitting(job, Path(), params, TrainParams(batch_size=2)) as climbed:
            return {"told": str(climbed())}
    except PlanError as error:
        return {"told": str(error)}


def limited(work: Callable[[], dict[str, Any]], *, room_bytes: int) -> dict[str, Any]:
    """Returns the result of `work` in a process that may take `room_bytes` more memory."""
    spawn = get_context("spawn")
    here, there = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_limited, args=(there, work, room_bytes))
    process.start()
    there.close()
    result: dict[str, Any] = here.recv()
    process.join()
    return result


def _limited(to: Connection, work: Callable[[], dict[str, Any]], room_bytes: int) -> None:
    import torch._dynamo  # which torch loads with the first optimizer: 80 MiB that are not the job's

    torch.set_num_threads(1)
    memory.get_context = lambda method: get_context("fork")
    limit = this_machine.status()["VmData"] + room_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    to.send(work())


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(MIB))  # what is freed goes back, to the byte


# The limits lie far from both sides: which pages of torch's own code count differs by some 40 MiB between
# makes of processor.


@pytest.mark.slow
def test_activations_that_do_not_fit_are_computed_again():
    room = 300 * MIB
    result = limited(of_activations, room_bytes=room)
    assert result["tuning"] == Tuning(recompute=True)
    assert result["bytes"] < 0.9 * room < 40 * 8 * MIB
    assert "MiB" in result["notes"]["activation checkpointing"]


@pytest.mark.slow
def test_moments_that_do_not_fit_are_shared_by_workers():
    result = limited(of_moments, room_bytes=3000 * MIB)  # 8 workers: 3.2 GiB without, 1.8 with
    assert result["tuning"] == Tuning(recompute=True, sharded=True)
    assert "less than without" in result["notes"]["sharded optimizer"]


@pytest.mark.slow
def test_weights_that_do_not_fit_are_shared_by_workers():
    result = limited(of_weights, room_bytes=1400 * MIB)  # 8 workers: 1.8 GiB with shared moments alone
    assert result["tuning"] == Tuning(recompute=True, sharded=True, sharded_weights=True)
    assert "less than without" in result["notes"]["sharded weights"]
    weights = 25 << 12
    assert result["held"] == pytest.approx(weights / 8, rel=0.02)
    assert 3 < result["flops"] / (2 * 2 * weights) < 4  # of forward passes: a part of one is done again


@pytest.mark.slow
def test_what_fits_by_no_remedy_is_told_in_one_sentence():
    result = limited(of_one_worker, room_bytes=250 * MIB)
    assert result["told"].startswith("a step of 1 samples does not fit the memory, of which")


class Deeper:
    """Convolutions behind a BatchNorm, so that their activations are not computed again."""

    def dataset(self, folder: Path, split: str) -> Tensor:
        return torch.zeros(512, 4, 32, 32)

    def model(self) -> nn.Module:
        layers = [(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()) for _ in range(90)]
        return nn.Sequential(nn.BatchNorm2d(4), *(part for layer in layers for part in layer))

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.1, foreach=False)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean(dim=(1, 2, 3))

    def score(self, model: nn.Module, batch: Tensor) -> Tensor:
        return -self.loss(model, batch)


def of_convolutions() -> dict[str, Any]:
    """Passes of 256 samples keep a map of 4 MiB for each of 90 layers, or 2.3 MiB of its spectrum."""
    params = ProfileParams(batch_sizes=(256, 512))
    try:
        with memory_fit.fitting(Deeper(), Path(), params, TrainParams(batch_size=256)) as climbed:
            return {"told": str(climbed())}
    except PlanError as error:
        return {"told": str(error)}


@pytest.mark.slow
def test_convolutions_that_do_not_fit_are_offered_band_limited():
    message = limited(of_convolutions, room_bytes=365 * MIB)["told"]
    assert message.startswith("a step of 256 samples does not fit the memory, of which")
    assert (
        "; or accept band-limited convolutions by train.band_rate: 0.5, with which a step of 256" in message
    )
