"""Training that ends early, against training to the end: hours saved, and the quality of what would serve.

The stages before training prepare five held-out days of each example once. Each day is then that of a night,
whose job trains on the days before, for twenty epochs with a rate that falls along a cosine. One job trains
on all of these samples to the end. Another is validated on the newest tenth, which it does not train on, and
ends early, with its rate fallen, where five validations bring nothing better. A third is validated alike, and
trains to the end: what the early end costs is told apart from what the tenth costs. Their models predict the
day, and the example's first metric judges them: the difference is paired by sample, its interval is by unit
and over all nights, and both are shares of the other run's loss. Hours are those of a CPU, as other work may
run beside.

Left out are profile, plan, gate, and warm starts, which are never validated. QUICK=1 takes one night of the
first example.
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import frame
from benchmarks.bench_own import AUTHOR
from daybreak.contract import params, records
from daybreak.contract.record_types import Dataset
from daybreak.contract.workload import ARRAYS, UNIT
from daybreak.evaluation.scoring import ScoredModel, predict
from daybreak.registry.weights import load_model
from daybreak.statistics import paired
from daybreak.training.recipe import course
from tests.training import nights
from tests.training.forked import Job, Seen

DAYS = {"demand": 14, "fraud": 30, "images": 10}  # of history; fraud is known after two weeks
NIGHTS = 1 if frame.QUICK else 5
SETTINGS = ["train.epochs=20", "train.schedule=cosine", f"prepare.test_days={NIGHTS}"]
ARMS: dict[str, dict[str, Any]] = {  # keys of train
    "full": {},
    "validated": {"validation": 0.1},
    "early": {"validation": 0.1, "patience": 5},
}


@dataclass
class Trained:
    """A job that has ended."""

    folder: Path
    cpu_s: float
    num_samples: int
    stopped_by: str


def main() -> None:
    """Train the nights of each example in each way."""
    torch.set_num_threads(1)  # threads would not survive the fork
    figures: dict[str, float] = {}
    for name in list(DAYS)[: 1 if frame.QUICK else None]:
        with tempfile.TemporaryDirectory(prefix="daybreak-") as scratch, inside(made(name, Path(scratch))):
            own = {f"{name}: {key}": value for key, value in compared().items()}
        print(own, flush=True)
        figures |= own
    saved = [value for key, value in figures.items() if key.endswith("CPU s saved")]
    frame.finish("early", figures | {"saved in all h": sum(saved) / 3600}, {})


def made(name: str, scratch: Path) -> Path:
    """The folder of a night of an example, made as its README says, with its samples prepared."""
    home = scratch / name
    readme = frame.ROOT / "pipeline/daybreak/examples" / name / "README.md"
    script = re.findall(r"```sh\n(.*?)```", readme.read_text(), re.S)[0].replace("~/", f"{scratch}/")
    environment = frame.environment(home) | AUTHOR
    subprocess.run(["bash", "-euc", script], cwd=frame.ROOT, env=environment, check=True, capture_output=True)
    sets = frame.sets([*SETTINGS, f"ingest.history_days={DAYS[name]}"])
    frame.pipeline(home, "open", "--night", "one", *sets)
    night = home / "nights/one"
    for stage in ("ingest", "validate", "prepare"):
        words = [sys.executable, "-m", "daybreak", stage]
        subprocess.run(words, cwd=night, env=frame.environment(home), check=True, stdout=subprocess.DEVNULL)
    return night


@contextmanager
def inside(night: Path) -> Iterator[None]:
    """The current folder is a night's, whose modules can be imported."""
    with nights.surroundings():
        os.chdir(night)
        sys.path.insert(0, str(night))
        try:
            yield
        finally:
            sys.path.remove(str(night))


