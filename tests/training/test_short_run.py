"""The runs of trials take the batches of a night, and end where its training would."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from daybreak.contract.errors import NotFinite
from daybreak.contract.sections import TrainParams
from daybreak.contract.workload import ARRAYS, Batch, State
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
