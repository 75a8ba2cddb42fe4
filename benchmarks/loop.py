"""The base class of the loops of bench_loops.py: samples drawn in memory, and 100 updates.

A loop is a class for Daybreak, and says beside that which keys of `train` it is trained with, and by which
scheduler of torch a plain loop would change its rate.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from daybreak.contract.record_parts import Tuning

NUM_SAMPLES, BATCH, EPOCHS = 256, 16, 6.25
READ_S = 0.002  # a batch, so that there is something to interrupt
Batch = dict[str, Tensor]
Keys = dict[str, Any]


class Samples:
    """Data set of columns of tensors."""

    def __init__(self, **columns: NDArray[Any] | Tensor) -> None:
        self.columns = {name: torch.as_tensor(column) for name, column in columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitems__(self, samples: Any) -> Batch:
        time.sleep(READ_S)
        rows = torch.as_tensor(np.asarray(samples))
        return {name: of_default_type(column[rows]) for name, column in self.columns.items()}


def of_default_type(column: Tensor) -> Tensor:
    """Returns numbers that are not whole in torch's default type."""
    return column.to(torch.get_default_dtype()) if column.is_floating_point() else column


class Loop:
    """Workload over samples of its own.

    Attributes:
        train: keys of params.yaml, beside `rate`.
        factor: factor of the rate by the share of the samples that is done in the middle of an update.
        workers: whether two workers take the updates of one, take the same samples but other numbers by
            chance (or other statistics of BatchNorm), or are refused.
        pass_size: samples a pass.
        tuning: how a step is taken.
    """

    rate: ClassVar[float] = 0.01
    train: ClassVar[Keys] = {}
    factor: ClassVar[Callable[[float], float] | None] = None
    workers: ClassVar[Literal["alike", "draw", "refused"]] = "alike"
    pass_size: ClassVar[int] = BATCH
    tuning: ClassVar[Tuning] = Tuning(num_loaders=1)

    def samples(self, draw: np.random.Generator) -> Any:
        """Returns the data set."""
        raise NotImplementedError

    def __init__(self, *, is_double: bool = False) -> None:
        if is_double:
            torch.set_default_dtype(torch.float64)  # of the process, which does nothing else

    def dataset(self, folder: Path, split: str) -> Any:
        """Returns the same samples each time."""
        return self.samples(np.random.default_rng(0))

    def optimizer(self, model: nn.Module) -> Any:
        """Returns AdamW, as most loops have it."""
        return torch.optim.AdamW(model.parameters(), lr=self.rate)

    def loss(self, model: Any, batch: Any) -> Any:
        """Returns the loss of each sample."""
        raise NotImplementedError

    def score(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns minus the loss."""
        return -self.loss(model, batch)

    def scheduler(self, optimizer: Optimizer, *, done: Sequence[float]) -> LRScheduler | None:
        """Returns the scheduler of a plain loop, which steps after each update.

        `done` is the share of the samples that is done in the middle of each update.
        """
        factor = self.factor
        return LambdaLR(optimizer, lambda n: factor(done[min(n, len(done) - 1)])) if factor else None


def warm(warmup: float, after: Callable[[float], float] = lambda done: 1.0) -> Any:
    """Returns a factor that rises over a share of the run, and follows `after` by the share of the rest."""
    return staticmethod(lambda done: min(done / warmup, after(max(0.0, (done - warmup) / (1 - warmup))), 1.0))


def cosine(done: float) -> float:
    """Returns the factor that falls from 1 to 0 along a half of a cosine."""
    return (1 + math.cos(math.pi * done)) / 2


def linear(done: float) -> float:
    """Returns the factor that falls from 1 to 0 along a line."""
    return 1 - done


def decayed(model: nn.Module, *, rate: float, decay: float) -> list[dict[str, Any]]:
    """Returns groups of an optimizer: matrices, which decay, and biases and norms, which do not."""
    weights = [each for each in model.parameters() if each.requires_grad]
    return [
        {"params": [each for each in weights if each.ndim > 1], "lr": rate, "weight_decay": decay},
        {"params": [each for each in weights if each.ndim < 2], "lr": rate, "weight_decay": 0.0},
    ]
