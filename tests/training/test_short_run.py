"""The runs of trials take the batches of a night, and end where its training would."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from daybreak.contract.errors import NotFinite
from daybreak.contract.sections import TrainParams
from daybreak.contract.workload import ARRAYS, Batch, Split, State, TrainingProgress
from daybreak.training.short_run import ShortRun
from tests.extensions.search.line import Line


class Normed(Line):
    """Normalizes over a batch, which takes two samples."""

    def model(self, state: State) -> nn.Module:
        return nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


class Diverging(Line):
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return super().loss(model, batch) * math.nan


def run_of(workload: Line, num: int) -> ShortRun:
    torch.manual_seed(0)
    train = TrainParams(batch_size=12, epochs=1, rate=0.01)
    return ShortRun(workload, workload.dataset(ARRAYS, "train"), train, samples=np.arange(num))


def test_a_lone_last_sample_goes_with_the_batch_before_as_in_a_night() -> None:
    run = run_of(Normed(), 25)
    assert list(run.updates()) == [12, 25]


def test_a_setting_that_diverges_ends_rather_than_be_judged_by_what_it_learned_before() -> None:
    with pytest.raises(NotFinite, match=r"of a trial is nan; lower train\.rate"):
        list(run_of(Diverging(), 24).updates())


class InPairs(Line):
    """Samples in twos and threes, whose loss refuses a batch with a part of a group."""

    whole_batch = True

    def dataset(self, folder: Path, split: Split) -> "Dataset[Any]":
        made: Any = super().dataset(folder, split)
        number = len(made)
        groups = np.repeat(np.arange(number), np.arange(number) % 2 + 2)[:number]
        made.groups = np.random.default_rng(0).permutation(groups)
        made.tensors = (*made.tensors, torch.from_numpy(made.groups))
        self.sizes = np.bincount(made.groups)
        self.trained: list[int] = []
        return made

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y, group = batch
        numbers, sizes = np.unique(group.numpy(), return_counts=True)
        assert (sizes == self.sizes[numbers]).all()
        self.trained += numbers.tolist()
        return super().loss(model, (x, y))


def test_groups_are_whole_in_each_batch_of_a_run_as_in_a_night() -> None:
    workload = InPairs()
    data = workload.dataset(ARRAYS, "train")
    workload.dataset = lambda *_: data  # type: ignore[method-assign]
    run = run_of(workload, len(data))
    ends = list(run.updates())
    assert ends[-1] == run.num_samples == len(data)
    assert len(ends) > 2
    assert sorted(workload.trained) == sorted(set(data.groups))  # each once


class Thawed(Line):
    """Learns a slope from the middle of the run on, and says how long the run is."""

    def __init__(self, clip_norm: float = 0.0) -> None:
        super().__init__()
        self.clip_norm, self.run = clip_norm, {}
        self.progress: list[TrainingProgress] = []

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters)

    def know_run(self, **run: float) -> None:
        self.run = run

    def trainable(self, model: nn.Module, progress: TrainingProgress) -> None:
        self.progress.append(progress)
        model.weight.requires_grad_(progress.done >= 0.5)


def test_a_class_is_told_of_the_run_as_in_a_night() -> None:
    workload = Thawed()
    run = ShortRun(
        workload,
        workload.dataset(ARRAYS, "train"),
        TrainParams(batch_size=12, epochs=2, rate=0.01),
        samples=np.arange(24),
    )
    slope = run.engine.model.weight.detach().clone()
    moved = [not torch.equal(run.engine.model.weight, slope) for _ in run.updates()]
    assert moved == [False, False, True, True]
    assert workload.run == {"num_updates": 4, "num_epochs": 2}
    assert [(each.done, each.epoch, each.seen) for each in workload.progress] == [
        (0.0, 0, 0),
        (0.25, 0, 12),
        (0.5, 1, 24),
        (0.75, 1, 36),
    ]


@pytest.mark.parametrize("by", ["the class", "params.yaml"])
def test_a_gradient_is_clipped_as_in_a_night(by: str) -> None:
    workload = Thawed(clip_norm=1e-9 if by == "the class" else 0.0)
    train = TrainParams(batch_size=12, epochs=2, rate=0.01, clip_norm=1e-9 if by == "params.yaml" else None)
    run = ShortRun(workload, workload.dataset(ARRAYS, "train"), train, samples=np.arange(24))
    before = [each.detach().clone() for each in run.engine.model.parameters()]
    list(run.updates())
    moved = [(each - was).norm() for each, was in zip(run.engine.model.parameters(), before, strict=True)]
    assert sum(moved) < 1e-6
