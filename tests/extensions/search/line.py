"""A workload that learns a line, fast with a rate of 0.05 and next to nothing with one of 0.000001."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from daybreak.contract.workload import Batch, Split, State

NUM = 400


class Line:
    """Numbers x and 3 x + 1; the argument `wide` changes nothing."""

    def __init__(self, *, wide: bool = False) -> None:
        self.wide = wide

    def dataset(self, folder: Path, split: Split) -> "Dataset[Any]":
        x = torch.linspace(-1, 1, NUM)[torch.randperm(NUM, generator=torch.Generator().manual_seed(0))]
        return TensorDataset(x, 3 * x + 1)

    def model(self, state: State) -> nn.Module:
        return nn.Linear(1, 1)

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        return (model(x[:, None])[:, 0] - y).square()

    def score(self, model: nn.Module, batch: Batch) -> Tensor:
        return -self.loss(model, batch)


class Flat(Line):
    """With the argument `wide`, all samples are 0."""

    def dataset(self, folder: Path, split: Split) -> "Dataset[Any]":
        x, y = super().dataset(folder, split).tensors  # type: ignore[attr-defined]
        return TensorDataset(x * (not self.wide), y * (not self.wide))


class Broken(Line):
    def model(self, state: State) -> nn.Module:
        raise AssertionError("nothing is trained")


class Deaf(Line):
    """Learns nothing, and offers a workload that does."""

    def variants(self) -> dict[str, Line]:
        return {"simpler model": Line()}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return 0 * super().loss(model, batch)

    def score(self, model: nn.Module, batch: Batch) -> Tensor:
        return -super().loss(model, batch)
