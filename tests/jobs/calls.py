"""Calls of the launcher with a scripted backend, and what a job leaves behind."""

import json
from datetime import timedelta
from pathlib import Path

from daybreak.contract import records
from daybreak.jobs import launcher
from daybreak.jobs.cost_tracker import JOBS
from daybreak.storage.home import Home
from daybreak.training.recipe import Recipe, Result
from daybreak.training.trained_model import write_facts
from tests.training import nights

NIGHT = nights.night(seconds=24 * 3600)


def call(backend, *, night=NIGHT, plan=None, champion=None, params=None, at_s=0.0, awake_s=None):
    """A call so many seconds after the night has begun, of which this machine was awake for `awake_s`."""
    return launcher.look_after(
        Home(Path.cwd()),
        night,
        nights.dataset(),
        plan or nights.plan(),
        champion,
        backend=backend,
        **nights.sections(params or nights.make_params()),
        clock=lambda: night.started_at.timestamp() + at_s,
        awake=None if awake_s is None else lambda: awake_s,
    )


def job_folder() -> Path:
    (path,) = (path for path in JOBS.iterdir() if path.is_dir())
    return path


def finish(path: Path) -> None:
    """Leave what a worker leaves at its end."""
    recipe = records.loads(Recipe, (path / "job.json").read_text())
    model = path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    write_facts(model, recipe, seen=3001)
    result = Result(
        model_digest=records.digest(model),
        num_samples=3001,
        num_updates=94,
        stopped_by="finished",
        warm=False,
        ended_at=NIGHT.started_at + timedelta(seconds=50),
    )
    starts = [NIGHT.started_at, NIGHT.started_at + timedelta(seconds=20)]
    (path / "starts.jsonl").write_text("".join(json.dumps({"time": t.isoformat()}) + "\n" for t in starts))
    records.write(result, path)
