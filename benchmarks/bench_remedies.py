"""Tunes random jobs as the stage `profile` does, and times them against the untuned jobs: never slower.

Models are small random MLPs, convolutions and embeddings; samples come from memory, from parsing text row by
row, or from storage with latency. End and beginning are timed again by a loop of this file's own, in turn. A
job whose tuning ended as it began is as fast as it was. QUICK=1 takes 12 jobs instead of 100.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import frame
from daybreak.contract.record_parts import Tuning
from daybreak.contract.sections import TrainParams
from daybreak.profiling import line_fit, tuner
from daybreak.profiling.ab_timing import bounds
from daybreak.profiling.harness import Harness
from daybreak.profiling.job_facts import DeviceFacts, JobFacts, MemoryFacts, ReadFacts
from daybreak.training.engine import TorchEngine
from daybreak.training.gradients import Signals

NUM_JOBS = 12 if frame.QUICK else 100
TRAINING_S = 20.0  # of each job as it is planned, so that trials may take a tenth
FEATURES, SIDE, ITEMS = 64, 16, 20_000
PAIRS, RUN_S = 7, 0.1  # of the measurement afterwards
SLOWER = 1.05  # a median above it, whose lower bound is above 1, is no noise


@dataclass(frozen=True, kw_only=True)
class Random:
    """A random job: its model and the cost of its samples."""

    model: str
    width: int
    depth: int
    optimizer: str
    batch_size: int
    load: str  # memory, parsed, latency or batches
    load_s: float  # of a sample, or of a batch for "batches"
    num_samples: int

    @classmethod
    def draw(cls, random: np.random.Generator) -> "Random":
        load = str(random.choice(["memory", "memory", "parsed", "latency", "batches"]))
        return cls(
            model=str(random.choice(["mlp", "convolution", "embedding"])),
            width=int(random.choice([16, 32, 64, 128])),
            depth=int(random.integers(1, 4)),
            optimizer=str(random.choice(["Adam", "SGD", "Adagrad"])),
            batch_size=int(random.choice([16, 32, 64])),
            load=load,
            load_s={"memory": 0.0, "parsed": 0.0, "latency": 4e-4, "batches": 2e-2}[load],
            num_samples=int(random.choice([512, 1024])),
        )


class Samples:
    """Samples in memory, as text, or behind latency; one by one."""

    def __init__(self, job: Random) -> None:
        self.job = job
        generator = torch.Generator().manual_seed(0)
        if job.model == "embedding":
            self.x = torch.randint(ITEMS, (job.num_samples, 8), generator=generator)
        else:
            shape = (3, SIDE, SIDE) if job.model == "convolution" else (FEATURES,)
            self.x = torch.randn(job.num_samples, *shape, generator=generator)
        self.lines = [json.dumps(row.tolist()) for row in self.x] if job.load == "parsed" else []

    def __len__(self) -> int:
        return self.job.num_samples

    def __getitem__(self, index: int) -> Tensor:
        if self.job.load_s:
            time.sleep(self.job.load_s)
        return torch.tensor(json.loads(self.lines[index])) if self.lines else self.x[index]


class Batches(Samples):
    """The same in whole batches."""

    def __getitems__(self, indices: Any) -> Tensor:
        time.sleep(self.job.load_s)
        return self.x[np.array(indices)]


class Workload:
    """The workload of a random job."""

    def __init__(self, job: Random) -> None:
        self.job = job

    def dataset(self, folder: Path, split: str) -> Any:
        return Batches(self.job) if self.job.load == "batches" else Samples(self.job)

    def model(self) -> nn.Module:
        job, layers = self.job, []
        if job.model == "convolution":
            layers = [nn.Conv2d(3, job.width // 4, 3), nn.ReLU()]
            for _ in range(job.depth - 1):
                layers += [nn.Conv2d(job.width // 4, job.width // 4, 3, padding=1), nn.ReLU()]
            return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(job.width // 4, 1))
        first = FEATURES
        if job.model == "embedding":
            layers, first = [nn.Embedding(ITEMS, job.width // 4), nn.Flatten()], 8 * (job.width // 4)
        for _ in range(job.depth):
            layers += [nn.Linear(first, 4 * job.width), nn.ReLU()]
            first = 4 * job.width
        return nn.Sequential(*layers, nn.Linear(first, 1))

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return getattr(torch.optim, self.job.optimizer)(parameters, lr=1e-3)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        scale = ITEMS if self.job.model == "embedding" else 1
        return (model(batch)[:, 0] - batch.float().flatten(1).mean(1) / scale).square()

    def score(self, model: nn.Module, batch: Tensor) -> Tensor:
        return -self.loss(model, batch)


def main() -> None:
    """Tune random jobs, and time each against what it was before."""
    torch.set_num_threads(1)  # so that one busy core beside it does not stop both
    random = np.random.default_rng(7)
    rows, began = [], time.perf_counter()
    for number in range(NUM_JOBS):
        rows.append(run(Random.draw(random)))
        print(number, json.dumps(rows[-1]), flush=True)
    speedups = [row["speed-up"] for row in rows]
    seeded = [row["speed-up"] for row in rows if row["io"]]
    frame.finish(
        "remedies",
        {
            "jobs": len(rows),
            "slower at the end": sum(row["slower"] for row in rows),
            "least speed-up": min(speedups),
            "median speed-up": median(speedups),
            "I/O-bound jobs": len(seeded),
            "least speed-up of I/O-bound": min(seeded),
            "median speed-up of I/O-bound": median(seeded),
            "median seconds of trials": median(row["trials_s"] for row in rows),
            "total s": time.perf_counter() - began,
        },
        {"slower at the end": ("==", 0), "least speed-up of I/O-bound": (">=", 2)},
    )


def run(job: Random) -> dict[str, Any]:
    """Tune one job, and time its updates after that against those before."""
    harness = Harness(Workload(job), Path(), seed=0)
    harness.build()
    sizes, loads, steps = [], [], []
    for number in range(5):
        for size in (job.batch_size // 4, job.batch_size // 2, job.batch_size):
            start = harness.now()
            batch = harness.load(size)
            loaded = harness.now()
            harness.step(batch, size)
            if number:
                sizes.append(size)
                loads.append(loaded - start)
                steps.append(harness.now() - loaded)
    load_s, step_s = line_fit.fit(sizes, loads), line_fit.fit(sizes, steps)
    update_s = load_s(job.batch_size) + step_s(job.batch_size)
    epochs = TRAINING_S / update_s * job.batch_size / job.num_samples
    facts = JobFacts(
        bound="io" if load_s(job.batch_size) > step_s(job.batch_size) else "compute",
        batch_size=job.batch_size,
        load_s=load_s,
        step_s=step_s,
        device=DeviceFacts(on_cpu=harness.device.type == "cpu", num_cores=2, flops_per_s=1e11),
        memory=MemoryFacts(fits=True),
        reads=ReadFacts(whole_batches=job.load == "batches"),
    )
    training = TrainParams(batch_size=job.batch_size, epochs=epochs, rate=1e-3)
    tuned = tuner.tune(harness, facts, training, quality="offer")
    pairs = again(job, harness.data, tuned.tuning, update_s) if tuned.tuning != Tuning() else [(1.0, 1.0)]
    ratios = [new_s / old_s for old_s, new_s in pairs]
    return {
        "job": f"{job.model} {job.width} {job.optimizer} {job.batch_size} {job.load}",
        "io": load_s(job.batch_size) > 3 * step_s(job.batch_size),
        "kept": [remedy.name for remedy in tuned.remedies if remedy.kept],
        "speed-up": 1 / median(ratios),
        "slower": median(ratios) > SLOWER and bounds(ratios)[0] > 1,
        "trials_s": tuned.evidence["elapsed_s"],
    }


def again(job: Random, data: Any, tuning: Tuning, update_s: float) -> list[tuple[float, float]]:
    """Seconds of the same updates as the job began and as it ended, in turn."""
    number = max(8, int(RUN_S / update_s))
    random = np.random.default_rng(1)
    batches = [random.integers(job.num_samples, size=job.batch_size) for _ in range(number)]
    sides = [
        (TorchEngine(Workload(job), data, seed=0, micro_batch_size=job.batch_size, tuning=each), each)
        for each in (Tuning(), tuning)
    ]
    for side in sides:
        seconds(*side, batches)  # allocations, and samples that are kept from their first time on
    timings = []
    for pair in range(PAIRS):
        times = {
            id(engine): seconds(engine, each, batches) for engine, each in sides[:: -1 if pair % 2 else 1]
        }
        timings.append((times[id(sides[0][0])], times[id(sides[1][0])]))
    for engine, _ in sides:
        engine.close()
    torch.use_deterministic_algorithms(False)
    return timings


def seconds(engine: TorchEngine, tuning: Tuning, batches: list[Any]) -> float:
    """Seconds of an update on each batch, loaded ahead as the trainer does."""
    ahead, begin = max(1, tuning.num_loaders), time.perf_counter()
    for number, batch in enumerate(batches):
        for later in batches[:ahead] if number == 0 else ():
            engine.prepare(later)
        for later in batches[number + ahead : number + ahead + 1]:
            engine.prepare(later)
        engine.step(batch, batch_size=len(batch), rate=1e-3, signals=Signals())
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