def compared() -> dict[str, float]:
    """Figures of the nights of an example."""
    trained: dict[str, list[Trained]] = {arm: [] for arm in ARMS}
    losses: dict[str, list[Any]] = {arm: [] for arm in ARMS}
    units = []
    for number in range(NIGHTS):
        arrays, dataset = as_of(number)
        for arm, settings in ARMS.items():
            trained[arm].append(
                train(arrays, dataset, settings, folder=Path(f"jobs/{arm}-{number}").absolute())
            )
            loss, unit = judged(arrays, trained[arm][-1].folder / "model")
            losses[arm].append(loss)
        units.append(unit)
        print(number, [each[-1] for each in trained.values()], flush=True)
    whole = {arm: np.concatenate(each) for arm, each in losses.items()}
    cpu_s = {arm: sum(each.cpu_s for each in jobs) for arm, jobs in trained.items()}
    seen = {arm: sum(each.num_samples for each in jobs) for arm, jobs in trained.items()}
    return {
        "nights that ended early": float(sum(each.stopped_by == "validation" for each in trained["early"])),
        "samples trained on, as a share": seen["early"] / seen["full"],
        "full run CPU s": cpu_s["full"],
        "CPU s saved": cpu_s["full"] - cpu_s["early"],
        **above("early", "full", whole, np.concatenate(units)),
        **above("early", "validated", whole, np.concatenate(units)),
    }


def above(arm: str, other: str, losses: dict[str, Any], units: Any) -> dict[str, float]:
    """How far the loss of an arm is above another's, in percent of that, with its interval."""
    values = paired.per_unit(losses[arm] - losses[other], units)
    effect = paired.interval(values, alpha=0.05, horizon=len(values))
    share = 100 / float(losses[other].mean())
    what = f"{arm} above {other}"
    return {
        f"{what} %": share * effect.mean,
        f"{what}, low %": share * effect.low,
        f"{what}, high %": share * effect.high,
    }


def as_of(number: int) -> tuple[Path, Dataset]:
    """The arrays of the night whose held-out day has this number: the days before are trained on."""
    meta = json.loads((ARRAYS / "meta.json").read_text())
    test = meta["test_days"][number]
    sizes = {
        path.parent.name[4:]: len(np.load(path, mmap_mode="r")) for path in ARRAYS.glob("day=*/samples.npy")
    }
    days = sorted(day for day in sizes if meta["first_day"] <= day < test)
    folder = Path(f"arrays-{number}").absolute()
    folder.mkdir()
    for path in ARRAYS.iterdir():
        if path.name != "meta.json":
            (folder / path.name).symlink_to(path.absolute())
    (folder / "meta.json").write_text(json.dumps(meta | {"last_day": days[-1], "test_days": [test]}))
    dataset = Dataset(
        digest=records.digest(ARRAYS),
        num_samples=sum(sizes[day] for day in days),
        num_bytes=0,
        first_day=date.fromisoformat(days[0]),
        last_day=date.fromisoformat(days[-1]),
        num_of_days={day: sizes[day] for day in days},
    )
    return folder, dataset


def train(arrays: Path, dataset: Dataset, keys: dict[str, Any], *, folder: Path) -> Trained:
    """Trains a job by a worker of its own, on one core, with some keys of `train` changed."""
    given = params.load(Path())
    given = given.model_copy(update={"train": given.train.model_copy(update=keys)})
    night = nights.night(seconds=24 * 3600)
    tonight = course(night, dataset, None, given.workload, given.train)
    plan = replace(
        nights.plan(num_samples=tonight.num_samples, checkpoint_every_s=60.0),
        batch_size=given.train.batch_size,
        micro_batch_size=given.train.batch_size,
    )
    recipe = replace(nights.recipe_of(night, dataset, plan, None, given), arrays=str(arrays))
    job, before = Job(folder, recipe, seen=Seen()), resource.getrusage(resource.RUSAGE_CHILDREN)
    job.start(1)
    if not job.result:
        raise RuntimeError((folder / "output.log").read_text())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Trained(
        folder=folder,
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        num_samples=job.result["num_samples"],
        stopped_by=job.result["stopped_by"],
    )


def judged(arrays: Path, model: Path) -> tuple[np.ndarray, np.ndarray]:
    """The first metric of each sample of the held-out day, for which lower is better, and the units."""
    workload = params.load(Path()).workload.make()
    samples = workload.dataset(arrays, "test")
    arm = ScoredModel(
        name="challenger", workload=workload, model=load_model(workload, model), samples=samples
    )
    with torch.inference_mode():
        predicted = predict(arm, batch_size=256)
    metric, label = workload.metrics[0], samples.column(workload.table.label.column)
    assert not metric.higher_is_better
    batch = samples.__getitems__(range(len(samples)))
    units = batch[UNIT].numpy() if UNIT in batch else np.arange(len(samples))
    return metric.values(predicted[metric.prediction], label), units


if __name__ == "__main__":
    main()
