"""Predicts how much a customer spends today. It is the smallest workload: copy it and put your model in.

In params.yaml: `workload: {use: daybreak.examples.shop.regression:Regression, hidden: 32}`.
"""

from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from daybreak import Split
from daybreak.examples.shop.item_tables import Lines
from daybreak.examples.shop.sold_lines import SoldLines

Batch = tuple[Tensor, Tensor]


class Regression(SoldLines):
    """Predicts the log of a basket's value from the same customer's earlier baskets."""

    def __init__(self, *, hidden: int = 32, leave_out_items: Collection[str] = ()) -> None:
        super().__init__(leave_out_items=leave_out_items)
        self.hidden = hidden

    def dataset(self, folder: Path, split: Split) -> TensorDataset:
        """Returns features [n, 4] (visits, days since the last, mean and last log value) and target [n]."""
        lines = Lines(folder)
        order = lines.by_customer
        visit, of = np.unique(
            np.stack([lines.customer[order], lines.day[order]]), axis=1, return_inverse=True
        )
        value = np.log1p(np.bincount(of.ravel(), weights=lines.quantity[order] * lines.price[order]))
        customer, day = visit
        first = np.searchsorted(customer, customer)  # number of the customer's first visit
        visits = np.arange(len(value)) - first
        total = np.cumsum(value) - value
        old = visits > 0
        last_value = np.where(old, np.roll(value, 1), 0)
        gap = np.where(old, day - np.roll(day, 1), 0)
        mean = np.where(old, (total - total[first]) / np.maximum(visits, 1), 0)
        features = np.stack([np.log1p(visits), np.log1p(gap), mean, last_value], axis=1)
        wanted = day <= lines.last_day if split == "train" else np.isin(day, lines.test_days)
        return TensorDataset(torch.tensor(features[wanted]).float(), torch.tensor(value[wanted]).float())

    def model(self) -> nn.Module:
        """Returns a small MLP."""
        return nn.Sequential(nn.Linear(4, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 1))

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Returns Adam."""
        return torch.optim.Adam(parameters)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns the squared error of the log, [b]."""
        features, target = batch
        error: Tensor = model(features)[:, 0] - target
        return error.square()

    def score(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns minus the absolute error of the log, [b]: higher is better."""
        return -self.loss(model, batch).sqrt()
