"""How does our loop scale over workers? Against plain DistributedDataParallel under the same torchrun.

For each number of workers torchrun starts one process each, over gloo on loopback, and in these both loops
take turns: the same model, the same samples in the same order, the same updates. By hand: DDP as its manual
has it, forward, backward, update, and no more; ours: the Trainer on a TorchEngine, with its order, rates,
signals and heartbeats. Both gather batches from columns in memory. A ratio is the median over rounds of the
time by hand over ours; above 1, ours is the faster. After the first round the weights of both must be the
same, or they would not have done the same work. Two models: the recommender, small enough that what a loop
adds shows, and one with 1.6 million weights, whose gradients take longer to add up than to compute.
There are fewer cores than the most workers, which then share them, in both loops alike.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks import frame
from daybreak.contract.record_parts import Tuning
from daybreak.examples.shop.recommender import Recommender
from daybreak.training import sample_order
from daybreak.training.engine import TorchEngine
from daybreak.training.sample_order import Indices
from daybreak.training.trainer import Trainer
from daybreak.training.tuning import leaves
from tests.examples.arrays import make_shop, write
from tests.training.recipes import recipe

WORLDS = (1, 2, 4)
SHARE = 16  # samples a worker
UPDATES = 10  # a round
ROUNDS = 20 if frame.QUICK else 80
RATE = 1e-3


def main() -> None:
    """Time both loops at each number of workers, and hold the ratios against their target."""
    figures: dict[str, float] = {}
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="daybreak-") as name:
        folder = write(make_shop(num_lines=4000), Path(name))
        for world_size in WORLDS:
            for model, times in _run(folder, world_size).items():
                hand, ours = np.array(times["by hand"]), np.array(times["ours"])
                key = f"{model}, {world_size} workers"
                figures[f"{key}: by hand / ours"] = float(np.median(hand / ours))
                figures[f"{key}: weights apart"] = times["apart"]
                rows.append(
                    {
                        "model": model,
                        "workers": world_size,
                        "by hand ms": float(np.median(hand)) * 1e3,
                        "ours ms": float(np.median(ours)) * 1e3,
                    }
                )
    frame.table(rows)
    targets: dict[str, frame.Target] = {key: (">=", 0.98) for key in figures if key.endswith("ours")}
    targets |= {key: ("<=", 1e-3) for key in figures if key.endswith("apart")}
    frame.finish("scaling", figures, targets)


def _run(folder: Path, world_size: int) -> dict[str, dict[str, Any]]:
    """What worker 0 found, by model."""
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    environment = {**os.environ, "PYTHONPATH": str(frame.ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, *command, "-m", "benchmarks.bench_scaling", str(folder)],
        env=environment,
        cwd=frame.ROOT,
        check=True,
    )
    by_model: dict[str, dict[str, Any]] = json.loads((folder / "found.json").read_text())
    return by_model


class Columns:
    """A data set in memory: whole batches, gathered from columns."""

    def __init__(self, columns: Any, num_samples: int) -> None:
        self.columns, self.num_samples = columns, num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError("whole batches only")

    def __getitems__(self, indices: Indices) -> Any:
        rows = torch.tensor(indices)
        return leaves(self.columns, lambda column: column.index_select(0, rows))


class Wide:
    """A workload of 1.6 million weights."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
        )

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, momentum=0.9)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch)[:, 0] - batch[:, 0]).square()


def work(folder: Path) -> None:
    """One worker: both loops on both models, in turns."""
    torch.set_num_threads(1)
    shop = Recommender(num_candidates=80, num_popular=40, dropout=0.0)
    data = shop.dataset(folder, "train")
    samples = Columns(data.__getitems__(list(range(len(data)))), len(data))
    inputs = torch.randn(1000, 512, generator=torch.Generator().manual_seed(0))
    by_model = {
        "recommender": compared(shop, samples),
        "wide": compared(Wide(), Columns(inputs, len(inputs))),
    }
    if int(os.environ["RANK"]) == 0:
        (folder / "found.json").write_text(json.dumps(by_model))
    dist.destroy_process_group()


def compared(workload: Any, data: Columns) -> dict[str, Any]:
    """Seconds of an update of each loop, by round, and how far apart the weights are in the end."""
    ours, model = loop_of_ours(workload, data)
    by_hand, plain = loop_by_hand(workload, data)
    loops = {"by hand": by_hand, "ours": ours}
    times: dict[str, list[float]] = {name: [] for name in loops}
    apart = 0.0
    for number in range(1 + ROUNDS):
        for name in list(loops)[:: 1 if number % 2 else -1]:
            dist.barrier()
            began = time.perf_counter()
            loops[name]()
            dist.barrier()
            times[name].append((time.perf_counter() - began) / UPDATES)
        if number == 0:  # soon, since rounding grows with every update
            one, other = (torch.cat([w.flatten() for w in m.state_dict().values()]) for m in (model, plain))
            apart = float((one - other).norm() / other.norm())
    return {**{name: each[1:] for name, each in times.items()}, "apart": apart}  # the first one warms up


def loop_by_hand(workload: Any, data: Columns) -> tuple[Callable[[], None], nn.Module]:
    """What a person would write."""
    torch.manual_seed(0)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batch_size = SHARE * world_size
    model = workload.model()
    optimizer = workload.optimizer(model.parameters())
    for group in optimizer.param_groups:
        group["lr"] = RATE
    wrapped = DistributedDataParallel(model)
    parts = [
        range(n * batch_size + rank * SHARE, n * batch_size + (rank + 1) * SHARE) for n in range(UPDATES)
    ]
    shares = [sample_order.indices(seed=7, num_samples=len(data), start=p.start, stop=p.stop) for p in parts]

    def loop() -> None:
        torch.use_deterministic_algorithms(False)
        for share in shares:
            batch = data.__getitems__(share)
            optimizer.zero_grad()
            workload.loss(wrapped, batch).mean().backward()
            optimizer.step()

    return loop, model


def loop_of_ours(workload: Any, data: Columns) -> tuple[Callable[[], None], nn.Module]:
    """A run of the Trainer."""
    engine = TorchEngine(workload, data, seed=0, micro_batch_size=SHARE, tuning=Tuning())  # type: ignore[arg-type]
    if not dist.is_initialized():  # a worker alone needs none, but DDP does
        dist.init_process_group("gloo")
    batch_size = SHARE * engine.world_size
    job = recipe(
        num_samples=UPDATES * batch_size, batch_size=batch_size, peak=RATE, warmup=0.0, decay=0.0, seed=7
    )

    def loop() -> None:
        torch.use_deterministic_algorithms(True, warn_only=True)
        Trainer(
            engine,
            job,
            folder=Path(),
            epoch_samples=len(data),
            told_to_stop=lambda: False,
            report=lambda progress: None,
        ).run()

    return loop, engine.model


if __name__ == "__main__":
    work(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
