"""Updates on uneven shares, one empty: `python -m tests.training.steps FOLDER`, alone or under torchrun."""

import sys
from pathlib import Path

import numpy as np
import torch

from pipeline.contract.records import Tuning
from pipeline.training import engine as engines
from pipeline.training.engine import TorchEngine
from pipeline.training.gradients import Signals
from tests.fakes import LineWorkload

LOADER = Tuning(num_loaders=1)
BATCHES = [np.arange(0, 10), np.arange(10, 13), np.arange(13, 14), np.arange(14, 30)]


def steps(
    folder: Path, *, sparse: bool = False, micro_batch_size: int = 4, tuning: Tuning = LOADER
) -> TorchEngine:
    workload = LineWorkload(sparse=sparse, dropout=0.0)
    data = workload.dataset(folder, "train")
    engine = TorchEngine(workload, data, seed=1, micro_batch_size=micro_batch_size, tuning=tuning)
    for number, batch in enumerate(BATCHES):
        cut = 1 + len(batch) // 4 if engine.world_size > 1 else len(batch)  # unlike workers: unlike shares
        share = batch[:cut] if engine.rank == 0 else batch[cut:]
        engine.prepare(share)
        signals = Signals(stop=engine.rank, end_in=0 if engine.rank else number)
        step = engine.step(share, batch_size=len(batch), rate=0.1, signals=signals)
        assert step.signals == Signals(stop=engine.world_size - 1, end_in=number)
        assert np.isfinite(step.loss)
        engine.noises = [*getattr(engine, "noises", []), step.noise]  # type: ignore[attr-defined]
        told_all = len(step.times_s) == engine.world_size and (number == 0 or min(step.times_s) > 0)
        assert told_all if engine.world_size > 1 else step.times_s == ()
    return engine


if __name__ == "__main__":
    engines.LOOK_EVERY = 1
    for kind in ("dense", "sparse", "sharded"):
        tuning = Tuning(sharded=kind == "sharded")
        made = steps(Path(sys.argv[1]), sparse=kind == "sparse", tuning=tuning)
        state = made.save()
        own = len(made.optimizer.state)
        made.load(state)
        assert len(made.optimizer.state) == own  # what others hold is not kept, also after a restart
        if made.rank == 0:
            tensors = {**state.tensors, "noise": made.noises}  # type: ignore[attr-defined]
            torch.save(tensors, Path(sys.argv[1]) / f"{kind}.pt")
    made.close()
