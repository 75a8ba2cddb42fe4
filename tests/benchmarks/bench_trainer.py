"""What does our loop cost over one written by hand? The same model, the same batches, taking turns.

The recommender takes steps of about 5 ms on batches made before, so that nothing hides behind loading. By
hand: forward, backward, update, and no more; ours: the Trainer on a TorchEngine, with its order of samples,
rates, deadline, signals, heartbeats and determinism. The gap in microseconds is that of a model that has
next to nothing to do. All of it on one thread and by the processor's time, since other work may run beside.
"""

import tempfile
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.records import Tuning
from pipeline.training.engine import TorchEngine
from pipeline.training.recipe import Recipe
from pipeline.training.trainer import Trainer
from pipeline.workloads.recommender import Recommender
from tests.benchmarks import frame
from tests.workloads.arrays import make_shop, write

BATCH, NUM_CANDIDATES = 16, 80  # the default model, on less than its batches of 64 x 300
NUM_BATCHES = 8
ROUNDS = 12 if frame.QUICK else 60
RENEWED = 3  # rounds


def main() -> None:
    """Time updates of both loops on both models, and hold the overhead against its target."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="daybreak-") as name:
        folder = write(make_shop(num_lines=4000), Path(name))
        workload = Recommender(num_candidates=NUM_CANDIDATES, num_popular=NUM_CANDIDATES // 2)
        data = workload.dataset(folder, "train")
        samples = np.random.default_rng(0).integers(0, len(data), (NUM_BATCHES, BATCH))
        batches = [data.__getitems__(each.tolist()) for each in samples]
    found = compared(workload, batches, updates=40)
    tiny = compared(Tiny(), [torch.ones(BATCH, 1)] * NUM_BATCHES, updates=400)
    plain_s, ours_s = np.median(found["by hand"]), np.median(found["ours"])
    gap_s = np.median(tiny["ours"] - tiny["by hand"])
    frame.finish(
        "trainer",
        {
            "step by hand ms": plain_s * 1e3,
            "step ours ms": ours_s * 1e3,
            "overhead %": 100
            * np.median(2 * found["ours"] / (found["by hand"] + found["by hand again"]) - 1),
            "the same by hand again %": 100 * np.median(found["by hand again"] / found["by hand"] - 1),
            "gap us": gap_s * 1e6,
            "gap / step by hand %": 100 * gap_s / plain_s,
        },
        {"overhead %": ("<=", 2)},
    )


class Kept:
    """A data set whose batches are at hand: the place of the first sample tells which."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return BATCH * len(self.batches)

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError("whole batches only")

    def __getitems__(self, indices: Any) -> Any:
        return self.batches[int(indices[0]) % len(self.batches)]


class Tiny:
    """A workload of one product."""

    def model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch)[:, 0].square()


def compared(workload: Any, batches: list[Any], *, updates: int) -> dict[str, NDArray[np.float64]]:
    """Seconds of an update of each loop, shape [ROUNDS]; twice by hand, which tells the noise.

    Where its tensors happen to lie makes one loop faster than the same again, so all are made anew often.
    """
    kept = Kept(batches)
    times: dict[str, list[float]] = {"by hand": [], "ours": [], "by hand again": []}
    for number in range(ROUNDS):
        if number % RENEWED == 0:
            loops = {
                "by hand": loop_by_hand(workload, kept),
                "ours": loop_of_ours(workload, kept),
                "by hand again": loop_by_hand(workload, kept),
            }
            for loop in loops.values():
                loop(NUM_BATCHES)  # the first update makes the optimizer's moments
        for name in list(loops)[:: 1 if number % 2 else -1]:
            began = time.process_time()
            loops[name](updates)
            times[name].append((time.process_time() - began) / updates)
    return {name: np.array(each) for name, each in times.items()}


def loop_by_hand(workload: Any, data: Kept) -> Callable[[int], None]:
    """What a person would write."""
    torch.manual_seed(0)
    model = workload.model()
    optimizer = workload.optimizer(model.parameters())

    def loop(updates: int) -> None:
        torch.use_deterministic_algorithms(False)
        for number in range(updates):
            batch = data.batches[number % len(data.batches)]
            optimizer.zero_grad()
            workload.loss(model, batch).mean().backward()
            optimizer.step()

    return loop


def loop_of_ours(workload: Any, data: Kept) -> Callable[[int], None]:
    """A run of the Trainer."""
    engine = TorchEngine(workload, data, seed=0, micro_batch_size=BATCH, tuning=Tuning())  # type: ignore[arg-type]

    def loop(updates: int) -> None:
        torch.use_deterministic_algorithms(True, warn_only=True)
        recipe = Recipe(
            night="", code_commit="", workload="", arguments={}, arrays="", data_digest="", warm_from="",
            warm_digest="", last_day=date(2026, 1, 1), seed=0, num_samples=updates * BATCH, batch_size=BATCH,
            micro_batch_size=BATCH, rate=1e-3, warmup=0.1, decay=0.5, checkpoint_every_s=1e9,
            train_until=datetime(2100, 1, 1, tzinfo=UTC), tuning=Tuning(),
        )  # fmt: skip
        trainer = Trainer(
            engine, recipe, folder=Path(), epoch_samples=1_000_000, told_to_stop=lambda: False,
            report=lambda progress: None,
        )  # fmt: skip
        trainer.run()

    return loop


if __name__ == "__main__":
    main()
