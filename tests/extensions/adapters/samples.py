"""Samples of a table of deliveries, and runs on them that can be stopped."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from daybreak.contract.record_parts import Tuning
from daybreak.contract.workload import own_schedule
from daybreak.training import checkpoint
from daybreak.training.engine import TorchEngine
from daybreak.training.recipe import Clipping
from daybreak.training.trainer import Trainer
from daybreak.training.worker_keys import clipping_of
from tests.fakes import AtOnce
from tests.training.recipes import recipe

NUM_SAMPLES, SIZE, NUM_EPOCHS, SEED, RATE = 32, 8, 3, 7, 0.05
NUM_UPDATES = NUM_EPOCHS * NUM_SAMPLES // SIZE


class Deliveries:
    """Deliveries of which some are late."""

    def __init__(self) -> None:
        drawn = np.random.default_rng(0)
        self.numbers = torch.tensor(drawn.normal(size=(NUM_SAMPLES, 3)), dtype=torch.float32)
        self.input_ids = torch.tensor(drawn.integers(1, 20, (NUM_SAMPLES, 6)), dtype=torch.int16)
        self.attention_mask = torch.ones_like(self.input_ids)
        self.late = (self.numbers[:, 0] > 0).long()

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitems__(self, samples: Any) -> dict[str, Tensor]:
        rows = torch.tensor(np.asarray(samples))
        return {name: values[rows] for name, values in vars(self).items()}


def trained(make: Callable[[], Any], folder: Path, *, stops: tuple[float, ...] = ()) -> dict[str, Tensor]:
    """Returns the weights of a run in passes of three samples, by the class's own schedule and clipping."""
    for until in (*stops, math.inf):
        weights = until_update(until, make(), folder)
    return weights


def until_update(until: float, workload: Any, folder: Path) -> dict[str, Tensor]:
    """Returns the weights after a run from its newest checkpoint to an update, or to its end."""
    made = recipe(
        num_samples=NUM_EPOCHS * NUM_SAMPLES, batch_size=SIZE, peak=RATE, warmup=0.0, schedule="own"
    )
    clipping = clipping_of(workload, Clipping(), threads="fixed")
    engine = TorchEngine(
        workload,
        Deliveries(),  # type: ignore[arg-type]
        seed=SEED,
        micro_batch_size=3,
        tuning=Tuning(),
        clipping=clipping if clipping != Clipping() else None,
    )
    trainer = Trainer(
        engine,
        made,
        folder=folder,
        epoch_samples=NUM_SAMPLES,
        told_to_stop=lambda: trainer.num_updates + 1 >= until,
        report=lambda progress: None,
        executor=AtOnce(),
        schedule=own_schedule(
            workload, model=engine.model, num_updates=NUM_UPDATES, num_epochs=float(NUM_EPOCHS)
        ),
    )
    if path := checkpoint.newest(folder, identity=made.identity):
        trainer.resume(path)
    trainer.run()
    return {name: weight.detach().clone() for name, weight in engine.weights().items()}
