"""Thirty training loops as teams write them: is each the same after kills, on two workers, and by hand?

Each loop (loops_over_*.py, loops_of_packages.py) trains for 100 updates with the keys of `train` that it
names, by real workers, forked from a process that has imported torch. (In update 101, a pass is halved to
measure the noise of gradients, and draws other numbers.) What docs/train.md and
docs/own-data.md promise is asked of each:

- a job that is killed at three random moments, each time all of its workers, ends with the weights of one
  left alone, bit by bit: on one worker, and on two
- two workers end with the weights of one, up to rounding, which is seen in double precision: in float32, a
  weight whose gradient is 0 but for rounding takes steps of full length by Adam or Adagrad, as a bias of the
  keys of attention does. Loops that draw numbers at random, or take statistics of BatchNorm, end with weights
  of their own, and a class that one worker alone can train is refused
- the audit proves that every sample came once an epoch, or as often as its weight says, the same after kills
- the weights of one worker are those of a plain loop in torch, with torch's own schedulers, clipping,
  averages and scaler, which takes the same batches and is seeded alike

The difference of two sets of weights is the largest over all tensors of max |a - b| / max |b|, where max |b|
is taken as 1e-3 at least. QUICK=1 takes every fifth loop.
"""

import math
import os
import random
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from benchmarks import frame, loops_of_packages, loops_over_images, loops_over_tables, loops_over_text
from benchmarks.loop import BATCH, EPOCHS, NUM_SAMPLES
from daybreak.contract import params
from daybreak.contract.workload import TrainingProgress, is_over_batch, loss_of, make_model
from daybreak.training.generators import Generators, seed_all
from daybreak.training.recipe import Averaging, Recipe, course
from daybreak.training.sampling import SampleOrder, Sampling
from daybreak.training.tuning import new_optimizers, read
from tests.training import nights
from tests.training.forked import Job, Seen, Strikes, started

LOOPS: tuple[Any, ...] = (
    loops_over_text.LanguageModel,
    loops_over_text.MatricesByMuon,
    loops_over_text.MaskedWords,
    loops_over_text.Translation,
    loops_over_text.RaggedLists,
    loops_over_text.Waves,
    loops_over_text.NearWords,
    loops_over_images.ResidualNet,
    loops_over_images.MixedPictures,
    loops_over_images.Adversaries,
    loops_over_images.Diffusion,
    loops_over_images.Contrasts,
    loops_over_images.QueueOfKeys,
    loops_over_images.Halves,
    loops_over_images.CompiledNet,
    loops_over_images.Segmentation,
    loops_over_images.ThawedLayers,
    loops_over_images.Distillation,
    loops_over_images.FollowedTarget,
    loops_over_tables.SparseTables,
    loops_over_tables.TwoTowers,
    loops_over_tables.PairsByChance,
    loops_over_tables.RankedLists,
    loops_over_tables.SeveralLabels,
    loops_over_tables.Quantiles,
    loops_over_tables.OwnOptimizer,
    loops_over_tables.HardSamples,
    loops_of_packages.OfLightning,
    loops_of_packages.OfTransformers,
    loops_of_packages.LowRanks,
)
KILLS, EVERY_S, SEED = 3, 0.03, 0
ROUNDING, BY_HAND = 1e-6, 1e-6
SMALL = 1e-3  # tensors of less are compared as if they had this
Weights = dict[str, Tensor]


@dataclass
class Row:
    """The result of a loop for each promise; None where nothing is promised."""

    loop: str
    kills: int
    from_checkpoints: int
    equal: bool
    on_two: str
    equal_on_two: bool | None
    apart_on_two: float | None
    samples: bool
    by_hand: float | None


