"""A run of the trainer that can be stopped after an update, and goes on from its newest checkpoint."""

import math
from pathlib import Path
from typing import Any

from torch import Tensor

from daybreak.contract.record_parts import Tuning
from daybreak.training import checkpoint
from daybreak.training.engine import TorchEngine
from daybreak.training.recipe import Averaging, Clipping, Recipe
from daybreak.training.sampling import Sampling
from daybreak.training.trainer import Trainer
from daybreak.training.weight_average import WeightAverage
from tests.fakes import AtOnce


class StoppableRun:
    """A run as a worker makes it, with clipped gradients and an average of weights where asked."""

    def __init__(
        self,
        folder: Path,
        workload: Any,
        made: Recipe,
        *,
        epoch_samples: int,
        micro_batch_size: int,
        tuning: Tuning | None = None,
        clipping: Clipping | None = None,
        averaging: Averaging | None = None,
    ) -> None:
        self.stop_after = math.inf
        dataset = workload.dataset(folder, "train")
        self.engine = TorchEngine(
            workload,
            dataset,
            seed=7,
            micro_batch_size=micro_batch_size,
            tuning=tuning or Tuning(),
            clipping=clipping,
        )
        self.average = WeightAverage(self.engine, averaging, base_size=made.batch_size) if averaging else None
        self.trainer = Trainer(
            self.engine,
            made,
            folder=folder / "checkpoints",
            epoch_samples=epoch_samples,
            sampling=Sampling.of(dataset),
            told_to_stop=lambda: self.trainer.num_updates + 1 >= self.stop_after,
            report=lambda progress: None,
            executor=AtOnce(),
            average=self.average,
        )
        if path := checkpoint.newest(folder / "checkpoints", identity=made.identity):
            self.trainer.resume(path)

    def until(self, update: float = math.inf) -> dict[str, Tensor]:
        self.stop_after = update
        self.trainer.run()
        return {name: each.clone() for name, each in (self.average or self.engine).weights().items()}
