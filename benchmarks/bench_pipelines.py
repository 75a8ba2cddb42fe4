"""What do the remedies of the stage `profile` bring on pipelines as teams have them, beside a loader by hand?

Fifteen pipelines (pipelines.py), each in a process of its own: profiled as a night does it, for a training
that is planned to take ten minutes, then timed as it began and as it ended by a loop of this file's own, in
turn. Two ways by hand take turns with them: a plain loop over torch's DataLoader with a persistent worker a
core, and one over samples kept in memory, where they fit and come out the same each time; the faster of the
two counts. Samples kept in memory, by any way, are timed once they are there, as from the second epoch on.

A pipeline waits or decodes where the profile says that loading takes more than half of an update: it waits if
the processor is idle for more than half of the loading, not counting the time that others had the cores. All
others are bound by their step. What the cores allow is the time of an update at the beginning over its
seconds of processor / cores, all cores of the machine, whoever else uses them. The same is reported for the
cores left by others, as many as that many busy processes were given in turn with the rest. All ways use as
many threads as OMP_NUM_THREADS says, by default one, so that a busy core beside it does not stop them.
QUICK=1 takes four.
"""

import os

from daybreak.contract.workload import ARRAYS
from daybreak.storage.home import Home

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", os.environ["OMP_NUM_THREADS"])

import json
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import date
from math import ceil
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from benchmarks import frame
from benchmarks.pipelines import PIPELINES, Piped
from daybreak.contract.record_parts import Tuning
from daybreak.contract.record_types import Dataset, Profile
from daybreak.contract.sections import ProfileParams, TrainParams
from daybreak.machines import contention, this_machine
from daybreak.profiling import profiler, roofline
from daybreak.profiling.ab_timing import bounds
from daybreak.training.engine import TorchEngine
from daybreak.training.gradients import Signals
from daybreak.training.tuning import leaves, read, tensors

NAMES = list(PIPELINES)
QUICK_ONES = (0, 3, 6, 13)
CORES = os.cpu_count() or 1
TRAINING_S = 600.0  # of each pipeline as it is planned
LIMIT_S = 400.0  # for a pipeline's profile and all that is timed afterwards
PAIRS, RUN_S, UPDATES = 5, 1.2, (8, 400)  # of the measurement afterwards; updates at least and at most
BURN_S = 0.3  # to see how many cores there are to be had
SLOWER = 1.05  # a median above it, whose lower bound is above 1, is no noise
MEMORY_SHARE = 0.25  # that somebody would fill with samples
SHARE = "least share of what the cores allow, of those that decode"
RATE = 1e-3
SCHEDSTAT = Path("/proc/thread-self/schedstat")
Way = Callable[[], float]  # seconds of the same updates


def main() -> None:
    """Profile all pipelines and hold their ends against their beginnings and against loaders by hand."""
    names = [NAMES[number] for number in QUICK_ONES] if frame.QUICK else NAMES
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="daybreak-") as folder:
        os.environ["DAYBREAK_HOME"] = folder  # ceilings are measured once
        rows = []
        for name in names:
            rows.append(held(name, Path(folder)))
            print(json.dumps(rows[-1]), flush=True)
    frame.table([shown(row) for row in rows])
    frame.finish("pipelines", *judged(rows, total_s=time.perf_counter() - began))


