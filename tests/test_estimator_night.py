"""A home with trees, as `init` writes it: its first night is promoted, by trees of LightGBM's own format."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from daybreak.contract import records
from daybreak.contract.record_types import Plan, Training, Verdict
from daybreak.evaluation.scores import read_scores
from tests.dags.servers import IDENTITY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NUM_DAYS, ROWS_A_DAY, NUM_TREES = 24, 100, 30


def deliver(folder: Path) -> None:
    """A file a day, with a number that follows from two others and a category."""
    draw = np.random.default_rng(0)
    folder.mkdir()
    for day in pd.date_range("2026-01-01", periods=NUM_DAYS):
        a, b = draw.normal(size=(2, ROWS_A_DAY))
        place = draw.integers(0, 4, ROWS_A_DAY)
        hour = draw.integers(0, 24, ROWS_A_DAY)
        price = 10 + 3 * a * (b > 0) + place + (hour > 12) + draw.normal(size=ROWS_A_DAY) / 3
        names = np.array(["north", "south", "east", "west"])[place]
        times = day + pd.to_timedelta(hour, "h")
        rows = pd.DataFrame({"time": times, "a": a, "b": b, "place": names, "price": price})
        rows.sort_values("time").to_parquet(folder / f"{day.date()}.parquet", index=False)


def run(*words: str, folder: Path) -> str:
    environment = {**os.environ, "GIT_CONFIG_COUNT": "0"}
    for name in ("MLFLOW_TRACKING_URI", "DAYBREAK_HOME"):
        environment.pop(name, None)
    done = subprocess.run(
        ["daybreak", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_night_of_a_home_with_trees_is_promoted(tmp_path: Path, furnish: Callable[[Path], Path]) -> None:
    deliver(tmp_path / "sales")
    words = ("--time", "time", "--label", "price", "--model", "lightgbm")
    run("init", "prices", "--from", str(tmp_path / "sales/*.parquet"), *words, folder=tmp_path)
    home = furnish(tmp_path / "prices")
    path = home / "params.yaml"
    path.write_text(path.read_text().replace("epochs: 100", f"epochs: {NUM_TREES}"))
    subprocess.run(["git", *IDENTITY, "commit", "-qam", "Fewer trees"], cwd=home, check=True)
    said = run("night", "--night", "first", folder=home)
    assert "is no network, so that there are no remedies" in said
    night = home / "nights/first"
    assert records.read(Verdict, night / records.RUN).action == "promote"
    plan, training = (records.read(kind, night / records.RUN) for kind in (Plan, Training))
    assert (training.num_updates, training.stopped_by) == (NUM_TREES, "finished")
    assert plan.batch_size == training.num_samples / NUM_TREES
    (content,) = load_file(night / "data/run/model/model.safetensors").values()
    assert content.tobytes().startswith(b"tree\nversion=")
    scores = read_scores(night / "data/run/scores.npy")
    assert scores is not None
    assert scores["metric/squared error"].mean() < 2