def main() -> None:
    """Train each loop in all of these ways."""
    torch.set_num_threads(1)  # threads would not survive the fork
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # the first one imports the compiler
    rows = []
    with nights.surroundings(), tempfile.TemporaryDirectory(prefix="daybreak-") as folder:
        for loop in LOOPS[::5] if frame.QUICK else LOOPS:
            rows.append(tried(loop, Path(folder) / loop.__name__))
            print(rows[-1], flush=True)
    frame.table([shown(row) for row in rows])
    on_two = [row.apart_on_two for row in rows if row.apart_on_two is not None]
    by_hand = [row.by_hand for row in rows if row.by_hand is not None]
    figures = {
        "loops": len(rows),
        "kills": sum(row.kills for row in rows),
        "starts from a checkpoint": sum(row.from_checkpoints for row in rows),
        "not bit-equal after kills": sum(not row.equal for row in rows),
        "on two workers": sum(row.equal_on_two is not None for row in rows),
        "on two workers, not bit-equal after kills": sum(row.equal_on_two is False for row in rows),
        "on two workers, compared with one": len(on_two),
        "on two workers, largest difference from one": max(on_two),
        "neither trained nor refused on two workers": sum(row.on_two == "NO" for row in rows),
        "samples not as due": sum(not row.samples for row in rows),
        "by hand": len(by_hand),
        "largest difference from a loop by hand": max(by_hand),
    }
    none = [key for key in figures if "not" in key or "neither" in key]
    frame.finish(
        "loops",
        figures,
        {key: ("==", 0.0) for key in none}
        | {
            "on two workers, largest difference from one": ("<=", ROUNDING),
            "largest difference from a loop by hand": ("<=", BY_HAND),
        },
    )


def shown(row: Row) -> dict[str, object]:
    """A row of the table."""

    def kept(is_so: bool | None) -> str:
        return "" if is_so is None else "yes" if is_so else "NO"

    return {
        "loop": row.loop,
        "kills": row.kills,
        "resumed": row.from_checkpoints,
        "bit-equal": kept(row.equal),
        "two workers": row.on_two,
        "bit-equal on two": kept(row.equal_on_two),
        "from one": "" if row.apart_on_two is None else f"{row.apart_on_two:.1e}",
        "samples": kept(row.samples),
        "by hand": "" if row.by_hand is None else f"{row.by_hand:.1e}",
    }


def tried(loop: Any, folder: Path) -> Row:
    """What a loop keeps."""
    made, seen = recipe_of(loop), Seen()
    alone, took_s = left_alone(folder / "alone", made, world_size=1)
    again = killed(folder / "killed", made, world_size=1, took_s=took_s, seen=seen)
    equal_on_two = apart_on_two = None
    samples = epochs(alone) == epochs(again) == due(made)
    if loop.workers == "refused":
        on_two = "refused" if is_refused(folder / "two", made) else "NO"
    else:
        two, took_s = left_alone(folder / "two", made, world_size=2)
        two_again = killed(folder / "two-killed", made, world_size=2, took_s=took_s, seen=seen)
        on_two, equal_on_two = loop.workers, same(weights(two), weights(two_again))
        samples = samples and epochs(two) == epochs(two_again) == epochs(alone)
        if loop.workers == "alike":
            double = recipe_of(loop, is_double=True)
            jobs = [left_alone(folder / f"double-{size}", double, world_size=size)[0] for size in (1, 2)]
            apart_on_two = apart(*map(weights, jobs))
    own = by_hand(loop, made) if not made.validation.num_samples else None
    return Row(
        loop=loop.__name__,
        kills=seen.kills,
        from_checkpoints=seen.resumed,
        equal=same(weights(alone), weights(again)),
        on_two=on_two,
        equal_on_two=equal_on_two,
        apart_on_two=apart_on_two,
        samples=samples,
        by_hand=apart(weights(alone), own) if own else None,
    )


def recipe_of(loop: Any, **arguments: bool) -> Recipe:
    """The job of a night whose params.yaml has the keys of a loop."""
    given = params.check(
        {
            "source": "tests.fakes:TwoDays",
            "workload": {"use": f"{loop.__module__}:{loop.__name__}", **arguments},
            "backend": "daybreak:Local",
            "train": {
                "rate": loop.rate,
                "batch_size": BATCH,
                "epochs": EPOCHS,
                "checkpoint_every_s": EVERY_S,
                "seed": SEED,
                **loop.train,
            },
        }
    )
    night, dataset = nights.night(seconds=3600), replace(nights.dataset(), num_samples=NUM_SAMPLES)
    plan = replace(
        nights.plan(num_samples=course(night, dataset, None, given.workload, given.train).num_samples),
        batch_size=BATCH,
        micro_batch_size=loop.pass_size,
        tuning=loop.tuning,
    )
    return nights.recipe_of(night, dataset, plan, None, given)


def left_alone(folder: Path, made: Recipe, *, world_size: int) -> tuple[Job, float]:
    """A job that nothing happens to, and the seconds from its first checkpoint to its end."""
    job = Job(folder, made, seen=Seen())
    job.start(world_size)
    if not job.result:
        raise RuntimeError(f"{made.workload} on {world_size}: {output(job)}")
    saved_at = min(started(job.log.read_text(), 0.0).there.values())
    return job, (folder / "result.json").stat().st_mtime - saved_at