def judged(
    rows: Sequence[dict[str, Any]], *, total_s: float
) -> tuple[dict[str, float], dict[str, frame.Target]]:
    """The figures of all pipelines, and their targets."""
    done = [row for row in rows if row["finished"]]
    figures: dict[str, float] = {
        "pipelines": len(rows),
        "profiles that finished": len(done),
        "slower at the end": sum(row["slower"] for row in done),
        "median speed-up": median(row["speed-up"] for row in done),
    }
    targets: dict[str, frame.Target] = {
        "profiles that finished": ("==", len(rows)),
        "slower at the end": ("==", 0),
    }
    waiting = [row["speed-up"] for row in done if row["bound"] == "waiting"]
    if waiting:
        figures["least speed-up of those that wait"] = min(waiting)
        targets["least speed-up of those that wait"] = (">=", 2)
    decoding = [row for row in done if row["bound"] == "decoding"]
    if decoding:
        figures[SHARE] = min(share_of(row, CORES) for row in decoding)
        figures[f"{SHARE}, of those left by others"] = min(share_of(row, row["cores"]) for row in decoding)
        targets[SHARE] = (">=", 0.8)
    figures |= {
        "least speed-up / by hand": min(row["speed-up"] / row["by hand"] for row in done),
        "more than 5 % behind by hand": sum(row["speed-up"] < row["by hand"] / SLOWER for row in done),
        "median seconds of a profile": median(row["profile s"] for row in done),
        "most seconds of a profile": max(row["profile s"] for row in done),
        "profiles / planned training": sum(row["profile s"] for row in done) / (TRAINING_S * len(done)),
        "most contention": max(row["contention"] for row in done),
    }
    for row in done:
        figures[f"{row['pipeline']} ({row['bound']}): speed-up"] = row["speed-up"]
        figures[f"{row['pipeline']} ({row['bound']}): by hand"] = row["by hand"]
    return figures | {"total s": total_s}, targets


def share_of(row: dict[str, Any], cores: float) -> float:
    """The speed-up / what so many cores allow."""
    return float(row["speed-up"] * row["cpu ms"] / cores / row["update ms"])


def shown(row: dict[str, Any]) -> dict[str, object]:
    """A row as the table has it."""
    if not row["finished"]:
        return {"pipeline": row["pipeline"], "bound": row["error"], **dict.fromkeys(COLUMNS, "")}
    return {"pipeline": row["pipeline"], "bound": row["bound"], **{key: row[key] for key in COLUMNS}}


COLUMNS = (
    "load share",
    "kept",
    "update ms",
    "cpu ms",
    "speed-up",
    "by hand",
    "hand way",
    "cores",
    "cores allow",
    "profile s",
    "of training",
    "contention",
)


def held(name: str, home: Path) -> dict[str, Any]:
    """The row of a pipeline, from a process of its own."""
    fork = get_context("fork")
    here, there = fork.Pipe(duplex=False)
    process = fork.Process(target=tell, args=(there, name, home / str(NAMES.index(name))))
    process.start()
    there.close()
    row: dict[str, Any] = {"error": f"nothing within {LIMIT_S:g} s"}
    try:
        if here.poll(LIMIT_S):
            row = here.recv()
    except EOFError:
        row = {"error": "died"}
    process.kill()
    process.join()
    return {"pipeline": name, "finished": "error" not in row, **row}


def tell(to: Connection, name: str, folder: Path) -> None:
    """Profile and time a pipeline in a folder of its own, and send its row or its error."""
    warnings.simplefilter("ignore")  # deterministic algorithms that an operator does not have
    folder.mkdir()
    os.chdir(folder)
    ARRAYS.mkdir(parents=True)
    try:
        PIPELINES[name].write(ARRAYS)
        roofline.ceilings(Home.here(), ARRAYS)
        to.send(row_of(name))
    except Exception as error:  # noqa: BLE001  # told as the pipeline's row
        traceback.print_exc()
        to.send({"error": f"{type(error).__name__}: {error}"})


