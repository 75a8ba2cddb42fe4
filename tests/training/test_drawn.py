"""Samples that are drawn at random: a run that is ended and goes on ends as one without a break does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from daybreak.contract.record_parts import Tuning
from daybreak.training import checkpoint
from daybreak.training.engine import TorchEngine
from daybreak.training.trainer import Trainer
from tests.training.recipes import recipe

NUM_SAMPLES, EPOCHS = 20, 5


class Noisy:
    """Samples with noise of two generators, one by one."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, sample: int) -> Tensor:
        return torch.randn(4) * sample / NUM_SAMPLES + np.random.rand()


class Guess:
    """A small network with dropout, which draws as well."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.01)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch)[:, 0] - 1).square()


def train(folder: Path, *, stops: list[int], **tuning: object) -> dict[str, Tensor]:
    """Train, ended after so many updates each time, and return the weights at the end."""
    made = recipe(num_samples=NUM_SAMPLES * EPOCHS, batch_size=8, peak=0.01)
    for stop in [*stops, 1000]:
        engine = TorchEngine(Guess(), Noisy(), seed=1, micro_batch_size=3, tuning=Tuning(**tuning))
        begun: list[int] = []
        trainer = Trainer(
            engine,
            made,
            folder=folder,
            epoch_samples=NUM_SAMPLES,
            told_to_stop=lambda stop=stop, begun=begun: begun.append(1) or len(begun) >= stop,
            report=lambda progress: None,
        )
        newest = checkpoint.newest(folder, identity=made.identity)
        if newest:
            trainer.resume(newest)
        outcome = trainer.run()
        weights = {name: value.clone() for name, value in engine.weights().items()}
        engine.close()
    assert outcome.stopped_by == "finished"
    return weights


@pytest.mark.slow
@pytest.mark.parametrize(
    "tuning", [{}, {"num_loaders": 2, "loader_processes": True}], ids=["here", "processes"]
)
def test_a_run_with_breaks_ends_bit_equal_to_one_without(tmp_path: Path, tuning: dict[str, object]) -> None:
    whole = train(tmp_path / "whole", stops=[])
    broken = train(tmp_path / "broken", stops=[2, 4, 1], **tuning)
    assert all(torch.equal(whole[name], broken[name]) for name in whole)
