"""A workload for tests: which digit is it? The 1,797 scans that come with scikit-learn, by SGD."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from daybreak.contract.workload import Split

HELD_OUT = 0.3


class Digits:
    """A small convolutional net; the score is 1 where the digit is found."""

    def dataset(self, folder: Path, split: Split) -> TensorDataset:
        from sklearn.datasets import load_digits

        digits = load_digits()
        mixed = np.random.default_rng(0).permutation(len(digits.target))
        cut = round(HELD_OUT * len(mixed))
        wanted = mixed[cut:] if split == "train" else mixed[:cut]
        images = torch.tensor(digits.images[wanted] / 16).float()[:, None]
        return TensorDataset(images, torch.tensor(digits.target[wanted]))

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(256, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, digit = batch
        return nn.functional.cross_entropy(model(images), digit, reduction="none")

    def score(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, digit = batch
        return (model(images).argmax(1) == digit).float()
