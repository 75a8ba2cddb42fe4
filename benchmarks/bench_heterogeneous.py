"""What are shares by speed worth on unlike workers? Time to the same loss, against equal shares.

Real processes over gloo through the Trainer, three or two workers that learn from the same order of samples.
This machine's cores are fewer than they, and alike, so their speed is a rest: a worker sleeps in proportion
to the samples of its share, and what it really computes is small beside that. The workers of H-level H have
the cores of the paper's cluster of 39 (Tyagi & Sharma 2020, arXiv 2305.12213), the fastest having H times
those of the slowest; the mix is one fast device beside one of a sixteenth of its speed.
Both loops pay for what they learn: the run by speed begins with equal shares. The loss is that which the run
with equal shares has over the last tenth of its updates; each gets there in its own time. On equal workers
both do the same, bit for bit, so that their losses must not differ at all, and times by 2 % of noise at most.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from benchmarks import frame
from daybreak.contract.record_parts import Tuning
from daybreak.training.engine import TorchEngine, UpdateResult
from daybreak.training.sample_order import Indices
from daybreak.training.trainer import Trainer
from tests.training.recipes import recipe

CLUSTERS = {
    "H-1": (13, 13, 13),
    "H-2": (9, 12, 18),
    "H-6": (4, 11, 24),
    "H-10": (2, 17, 20),
    "mix 1:16": (1, 16),
}
BATCH = 156  # 4 for each core
BALANCED_S = 0.02  # an update in which all rest equally long
UPDATES = 150 if frame.QUICK else 300
WINDOW = UPDATES // 10  # updates that a loss is the mean of
ROUNDS = 3  # of equal workers, in turn; the least time of each counts
PAPER = frame.DATA / "papers" / "dynamic_batching_figs.json"


def main() -> None:
    """Train on each cluster both ways, and hold the speed-ups against their targets."""
    figures: dict[str, float] = {}
    rows: list[dict[str, object]] = []
    for name, cores in CLUSTERS.items():
        took = {"even": np.inf, "by_speed": np.inf}
        by_batching: dict[str, dict[str, Any]] = {}
        for _ in range(ROUNDS if name == "H-1" else 1):
            for batching in ("even", "by_speed"):
                by_batching[batching] = _run(cores, batching)
                goal = _smooth(by_batching["even"]["loss"])[-1]
                reached = int(np.argmax(_smooth(by_batching[batching]["loss"]) <= goal * (1 + 1e-4)))
                took[batching] = min(took[batching], by_batching[batching]["ended_s"][reached + WINDOW - 1])
        apart = np.abs(np.array(by_batching["even"]["loss"]) / by_batching["by_speed"]["loss"] - 1).max()
        figures[f"{name} times"] = took["even"] / took["by_speed"]
        figures[f"{name} loss apart"] = float(apart)
        rows.append(
            {
                "workers": name,
                "cores": ":".join(map(str, cores)),
                "equal shares s": took["even"],
                "by speed s": took["by_speed"],
                "times": took["even"] / took["by_speed"],
                "at most": sum(cores) / (len(cores) * min(cores)),
                "last shares": ":".join(map(str, by_batching["by_speed"]["last_sizes"])),
            }
        )
    frame.table(rows)
    _show_paper()
    targets: dict[str, frame.Target] = {f"{name} loss apart": ("<=", 1e-5) for name in CLUSTERS}
    targets |= {
        "H-1 loss apart": ("==", 0),
        "H-1 times": (">=", 0.98),
        "H-10 times": (">=", 2.5),
        "mix 1:16 times": (">=", 4.0),
    }
    frame.finish("heterogeneous", figures, targets)


def _smooth(losses: list[float]) -> Any:
    return np.convolve(losses, np.ones(WINDOW) / WINDOW, mode="valid")


def _run(cores: tuple[int, ...], batching: str) -> dict[str, Any]:
    """What worker 0 of such a cluster has seen."""
    with tempfile.TemporaryDirectory(prefix="daybreak-") as name:
        task = Path(name) / "told.json"
        task.write_text(json.dumps({"cores": cores, "batching": batching}))
        command = ["torch.distributed.run", "--standalone", f"--nproc-per-node={len(cores)}", "-m"]
        subprocess.run(
            [sys.executable, "-m", *command, "benchmarks.bench_heterogeneous", str(task)],
            env={**os.environ, "PYTHONPATH": str(frame.ROOT), "OMP_NUM_THREADS": "1"},
            cwd=frame.ROOT,
            check=True,
        )
        record: dict[str, Any] = json.loads((Path(name) / "found.json").read_text())
    return record


def _show_paper() -> None:
    """Print the speed-ups that the paper's figures show, beside which ours stand."""
    if not PAPER.exists():
        print("the paper's figures are not here; see DAYBREAK_DATA")
        return
    minutes = json.loads(PAPER.read_text())["fig6_time_to_accuracy_min"]
    levels = [f"H-{level}" for level in minutes.pop("H_level")]
    frame.table(
        [
            {
                "published": name,
                **dict(zip(levels, np.divide(each["uniform"], each["variable"]), strict=True)),
            }
            for name, each in minutes.items()
        ]
    )


