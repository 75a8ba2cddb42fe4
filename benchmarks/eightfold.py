"""Runs of a workload at different batches, ways to scale the rate and to agree, and what they came to."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from daybreak.contract.record_parts import Sync, Tuning
from daybreak.training.engine import TorchEngine
from daybreak.training.loader import Loader
from daybreak.training.trainer import Trainer
from tests.training.recipes import recipe


@dataclass(frozen=True)
class Trial:
    """What is trained, and how: the batch that the rate is for."""

    workload: Any
    folder: Path
    batch_size: int
    rate: float
    epochs: float


@dataclass(frozen=True)
class Outcome:
    """Held-out scores, one a sample, and what it took."""

    scores: Tensor
    num_updates: int
    seconds: float
    noise_scale: float  # of gradients, by however many looks
    sync: Sync  # when workers agreed at last


def train(
    trial: Trial,
    *,
    times: int = 1,
    scaling: str = "by_optimizer",
    seed: int = 0,
    engine: Callable[..., TorchEngine] = TorchEngine,
    **changed: Any,
) -> Outcome:
    """Train at `times` the batch, on the same samples."""
    workload, folder, size = trial.workload, trial.folder, trial.batch_size
    data = workload.dataset(folder, "train")
    made = engine(workload, data, seed=seed, micro_batch_size=max(size, 64), tuning=Tuning())
    job = recipe(
        num_samples=round(trial.epochs * len(data)),
        batch_size=times * size,
        base_batch_size=size,
        peak=trial.rate,
        warmup=0.05,
        decay=0.5,
        scaling=scaling,
        seed=seed,
        **changed,
    )
    trainer = Trainer(
        made,
        job,
        folder=folder / "none",
        epoch_samples=len(data),
        told_to_stop=lambda: False,
        report=lambda progress: None,
    )
    began = time.perf_counter()
    trainer.run()
    took_s = time.perf_counter() - began
    made.finish()  # where workers agree now and then, they do now
    scores = scored(trial, made.model) if made.rank == 0 else torch.zeros(0)
    made.close()
    return Outcome(scores, trainer.num_updates, took_s, trainer.batch_schedule.noise.scale, made.sync)


def scored(trial: Trial, model: Any) -> Tensor:
    """Score of each held-out sample."""
    held_out = trial.workload.dataset(trial.folder, "test")
    loader = Loader(held_out, num_loaders=0)
    model.eval()
    with torch.no_grad():
        parts = np.array_split(np.arange(len(held_out)), max(1, len(held_out) // 256))
        return torch.cat([trial.workload.score(model, loader.get(part)) for part in parts])
