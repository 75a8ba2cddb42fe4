"""Folders of nights as the stages before `evaluate` leave them, around the toy workload."""

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from daybreak.contract import records
from daybreak.contract.record_parts import JobForecast, Live, PlanReasons, Rental, Tuning
from daybreak.contract.record_types import Champion, Dataset, Evaluation, Night, Plan, Training, Version
from daybreak.extensions.live_test.live_test import FOLDER
from daybreak.storage import branch, checkout, mlflow_client
from daybreak.storage.home import Home

OWN = Path(__file__).with_name("own")  # a team's workload: a version carries it, and not all tests
sys.path.insert(0, str(OWN))
PARAMS = """\
source: {use: "tests.fakes:TwoDays"}
workload: {use: "toy:Toy"}
backend: {use: "tests.fakes:ScriptedBackend"}
smoke_test: {samples: 0}
"""
NUM_SAMPLES = 200
FIRST = date(2025, 1, 10)


def make_arrays(folder: Path, day: date, *, num_days: int = 1) -> None:
    """Writes samples with a best weight of 1, equally many on each held-out day until `day`."""
    rng = np.random.default_rng(day.toordinal())
    folder.mkdir(parents=True, exist_ok=True)
    x = rng.random(NUM_SAMPLES, dtype=np.float32)
    np.save(folder / "test_x.npy", x)
    np.save(folder / "test_y.npy", x + rng.normal(0, 0.02, NUM_SAMPLES).astype(np.float32))
    days = [(day - timedelta(days=ago)).isoformat() for ago in reversed(range(num_days))]
    (folder / "meta.json").write_text(json.dumps({"test_days": days}))
    if num_days > 1:
        np.save(folder / "test_day.npy", np.repeat(days, NUM_SAMPLES // num_days))


def make_model(
    folder: Path, weight: float, *, last_day: date, arguments: dict[str, bool] | None = None
) -> str:
    """A model folder; returns its digest."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"weight": torch.tensor([weight])}, folder / "model.safetensors")
    facts = {
        "workload": "toy:Toy",
        "arguments": arguments or {},
        "seen": 1,
        "data_digest": "d",
        "last_day": last_day.isoformat(),
    }
    (folder / "model.json").write_text(json.dumps(facts))
    return records.digest(folder)


def make_night(home: Path, number: int, *, weight: float, champion: Champion | None = None) -> Path:
    """Folder of night `number`, a worktree of the repository, trained to `weight`; records up to Training."""
    day = FIRST + timedelta(days=number)
    folder = home / "nights" / day.isoformat()
    code = checkout.git("rev-parse", "HEAD", folder=home)
    checkout.add_worktree(home, folder, code)
    run = folder / records.RUN
    (folder / "params.yaml").write_text(PARAMS)
    (folder / "dvc.lock").write_text(f"schema: '2.0'\nstages: {{}} # data of night {number}\n")
    make_arrays(folder / "data" / "arrays", day)
    digest = make_model(run / "model", weight, last_day=day - timedelta(days=1))
    started = datetime(2025, 1, 10, 22, tzinfo=UTC) + timedelta(days=number)
    night = Night(
        id=day.isoformat(),
        day=day,
        started_at=started,
        train_until=started + timedelta(hours=1),
        decide_until=started + timedelta(hours=2),
        budget_usd=3,
        trigger="schedule",
        code_commit=code,
        previous=branch.ledger_tip(Home.here()),
    )
    dataset = Dataset(
        digest=f"arrays of {number}",
        num_samples=1000,
        num_bytes=1,
        first_day=FIRST,
        last_day=day - timedelta(1),
    )
    plan = Plan(
        rental=Rental(machine="local"),
        batch_size=8,
        micro_batch_size=8,
        num_samples=1000,
        checkpoint_every_s=10,
        fallbacks=(),
        tuning=Tuning(num_loaders=1),
        forecast=JobForecast(expected_s=20, expected_usd=0.5, interval=(15, 25)),
        reasons=PlanReasons(runner_up="none"),
    )
    training = Training(
        model_digest=digest,
        num_samples=1000,
        num_updates=125,
        num_restarts=0,
        elapsed_s=21,
        cost_usd=0.4,
        stopped_by="finished",
        device="NVIDIA L4",
    )
    for record in (night, dataset, plan, training, *([champion] if champion else [])):
        records.write(record, run)
    if champion:
        source = home / "nights" / champion.night / records.RUN / "model"
        subprocess.run(["cp", "-r", source, folder / "data" / "champion"], check=True)
    return folder


def files_of_version(home: Path, number: int) -> Path:
    """Where the files of a version lie, as whoever writes to MLflow's store sees them."""
    with mlflow_client.session(Home.here()) as client:
        source = str(client.get_model_version("daybreak", str(number)).source)
    return home / "var" / "artifacts" / source.removeprefix("mlflow-artifacts:/")


def make_version(number: int, *, model_digest: str, night: str) -> Version:
    """A version as register returns it."""
    return Version(
        name="daybreak", number=number, night=night, data_digest="d", model_digest=model_digest, run_id="r"
    )


def make_evaluation(model_digest: str, **metrics: float) -> Evaluation:
    """An evaluation as evaluate returns it."""
    return Evaluation(
        model_digest=model_digest,
        data_digest="d",
        num_samples=NUM_SAMPLES,
        slices=(),
        metrics={"score": 0.5, **metrics},
    )


def halfway() -> None:
    """Let half of the test's hours be over, so that a look at its effect is due."""
    if standing := records.find(Live, FOLDER):
        now, hour = datetime.now(UTC), timedelta(hours=1)
        for record, folder in (
            (replace(standing, began_at=now - hour, ends_at=now + hour), FOLDER),
            (replace(records.read(Night, records.RUN), decide_until=now + hour), records.RUN),
        ):
            records.path_of(type(record), folder).write_text(records.dumps(record))
