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
from daybreak.contract.workload import ARRAYS, Batch, Split, State
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
