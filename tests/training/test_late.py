"""A job that cannot be done in time, or whose money ends, leaves a model as good as that allows."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

from daybreak.backends.local import Local
from daybreak.contract.backend import Job
from daybreak.contract.record_parts import Rental
from daybreak.contract.record_types import Night, Training
from daybreak.contract.records import replace_text
from daybreak.jobs.reconciler import GRACE_S
from daybreak.training.recipe import END_BY
from tests.fakes import read_lines
from tests.training import nights

pytestmark = pytest.mark.slow


@dataclass
class Late:
    """A job of more samples than its night has time for."""

    night: Night
    training: Training
    ended_at: datetime  # the job, with its model
    job: Path
    weights: dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def surroundings() -> Iterator[None]:
    with nights.surroundings():
        yield


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Late:
    with nights.surroundings():
        nights.lay_out(tmp_path_factory.mktemp("late"))
        night = nights.night(seconds=max(45, 30 * nights.start_s()))
        training = nights.train(
            night, nights.make_params(delay_s=0.015), by_plan=nights.plan(num_samples=10**6)
        )
        (job,) = (path for path in Path("data/work/jobs").absolute().iterdir() if path.is_dir())
        ended_at = datetime.fromtimestamp((job / "result.json").stat().st_mtime, UTC)
        return Late(night, training, ended_at, job, nights.weights())


def run_directly(folder: Path, *, meanwhile: Callable[[], None]) -> None:
    """The job in `folder`, until it ends."""
    backend = Local()
    handle = backend.submit(
        Job(
            name="j",
            module="daybreak.training.worker",
            arguments=(str(folder),),
            num_workers=1,
            rental=Rental(machine="local"),
            folder=str(folder),
            timeout_s=600,
            environment={"OMP_NUM_THREADS": "1"},
        )
    )
    while backend.state(handle) == "running":
        meanwhile()
        time.sleep(0.02)


def test_a_job_that_would_be_late_ends_before_the_deadline_with_a_model(late):
    assert late.training.stopped_by == "deadline"
    assert 0 < late.training.num_samples < 10**6
    assert sum(epoch.num_samples for epoch in late.training.epochs) == late.training.num_samples
    assert (late.ended_at - late.night.train_until).total_seconds() < GRACE_S  # 0 where a core is free
    rates = [line["rate"] for line in read_lines(late.job / "progress.jsonl")]
    assert rates[-1] < 0.1 * max(rates)
    assert late.weights


def test_a_job_that_is_told_of_a_nearer_end_lets_the_rate_decay_to_be_done_by_then(tmp_path, late):
    nights.lay_out(tmp_path)
    job = tmp_path / "job"
    job.mkdir()
    nearer = json.loads((late.job / "job.json").read_text())
    nearer["train_until"] = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    (job / "job.json").write_text(json.dumps(nearer))

    def poor() -> None:
        if (job / "progress.jsonl").exists() and not (job / END_BY).exists():
            replace_text(job / END_BY, json.dumps({"time": time.time() + 6}))

    run_directly(job, meanwhile=poor)
    result = json.loads((job / "result.json").read_text())
    assert result["stopped_by"] == "budget"
    assert 0 < result["num_samples"] < 10**6
    beats = read_lines(job / "progress.jsonl")
    assert beats[0]["end"] == 10**6
    assert beats[-1]["end"] == result["num_samples"]
    assert beats[-1]["rate"] < 0.25 * max(beat["rate"] for beat in beats)