def killed(folder: Path, made: Recipe, *, world_size: int, took_s: float, seen: Seen) -> Job:
    """Returns a job after kills of all its workers at random moments, and an end without any.

    The first of them is soon after the start, later ones after a checkpoint of the start. A job that ends
    before is begun again, with shorter waits.
    """
    draw = random.Random(f"{made.workload} {world_size}")
    for attempt in range(10):
        own = Seen()
        job = Job(folder / str(attempt), made, seen=own)
        while own.kills < KILLS and not job.result:
            before = own.kills
            job.start(world_size, after(draw.uniform(0, took_s / KILLS), is_saved=before > 0))
            if own.kills == before and not job.result:
                raise RuntimeError(f"{made.workload} on {world_size}: {output(job)}")
        if own.kills == KILLS:
            job.start(world_size)
            if not job.result:
                raise RuntimeError(f"{made.workload} on {world_size}, after kills: {output(job)}")
            seen.kills, seen.resumed = seen.kills + own.kills, seen.resumed + own.resumed
            return job
        took_s /= 2
    raise RuntimeError(f"{made.workload} on {world_size} ended each time before it was killed {KILLS} times")


def after(wait_s: float, *, is_saved: bool) -> Strikes:
    """Kills all workers so long after they have begun to train, or have saved."""
    since: list[float] = []

    def strike(job: Job, workers: list[int]) -> bool:
        if not since and (is_new(job) if is_saved else job.trains):
            since.append(time.monotonic())
        if not since or time.monotonic() < since[0] + wait_s:
            return False
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        return True

    return strike


def is_new(job: Job) -> bool:
    """Whether there is a checkpoint that its workers have not begun from."""
    return any(int(path.name[5:]) > job.due for path in job.checkpoints.glob("seen=*"))


def is_refused(folder: Path, made: Recipe) -> bool:
    """Whether two workers say that the class is of one."""
    job = Job(folder, made, seen=Seen())
    job.start(2)
    text = (job.folder / "output.log").read_text()
    return not job.result and "is of one worker, and 2 train by" in text


def output(job: Job) -> str:
    """The last words of the workers of a job."""
    return (job.folder / "output.log").read_text()[-2000:]


def weights(job: Job) -> Weights:
    """The weights that a job ends with."""
    return load_file(job.folder / "model/model.safetensors")


def epochs(job: Job) -> list[tuple[int, bool]]:
    """Samples of each epoch that the audit has proven, and whether it is whole."""
    assert job.result
    return [(each["num_samples"], each["whole"]) for each in job.result["epochs"]]


def due(made: Recipe) -> list[tuple[int, bool]]:
    """The same as it should be."""
    size = NUM_SAMPLES - made.validation.num_samples
    whole, rest = divmod(made.num_samples, size)
    return [(size, True)] * whole + [(rest, False)] * bool(rest)


