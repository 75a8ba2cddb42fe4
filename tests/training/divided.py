"""Updates with weights in shares, some empty: `python -m tests.training.divided FOLDER`, by torchrun.

In each case: a few updates, a checkpoint, a restart from it, and some more updates. At last FOLDER/job.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from daybreak.contract.record_parts import Tuning
from daybreak.extensions.fsdp.fsdp import FsdpEngine
from daybreak.training import accumulation, checkpoint, worker
from daybreak.training.checkpoint import TrainingState
from daybreak.training.engine import TorchEngine
from daybreak.training.gradients import Signals
from daybreak.training.recipe import Clipping
from tests.fakes import LineWorkload

BATCHES = [np.arange(0, 10), np.arange(10, 13), np.arange(13, 14), np.arange(14, 30), np.arange(30, 38)]
MICRO, SAVED = 4, 3  # samples a pass; updates before the checkpoint
DIVIDED = Tuning(sharded=True, sharded_weights=True, num_loaders=1)
CASES = ("sgd", "adamw", "recompute", "clipped")


class Tower(LineWorkload):
    """A deeper net, whose width no number of workers divides, under a table that the loss calls by itself."""

    def __init__(self, kind: str) -> None:
        super().__init__(dropout=0.0, width=33)
        self.kind = kind

    def model(self) -> Any:
        layers = [layer for _ in range(4) for layer in (nn.Linear(self.width, self.width), nn.Tanh())]
        net = nn.Sequential(nn.Linear(1, self.width), *layers, nn.Linear(self.width, 1))
        return nn.ModuleDict({"table": nn.Embedding(50, self.width), "net": net})

    def optimizer(self, parameters: Any) -> Any:
        if self.kind in {"sgd", "clipped"}:
            return torch.optim.SGD(parameters, momentum=0.9)
        return torch.optim.AdamW(parameters)


def made(folder: Path, kind: str) -> TorchEngine:
    """A plain engine for a worker alone, or one of those that share."""
    workload = Tower(kind)
    data = workload.dataset(folder, "train")
    tuning = DIVIDED if kind != "recompute" else Tuning(recompute=True, sharded=True, sharded_weights=True)
    alone = "RANK" not in os.environ
    build = TorchEngine if alone else FsdpEngine
    return build(
        workload,
        data,
        seed=1,
        micro_batch_size=MICRO,
        tuning=Tuning() if alone else tuning,
        clipping=Clipping(norm=0.05, value=0.02) if kind == "clipped" else None,
    )


def go(engine: TorchEngine, begin: int, end: int) -> list[tuple[float, Any]]:
    """Take these updates; loss and noise of each."""
    losses = []
    for number in range(begin, end):
        batch = BATCHES[number]
        cut = 1 + len(batch) // 4 if engine.world_size > 1 else len(batch)
        share = batch[:cut] if engine.rank == 0 else batch[cut:]
        engine.prepare(share)
        said = Signals(stop=engine.rank, end_in=0 if engine.rank else number)
        step = engine.step(share, batch_size=len(batch), rate=0.01, signals=said)
        assert step.signals == Signals(stop=engine.world_size - 1, end_in=number)
        assert step.times_s == ()  # all took as long as the slowest
        losses.append((step.loss, step.noise))
    return losses


def held(engine: TorchEngine) -> tuple[int, int]:
    """Numbers of weights, and of the optimizer's state, that this worker holds."""

    def count(tensors: Any) -> int:
        return sum(getattr(t, "to_local", lambda t=t: t)().numel() for t in tensors if t.dim())

    state = (value for kept in engine.optimizer.state.values() for value in kept.values())
    return count(engine.model.parameters()), count(v for v in state if isinstance(v, Tensor))


def main(folder: Path) -> None:
    accumulation.LOOK_EVERY = accumulation.HALVE_EVERY = 1
    for kind in CASES:
        first = made(folder, kind)
        losses = go(first, 0, SAVED)
        state = first.save()
        if first.rank == 0:
            assert checkpoint.save(folder / kind, state, seen=SAVED, identity="divided")
        torch.distributed.barrier()
        path = checkpoint.newest(folder / kind, identity="divided")
        assert path
        again = made(folder, kind)
        again.load(checkpoint.load(path))
        losses += go(again, SAVED, len(BATCHES))
        end: TrainingState = again.save()
        warm = made(folder, kind)
        shares = [None] * first.world_size
        torch.distributed.all_gather_object(shares, held(again))
        if first.rank == 0:
            torch.save({**end.tensors, "told": losses, "held": shares}, folder / f"{kind}.pt")
        whole = [end.tensors["model"]]
        torch.distributed.broadcast_object_list(whole)
        assert warm.begin_from(whole[0])
        assert not warm.begin_from({})
        weights = warm.weights()
        assert all(torch.equal(weights[name], whole[0][name]) for name in weights)
    assert worker.main(folder / "job") == 0  # a whole job, to its model; it closes what all have opened


if __name__ == "__main__":
    main(Path(sys.argv[1]))
