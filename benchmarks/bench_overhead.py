"""Compares the loop, its checkpoints and its recovery with a loop and a save written by hand.

The loop: the recommender takes steps of about 5 ms on batches made before, so that nothing hides behind
loading. By hand: forward, backward, update, and no more; ours: the Trainer on a TorchEngine, with its order
of samples, rates, deadline, signals, heartbeats and determinism. The gap in microseconds is that of a model
that has next to nothing to do. On one thread and by the processor's time, since other work may run beside.

Checkpoints: how long the loop waits for one, of the recommender and of a model of 64 MB with its two moments,
against a save that it would wait for to the end; and which share of its time that is at the interval that
follows, on a spot machine. Recovery: a night of the default workload, its worker killed by SIGKILL, until the
first heartbeat behind it, which comes a second after the first update.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks import frame
from daybreak.contract.record_parts import Tuning
from daybreak.examples.shop.recommender import Recommender
from daybreak.machines.losses import MEAN_TIME_TO_PREEMPTION_S
from daybreak.training import checkpoint
from daybreak.training.engine import TorchEngine
from daybreak.training.trainer import Trainer
from tests.examples.arrays import make_shop, write
from tests.training.recipes import recipe

BATCH, NUM_CANDIDATES = 16, 80  # the default model, on less than its batches of 64 x 300
NUM_BATCHES = 8
ROUNDS = 12 if frame.QUICK else 60
SAVES = 4 if frame.QUICK else 10
KILLS = 1 if frame.QUICK else 3


def main() -> None:
    """Measure the loop, the checkpoints and the recovery, and hold them against their targets."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="daybreak-") as name:
        folder = write(make_shop(num_lines=4000), Path(name))
        workload = Recommender(num_candidates=NUM_CANDIDATES, num_popular=NUM_CANDIDATES // 2)
        data = workload.dataset(folder, "train")
        samples = np.random.default_rng(0).integers(0, len(data), (NUM_BATCHES, BATCH))
        batches = [data.__getitems__(each.tolist()) for each in samples]
    figures = loops(workload, batches)
    figures |= saves("recommender", workload, batches)
    figures |= saves("64 MB", Large(), [torch.ones(BATCH, 1024)] * NUM_BATCHES)
    recoveries_s = recoveries()
    figures |= {"recovery s": max(recoveries_s), "recovery, median, s": float(np.median(recoveries_s))}
    frame.finish(
        "overhead",
        figures,
        {
            "overhead %": ("<=", 2),
            "recommender: blocked at its interval %": ("<=", 1),
            "64 MB: blocked at its interval %": ("<=", 1),
            "recommender: blocked / a blocking save": ("<=", 1),
            "64 MB: blocked / a blocking save": ("<=", 1),
            "recovery s": ("<=", 10),
        },
    )


def loops(workload: Any, batches: list[Any]) -> dict[str, float]:
    """What our loop costs over one by hand."""
    seconds = compared(workload, batches, updates=40)
    tiny = compared(Tiny(), [torch.ones(BATCH, 1)] * NUM_BATCHES, updates=400)
    plain_s, ours_s = np.median(seconds["by hand"]), np.median(seconds["ours"])
    gap_s = np.median(tiny["ours"] - tiny["by hand"])
    both = seconds["by hand"] + seconds["by hand again"]
    return {
        "step by hand ms": plain_s * 1e3,
        "step ours ms": ours_s * 1e3,
        "overhead %": 100 * float(np.median(2 * seconds["ours"] / both - 1)),
        "the same by hand again %": 100 * float(np.median(seconds["by hand again"] / seconds["by hand"] - 1)),
        "gap us": gap_s * 1e6,
        "gap / step by hand %": 100 * gap_s / plain_s,
    }


def saves(name: str, workload: Any, batches: list[Any]) -> dict[str, float]:
    """How long the loop waits for a checkpoint, while it goes on between them."""
    engine = TorchEngine(workload, Kept(batches), seed=0, micro_batch_size=BATCH, tuning=Tuning())  # type: ignore[arg-type]
    job = recipe(
        num_samples=10**9,
        batch_size=BATCH,
        micro_batch_size=BATCH,
        mean_time_to_loss_s=MEAN_TIME_TO_PREEMPTION_S,
    )
    blocking_s = []
    with tempfile.TemporaryDirectory(prefix="daybreak-") as folder:
        trainer = Trainer(
            engine,
            job,
            folder=Path(folder),
            epoch_samples=1_000_000,
            told_to_stop=lambda: False,
            report=lambda progress: None,
        )
        for number in range(SAVES + 1):  # the first finds no memory to copy into
            run_on(trainer, updates=20)
            began = time.perf_counter()
            checkpoint.save(Path(folder) / "blocking", engine.save(), seen=number, identity="")
            blocking_s.append(time.perf_counter() - began)
            trainer.save()
            while trainer.saver.busy:
                run_on(trainer, updates=1)
        saver = trainer.saver
        blocked_s, takes_s, every_s = saver.blocked_s[1:], saver.takes_s, saver.every_s
    engine.close()
    wait_s = float(np.median(blocked_s))
    return {
        f"{name}: a blocking save ms": 1e3 * float(np.median(blocking_s[1:])),
        f"{name}: blocked ms": 1e3 * wait_s,
        f"{name}: blocked at first ms": 1e3 * saver.blocked_s[0],
        f"{name}: in flight ms": 1e3 * takes_s,
        f"{name}: blocked / a blocking save": wait_s / float(np.median(blocking_s[1:])),
        f"{name}: interval s": every_s,
        f"{name}: blocked at its interval %": 100 * wait_s / (wait_s + every_s),
    }


def run_on(trainer: Trainer, *, updates: int) -> None:
    """Train so much more; an end before that of the recipe would be put off, as one that came too early."""
    trainer.end = trainer.seen + updates * BATCH
    trainer.recipe = replace(trainer.recipe, num_samples=trainer.end)
    trainer.run()


def recoveries() -> list[float]:
    """Seconds from kills of the worker of a night of the default workload to the first heartbeats behind."""
    day = "2026-03-04" if frame.QUICK else str(datetime.now(UTC).date() - timedelta(days=2))
    sets = frame.sets(
        [*(frame.SMALL if frame.QUICK else []), "train.epochs=1000", "train.checkpoint_every_s=2"]
    )
    with frame.home() as home:
        night = subprocess.Popen(
            [sys.executable, "-m", "daybreak", "night", "--day", day, *sets],
            cwd=home,
            env=frame.environment(home),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return [recovery(home, night) for _ in range(KILLS)]
        finally:
            os.killpg(night.pid, signal.SIGKILL)
            for path in home.glob("nights/*/data/work/jobs/*/pid"):
                os.killpg(int(path.read_text()), signal.SIGKILL)


def recovery(home: Path, night: "subprocess.Popen[bytes]") -> float:
    """Kill the worker once it has saved and gone on, and wait for what comes behind it."""
    known = newest(home)
    while newest(home) <= known:
        if night.poll() is not None:
            raise RuntimeError(f"the night ended with {night.returncode} before its worker was killed")
        time.sleep(0.05)
    (path,) = home.glob("nights/*/data/work/jobs/*/pid")
    workers = [
        process
        for process in psutil.Process(int(path.read_text())).children(recursive=True)
        if process.cmdline()[-2:-1] == ["daybreak.training.worker"]
        and "torch.distributed.run" not in process.cmdline()
    ]
    (worker,) = workers
    worker.kill()
    killed = datetime.now(UTC)
    while not (behind := [at for at in heartbeats(home) if at > killed]):
        time.sleep(0.05)
    return (behind[0] - killed).total_seconds()


def newest(home: Path) -> str:
    """Name of the newest checkpoint of the night."""
    names = [path.name for path in home.glob("nights/*/data/work/jobs/*/checkpoints/seen=*")]
    return max(names, default="")


def heartbeats(home: Path) -> list[datetime]:
    """When they came."""
    (path,) = home.glob("nights/*/data/work/jobs/*/progress.jsonl")
    text = path.read_text()
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [datetime.fromisoformat(json.loads(line)["time"]) for line in lines]


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


class Large:
    """A workload of four layers, 16 MB each."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            *(nn.Linear(1024, 4096) if n % 2 == 0 else nn.Linear(4096, 1024) for n in range(4))
        )

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean(1)


def compared(workload: Any, batches: list[Any], *, updates: int) -> dict[str, NDArray[np.float64]]:
    """Seconds of an update of each loop, shape [ROUNDS]; twice by hand, which tells the noise.

    Where its tensors happen to lie makes one loop faster than the same again, so all are made anew each
    time, and each is made and run first as often as the others.
    """
    kept = Kept(batches)
    times: dict[str, list[float]] = {"by hand": [], "ours": [], "by hand again": []}
    for number in range(ROUNDS):
        makers = {"by hand": loop_by_hand, "ours": loop_of_ours, "by hand again": loop_by_hand}
        turn = [*makers, *makers][number % 3 : number % 3 + 3]
        loops = {name: makers[name](workload, kept) for name in turn}
        for loop in loops.values():
            loop(NUM_BATCHES)  # the first update makes the optimizer's moments
        for name in turn:
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
        job = recipe(num_samples=updates * BATCH, batch_size=BATCH, micro_batch_size=BATCH, peak=1e-3)
        trainer = Trainer(
            engine,
            job,
            folder=Path(),
            epoch_samples=1_000_000,
            told_to_stop=lambda: False,
            report=lambda progress: None,
        )
        trainer.run()

    return loop


if __name__ == "__main__":
    main()