class Regression:
    """A workload: linear regression on inputs of unlike scales, so that the loss falls to the end."""

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(32, 1)

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return (model(batch["x"])[:, 0] - batch["y"]).square()


class Resting:
    """Its samples; a worker of few cores rests long over each."""

    def __init__(self, *, sample_s: float, num_samples: int = 10_000) -> None:
        random = np.random.default_rng(0)
        scales = np.logspace(0, -1, 32)
        self.x = (random.normal(size=(num_samples, 32)) * scales).astype(np.float32)
        self.y = (self.x @ (1 / scales)).astype(np.float32)
        self.sample_s = sample_s

    def __len__(self) -> int:
        return len(self.x)

    def __getitems__(self, indices: Indices) -> Any:
        time.sleep(self.sample_s * len(indices))
        return {"x": torch.from_numpy(self.x[indices]), "y": torch.from_numpy(self.y[indices])}


class Recorded(TorchEngine):
    """Keeps the time, the loss and this worker's share of each update."""

    def begin(self) -> None:
        self.losses: list[float] = []
        self.ended_s: list[float] = []
        self.size = 0
        self.began = time.perf_counter()

    def step(self, indices: Indices, **options: Any) -> UpdateResult:
        step = super().step(indices, **options)
        self.losses.append(step.loss)
        self.ended_s.append(time.perf_counter() - self.began)
        self.size = len(indices)
        return step


def work(path: Path) -> None:
    """One worker."""
    task = json.loads(path.read_text())
    cores: list[int] = task["cores"]
    batching: Literal["by_speed", "even"] = task["batching"]
    sample_s = BALANCED_S * sum(cores) / BATCH / cores[int(os.environ["RANK"])]
    torch.set_num_threads(1)
    engine = Recorded(
        Regression(),
        Resting(sample_s=sample_s),
        seed=0,
        micro_batch_size=BATCH,
        tuning=Tuning(),  # type: ignore[arg-type]
    )
    trainer = Trainer(
        engine,
        recipe(num_samples=UPDATES * BATCH, batch_size=BATCH, peak=0.1, batching=batching),
        folder=path.parent,
        epoch_samples=10_000,
        told_to_stop=lambda: False,
        report=lambda progress: None,
    )
    torch.distributed.barrier()
    engine.begin()
    trainer.run()
    sizes = [None] * len(cores)
    torch.distributed.all_gather_object(sizes, engine.size)
    if engine.rank == 0:
        record = {"loss": engine.losses, "ended_s": engine.ended_s, "last_sizes": sizes}
        (path.parent / "found.json").write_text(json.dumps(record))
    engine.close()


if __name__ == "__main__":
    work(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
