"""Updates on uneven shares, one empty: `python -m tests.training.steps FOLDER`, alone or under torchrun."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from daybreak.contract.record_parts import Tuning
from daybreak.contract.workload import TrainingProgress
from daybreak.training import accumulation
from daybreak.training.engine import TorchEngine
from daybreak.training.gradients import Signals
from daybreak.training.recipe import Clipping
from tests.fakes import LineWorkload

LOADER = Tuning(num_loaders=1)
SHORT = Clipping(norm=0.05, value=0.02)  # than most gradients
BATCHES = [np.arange(0, 10), np.arange(10, 13), np.arange(13, 14), np.arange(14, 30)]


class Tied(LineWorkload):
    """Its table of sparse gradients gives the answer, too, so that its gradient is dense."""

    def _answer(self, model: Any, batch: Any) -> Any:
        hidden = model["net"][0](batch["x"][:, None])
        return super()._answer(model, batch) + (hidden @ model["table"].weight.T).mean(1)


class OwnTable(LineWorkload):
    """Looks its rows up in a parameter that no module says is sparse."""

    def model(self) -> Any:
        parts = super().model()
        parts["table"] = torch.nn.Embedding(50, self.width)
        return parts

    def _answer(self, model: Any, batch: Any) -> Any:
        near = functional.embedding(batch["key"], model["table"].weight, sparse=self.sparse).mean(1)
        return model["net"](batch["x"][:, None])[:, 0] + near


class Alternating(LineWorkload):
    """A table and a net with an optimizer each: one of them steps, or both in every third update."""

    def optimizer(self, model: Any) -> Any:
        return {
            "table": torch.optim.Adagrad(model["table"].parameters()),
            "net": torch.optim.AdamW(model["net"].parameters()),
        }

    def loss(self, model: Any, batch: Any, progress: TrainingProgress) -> Any:
        losses = super().loss(model, batch)
        both = {"table": losses, "net": 2 * losses}
        return {name: each for n, (name, each) in enumerate(both.items()) if progress.update % 3 != n}


class OnlyRows(LineWorkload):
    """Its table has Adam of sparse gradients, which also steps a row whose gradient is zeros."""

    def optimizer(self, model: Any) -> Any:
        return {
            "table": torch.optim.SparseAdam(list(model["table"].parameters()), lr=0.1),
            "net": torch.optim.AdamW(model["net"].parameters(), lr=0.1),
        }


class Frozen(LineWorkload):
    """Its table is frozen in every other update, though weight decay would change it."""

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.AdamW(parameters, weight_decay=0.5)

    def trainable(self, model: Any, progress: TrainingProgress) -> None:
        model["table"].requires_grad_(progress.update % 2 == 1)


def steps(
    folder: Path,
    *,
    sparse: bool = False,
    micro_batch_size: int = 4,
    tuning: Tuning = LOADER,
    kind: type[LineWorkload] = LineWorkload,
    clipping: Clipping | None = None,
) -> TorchEngine:
    workload = kind(sparse=sparse, dropout=0.0)
    data = workload.dataset(folder, "train")
    engine = TorchEngine(
        workload, data, seed=1, micro_batch_size=micro_batch_size, tuning=tuning, clipping=clipping
    )
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


KINDS: dict[str, type[LineWorkload]] = {
    "dense": LineWorkload,
    "sparse": LineWorkload,
    "sharded": LineWorkload,
    "tied": Tied,
    "own table": OwnTable,
    "alternating": Alternating,
    "alternating sparse": Alternating,
    "alternating sharded": Alternating,
    "only rows": OnlyRows,
    "frozen": Frozen,
    "frozen sharded": Frozen,
    "float16": LineWorkload,
    "float16 sharded": LineWorkload,
    "clipped": LineWorkload,
    "clipped sparse": LineWorkload,
    "clipped sharded": LineWorkload,
}
SPARSE = {"sparse", "tied", "own table", "clipped sparse", "alternating sparse", "only rows"}


def tuning_of(kind: str) -> Tuning:
    return Tuning(sharded="sharded" in kind, precision="float16" if "float16" in kind else "float32")


def held(made: TorchEngine) -> int:
    """Returns the number of parameters whose moments a worker holds."""
    return sum(len(optimizer.state) for optimizer in made.updater.optimizers.values())


if __name__ == "__main__":
    accumulation.LOOK_EVERY = 1
    for kind, workload in KINDS.items():
        clipping = SHORT if "clipped" in kind else None
        made = steps(
            Path(sys.argv[1]),
            sparse=kind in SPARSE,
            tuning=tuning_of(kind),
            kind=workload,
            clipping=clipping,
        )
        state = made.save()
        own = held(made)
        score = made.mean_score(np.arange(30), alive=lambda: None)
        made.load(state)
        assert held(made) == own  # what others hold is not kept, also after a restart
        if made.rank == 0:
            tensors = {**state.tensors, "noise": made.noises, "score": score}  # type: ignore[attr-defined]
            torch.save(tensors, Path(sys.argv[1]) / f"{kind}.pt")
    made.close()
