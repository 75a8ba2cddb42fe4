"""A small night to train in: records, params and arrays in the current folder."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from daybreak.backends.local import Local
from daybreak.contract import params, records
from daybreak.contract.errors import NotYet
from daybreak.contract.record_parts import JobForecast, PlanReasons, Rental, Tuning
from daybreak.contract.record_types import Champion, Dataset, Night, Plan, Training
from daybreak.contract.sections import Params
from daybreak.jobs import collector, launcher
from daybreak.jobs.cost_tracker import JOBS
from daybreak.storage.home import Home
from daybreak.training.recipe import Recipe
from tests.fakes import write_curve
from tests.minimal_records import minimal_night

ROOT = Path(__file__).parents[2]


def night(
    *, seconds: float = 600, day: date = date(2026, 1, 2), name: str = "n", budget_usd: float = 50
) -> Night:
    now = datetime.now(UTC)
    return minimal_night(
        now,
        id=name,
        day=day,
        train_until=now + timedelta(seconds=seconds),
        decide_until=now + timedelta(seconds=seconds + 60),
        budget_usd=budget_usd,
        code_commit="c",
    )


def dataset() -> Dataset:
    day = date(2026, 1, 1)
    return Dataset(digest="d", num_samples=1000, num_bytes=8000, first_day=day, last_day=day)


def plan(*, num_samples: int = 3001, checkpoint_every_s: float = 0.2) -> Plan:
    return Plan(
        rental=Rental(machine="local"),
        batch_size=32,
        micro_batch_size=16,
        num_samples=num_samples,
        checkpoint_every_s=checkpoint_every_s,
        fallbacks=(),
        tuning=Tuning(num_loaders=1),
        forecast=JobForecast(expected_s=10, expected_usd=0.01, interval=(5, 15)),
        reasons=PlanReasons(runner_up=""),
    )


def make_params(
    *,
    num_workers: int = 1,
    cold_every: int = 7,
    checkpoint_every_s: float | None = 0.2,
    hang_after_s: float = 120.0,
    **arguments: Any,
) -> Params:
    return params.check(
        {
            "source": "tests.fakes:TwoDays",
            "workload": {"use": "tests.fakes:LineWorkload", **arguments},
            "backend": "daybreak:Local",
            "train": {
                "num_workers": num_workers,
                "cold_every": cold_every,
                "rate": 0.01,
                "checkpoint_every_s": checkpoint_every_s,
                "hang_after_s": hang_after_s,
            },
        }
    )


def sections(given: Params) -> dict[str, Any]:
    """The sections that the launcher takes."""
    return {"workload": given.workload, "train": given.train, "limits": given.plan}


def recipe_of(night: Night, dataset: Dataset, plan: Plan, champion: Champion | None, given: Params) -> Recipe:
    """The recipe of a night's job by params."""
    return launcher.recipe_of(night, dataset, plan, champion, workload=given.workload, train=given.train)


def start_s() -> float:
    """Returns the seconds in which a process of a job imports its modules, on a machine as busy as now."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import daybreak.training.worker"], cwd=ROOT, check=True)
    return time.monotonic() - began


@contextmanager
def surroundings() -> Iterator[None]:
    """Jobs find this checkout and no MLflow; afterwards the current folder is what it was."""
    with patch.dict(os.environ, PYTHONPATH=str(ROOT), MLFLOW_TRACKING_URI=""), chdir(Path.cwd()):
        yield


def lay_out(folder: Path) -> None:
    """Make `folder` a night's folder, and step into it."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    write_curve(Path("data/arrays"), num_samples=1000)


def train(
    given: Night,
    with_params: Params,
    *,
    champion: Champion | None = None,
    between: Callable[[Path], None] = lambda job: None,
    by_plan: Plan | None = None,
    timeout_s: float = 600,
) -> Training:
    """Ask until it is done; `between` the asks something may happen to the job's folder."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            return launcher.train(
                Home(Path.cwd()),
                given,
                dataset(),
                by_plan or plan(),
                champion,
                backend=Local(),
                **sections(with_params),
            )
        except NotYet:
            assert time.monotonic() < until, "training did not come to an end"
        (folder,) = (path for path in JOBS.iterdir() if path.is_dir())
        between(folder)
        time.sleep(0.05)


def weights(folder: Path = collector.MODEL) -> Any:
    from safetensors.torch import load_file

    assert records.digest(folder)
    return load_file(folder / "model.safetensors")