def same(one: Weights, other: Weights) -> bool:
    """Whether all bits are equal."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def apart(one: Weights, other: Weights) -> float:
    """The largest difference of a number, as a share of the largest number of its tensor, or of SMALL."""
    if one.keys() != other.keys():
        return math.inf
    shares = [
        float((one[name] - each).abs().max() / each.abs().max().clamp(min=SMALL))
        for name, each in other.items()
        if each.is_floating_point()
    ]
    return max(shares) if all(map(math.isfinite, shares)) else math.inf


def by_hand(loop: Any, made: Recipe) -> Weights:
    """The weights of a plain loop, in a process of its own, as threads of torch would not survive a fork."""
    with get_context("fork").Pool(1) as pool:
        return {name: torch.as_tensor(each) for name, each in pool.apply(plain, (loop, made)).items()}


def plain(loop: Any, made: Recipe) -> dict[str, np.ndarray]:
    """Trains a loop as its team would without Daybreak."""
    torch.sparse.check_sparse_tensor_invariants.disable()  # which torch wants to be told
    warnings.filterwarnings("ignore", "Detected call of")  # a scheduler beside an optimizer that waits
    seed_all(SEED)
    workload = loop()
    data = workload.dataset(Path(), "train")
    model = make_model(workload, {})
    if hasattr(workload, "first_weights"):
        workload.first_weights(model)
    if made.tuning.compiled:
        model.compile()
    optimizers = new_optimizers(workload, model)
    batches = list(batches_of(data, made))
    if hasattr(workload, "know_run"):
        workload.know_run(num_updates=len(batches), num_epochs=EPOCHS)
    done = [(position + len(samples) / 2) / made.num_samples for position, samples in batches]
    schedulers = [workload.scheduler(each, done=done) for each in optimizers.values()]
    scaler = torch.amp.GradScaler("cpu", enabled=made.tuning.precision == "float16")
    average = AveragedModel(model, use_buffers=True)
    first_averaged = math.floor((1 - made.averaging.last) * len(batches))
    draws = Generators(seed=SEED, rank=0, world_size=1, device=torch.device("cpu"))
    draws.draws = True  # which a worker notices by itself
    for number, (position, samples) in enumerate(batches):
        draws.begin(number)
        progress = progress_of(number, position, made)
        if hasattr(workload, "trainable"):
            workload.trainable(model, progress)
        model.zero_grad()
        stepping = set(optimizers)
        for part in passes(workload, samples, made.micro_batch_size):
            with torch.autocast("cpu", torch.float16) if scaler.is_enabled() else nullcontext():
                losses = loss_of(workload, progress=progress)(model, read(data, part))
            backward(losses, optimizers, scaler, num_samples=len(samples))
            stepping = set(losses) if isinstance(losses, dict) else stepping
        step([each for name, each in optimizers.items() if name in stepping], scaler, workload, made)
        for scheduler in filter(None, schedulers):
            scheduler.step()
        count = number - (first_averaged if made.averaging.last else 0)
        if count >= 0:
            average.multi_avg_fn = get_ema_multi_avg_fn(min(made.averaging.ema or 1.0, 1 - 1 / (count + 1)))
            average.update_parameters(model)
    ended = model if made.averaging == Averaging() else average.module
    return {name: each.detach().numpy() for name, each in ended.state_dict().items()}


def batches_of(data: Any, made: Recipe) -> Iterator[tuple[int, Any]]:
    """The position and the samples of each batch."""
    order = SampleOrder(
        seed=SEED,
        num_samples=NUM_SAMPLES,
        sampling=Sampling.of(data),
        batch_size=BATCH,
        by_tokens=made.batch_by == "tokens",
    )
    position = 0
    while position < made.num_samples:
        size = order.batch_at(position) if order.batch_at else BATCH
        end = min(position + size, made.num_samples)
        yield position, order.samples(position, end)
        position = end


def progress_of(number: int, position: int, made: Recipe) -> TrainingProgress:
    """What a loss may ask for in an update."""
    return TrainingProgress(
        seen=position,
        done=position / made.num_samples,
        epoch=position // NUM_SAMPLES,
        update=number,
        generator=torch.default_generator,
    )


def passes(workload: Any, samples: Any, size: int) -> list[Any]:
    """The parts of a batch that are taken by themselves; of a loss over a batch, all of it."""
    if is_over_batch(workload):
        return [samples]
    return [samples[start : start + size] for start in range(0, len(samples), size)]


def backward(losses: Any, optimizers: Any, scaler: Any, *, num_samples: int) -> None:
    """Adds the gradients of a pass: one loss reaches all weights, each of several those of an optimizer."""
    if not isinstance(losses, dict):
        scaler.scale(losses.sum() / num_samples).backward()
        return
    for name, each in losses.items():
        (each.sum() / num_samples).backward(inputs=weights_of(optimizers[name]), retain_graph=True)


def step(optimizers: Sequence[Optimizer], scaler: Any, workload: Any, made: Recipe) -> None:
    """Clips the gradients of these optimizers, and steps them."""
    for each in optimizers:
        scaler.unscale_(each)
    owned = [weight for each in optimizers for weight in weights_of(each)]
    if norm := made.clipping.norm or getattr(workload, "clip_norm", 0.0):
        nn.utils.clip_grad_norm_(owned, norm)
    if made.clipping.value:
        nn.utils.clip_grad_value_(owned, made.clipping.value)
    for each in optimizers:
        scaler.step(each)
    scaler.update()


def weights_of(optimizer: Optimizer) -> list[Tensor]:
    """The weights that an optimizer changes."""
    return [weight for group in optimizer.param_groups for weight in group["params"]]


if __name__ == "__main__":
    main()