def row_of(name: str) -> dict[str, Any]:
    """What the profile of a pipeline came to, and what that is worth."""
    job = Timed(name)
    update_s, cpu_s, busy = job.costs()
    training = TrainParams(
        batch_size=job.batch_size,
        epochs=TRAINING_S / update_s * job.batch_size / len(job.data),
        rate=RATE,
    )
    size = job.batch_size
    params = ProfileParams(batch_sizes=(size // 4, size // 2, size, 2 * size))
    dataset = Dataset(
        digest=name,
        num_samples=len(job.data),
        num_bytes=1,
        first_day=date(2026, 1, 1),
        last_day=date(2026, 6, 30),
    )
    begin = time.perf_counter()
    profile = profiler.profile(Home.here(), dataset, Piped(name), params, training)
    profile_s = time.perf_counter() - begin
    with contention.measured() as seen:
        seconds, cores = job.in_turn(profile.tuning, update_s)
    ratios = {
        way: [old / new for old, new in zip(seconds["initial"], each, strict=True)]
        for way, each in seconds.items()
    }
    by_hand = max((way for way in ratios if way not in ("initial", "final")), key=lambda w: median(ratios[w]))
    slowdowns = [1 / ratio for ratio in ratios.get("final", [1.0])]
    began_s = median(seconds["initial"]) / job.num_updates(update_s)
    return {
        **evidence(profile, busy),
        "kept": ", ".join(kept(profile.tuning)) or "-",
        "update ms": 1e3 * began_s,
        "cpu ms": 1e3 * cpu_s,
        "speed-up": 1 / median(slowdowns),
        "slower": median(slowdowns) > SLOWER and bounds(slowdowns)[0] > 1,
        "by hand": median(ratios[by_hand]),
        "hand way": by_hand,
        "cores": cores,
        "cores allow": began_s / (cpu_s / CORES),
        "profile s": profile_s,
        "of training": profile_s / TRAINING_S,
        "contention": max(seen.share, profile.evidence["contention"]),
        "tried": {each.name: each.note for each in profile.remedies if each.applies and not each.quality},
    }


def evidence(profile: Profile, busy: float) -> dict[str, Any]:
    """What the profile measured of loading, and what binds the pipeline by that and by `busy`."""
    share, parsing = profile.evidence["load_share"], profile.evidence["symptoms"]["io_parsing_share"]
    bound = "step" if share <= 0.5 else "decoding" if busy > 0.5 else "waiting"
    return {
        "bound": bound,
        "verdict": profile.bound,
        "load share": share,
        "load busy": busy,
        "profile's busy": parsing / share if share else 0.0,
    }


def kept(tuning: Tuning) -> Iterator[str]:
    """What a tuning changes, in words."""
    if tuning.num_loaders:
        yield f"{tuning.num_loaders} {'processes' if tuning.loader_processes else 'threads'}"
    if tuning.precision != "float32":
        yield tuning.precision
    for name in ("in_memory", "compiled", "fused", "channels_last", "recompute"):
        if getattr(tuning, name):
            yield name.replace("_", " ")


@dataclass
class Timed:
    """A pipeline, and the ways to train it."""

    name: str

    def __post_init__(self) -> None:
        self.workload = Piped(self.name)
        self.batch_size = self.workload.pipeline.batch_size
        self.data = self.workload.dataset(ARRAYS, "train")

    def costs(self) -> tuple[float, float, float]:
        """Medians of a plain loop: seconds of an update, of processor, and how busy it is in loading."""
        update, rows = self.plain_update(), []
        begin = time.perf_counter()
        for number, part in enumerate(self.parts(UPDATES[1], seed=2)):
            if number > UPDATES[0] and time.perf_counter() - begin > RUN_S:
                break
            before = clocks()
            batch = read(self.data, part)
            loaded = clocks()
            update(batch)
            whole, load = clocks() - before, loaded - before
            rows.append((whole[0], whole[1], load[1] / max(load[0] - load[2], load[1])))
        seconds, busy_s, load_busy = np.median(rows[2:], axis=0).tolist()
        return seconds, busy_s, load_busy

    def num_updates(self, update_s: float) -> int:
        """Updates of a run."""
        return min(max(UPDATES[0], ceil(RUN_S / update_s)), UPDATES[1])

    def parts(self, number: int, *, seed: int) -> list[np.ndarray]:
        """Batches of samples."""
        random = np.random.default_rng(seed)
        return [random.integers(len(self.data), size=self.batch_size) for _ in range(number)]

    def in_turn(self, tuning: Tuning, update_s: float) -> tuple[dict[str, list[float]], float]:
        """Seconds of the same updates by each way, in turn, and the cores that were to be had."""
        parts = self.parts(self.num_updates(update_s), seed=1)
        with ExitStack() as stack:
            pool = stack.enter_context(ProcessPoolExecutor(CORES, get_context("fork")))
            list(pool.map(busy_share, [0.0] * CORES))  # forked before there are other threads
            ways: dict[str, Way] = {"initial": self.engine(Tuning(), parts, stack)}
            if tuning != Tuning():
                ways["final"] = self.engine(tuning, parts, stack)
            ways["workers"] = self.by_workers(parts)
            if self.fits(parts[0]):
                ways["memory"] = self.from_memory(parts)
            for way in ways.values():
                way()  # allocations, compilation, workers, and samples that are kept from their first time on
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            order, cores = list(ways), []
            for pair in range(PAIRS):
                for name in order[:: -1 if pair % 2 else 1]:
                    seconds[name].append(ways[name]())
                cores.append(sum(pool.map(busy_share, [BURN_S] * CORES)))
        return seconds, median(cores)

    def engine(self, tuning: Tuning, parts: list[np.ndarray], stack: ExitStack) -> Way:
        """The updates as the trainer takes them."""
        engine = TorchEngine(
            self.workload, self.data, seed=0, micro_batch_size=self.batch_size, tuning=tuning
        )
        stack.enter_context(closing(engine))
        ahead = max(1, tuning.num_loaders)

        def seconds() -> float:
            torch.use_deterministic_algorithms(True, warn_only=True)
            begin = time.perf_counter()
            for number, part in enumerate(parts):
                for later in parts[:ahead] if number == 0 else ():
                    engine.prepare(later)
                for later in parts[number + ahead : number + ahead + 1]:
                    engine.prepare(later)
                engine.step(part, batch_size=len(part), rate=RATE, signals=Signals())
            return time.perf_counter() - begin

        return seconds

    def by_workers(self, parts: list[np.ndarray]) -> Way:
        """The updates as somebody writes them, over torch's DataLoader."""
        whole = hasattr(self.data, "__getitems__")
        loader = DataLoader(
            self.data,
            batch_sampler=[part.tolist() for part in parts],
            num_workers=CORES,
            persistent_workers=True,
            prefetch_factor=2,
            collate_fn=as_it_is if whole else None,
        )
        return self.plain(loader)

    def from_memory(self, parts: list[np.ndarray]) -> Way:
        """The same over samples that were read before, gathered by the batch."""
        samples, places = np.unique(np.concatenate(parts), return_inverse=True)
        columns = read(self.data, samples)
        rows = torch.from_numpy(places).view(len(parts), -1)
        batches = Gathered(columns, rows)
        return self.plain(batches)

    def fits(self, part: np.ndarray) -> bool:
        """Whether all samples fit the memory and come out the same each time."""
        one, other = list(tensors(read(self.data, part))), list(tensors(read(self.data, part)))
        num_bytes = sum(each.nbytes for each in one) / len(part) * len(self.data)
        same = all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        return same and num_bytes <= MEMORY_SHARE * this_machine.installed_bytes()

    def plain(self, batches: Iterable[Any]) -> Way:
        """The updates of a plain loop over batches."""
        update = self.plain_update()

        def seconds() -> float:
            torch.use_deterministic_algorithms(False)
            begin = time.perf_counter()
            for batch in batches:
                update(batch)
            return time.perf_counter() - begin

        return seconds

    def plain_update(self) -> Callable[[Any], None]:
        """An update on a batch, of a new model."""
        torch.manual_seed(0)
        model = self.workload.model()
        model.train()
        optimizer = self.workload.optimizer(model.parameters())

        def update(batch: Any) -> None:
            optimizer.zero_grad()
            self.workload.loss(model, batch).mean().backward()
            optimizer.step()

        return update


@dataclass(frozen=True)
class Gathered:
    """Batches of columns that are in memory."""

    columns: Any
    rows: torch.Tensor

    def __iter__(self) -> Iterator[Any]:
        for rows in self.rows:
            yield leaves(self.columns, lambda column, rows=rows: column.index_select(0, rows))


def clocks() -> Any:
    """Seconds so far: of the clock, of processor, and those that this thread waited for a core."""
    waited_ns = SCHEDSTAT.read_text().split()[1] if SCHEDSTAT.exists() else 0
    return np.array([time.perf_counter(), time.process_time(), int(waited_ns) / 1e9])


def busy_share(seconds: float) -> float:
    """The share of a core that a process gets that never waits."""
    begin, busy_s = time.perf_counter(), time.process_time()
    while (took_s := time.perf_counter() - begin) < seconds:
        pass
    return (time.process_time() - busy_s) / took_s if seconds else 0.0


def as_it_is(batch: Any) -> Any:
    """A batch that the data set made itself."""
    return batch


if __name__ == "__main__":
    main()
