"""Live metrics in MLflow: all of them, from a process that training does not wait for."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.training.nights import ROOT

LOSS = "select step, value from metrics where key = 'train/loss' order by step"
SYSTEM = "select count(*) from metrics where key like 'system/cpu%'"

pytestmark = pytest.mark.slow


def follower(folder: Path, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "daybreak.training.run_logger", str(folder), "n"],
        stdin=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


def beats(folder: Path, count: int) -> None:
    lines = [
        {
            "time": f"2026-01-01T00:00:{number:02d}+00:00",
            "seen": 100 * number,
            "num_updates": number,
            "loss": 1 / number,
            "rate": 0.1,
            "samples_per_s": 100.0,
            "memory_bytes": 5,
        }
        for number in range(1, count + 1)
    ]
    (folder / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"half')


def test_heartbeats_and_system_metrics_reach_mlflow_once_also_after_a_restart(tmp_path, empty_store):
    from mlflow import MlflowClient

    store = shutil.copy(empty_store, tmp_path / "mlflow.db")
    uri = f"sqlite:///{store}"
    client = MlflowClient(uri)
    experiment = client.create_experiment("e", artifact_location=str(tmp_path / "artifacts"))
    run = client.create_run(experiment).info.run_id
    with closing(sqlite3.connect(store)) as database:
        for count in (3, 5):
            beats(tmp_path, count)
            process = follower(tmp_path, MLFLOW_TRACKING_URI=uri, MLFLOW_RUN_ID=run)
            while count == 5 and not database.execute(SYSTEM).fetchone()[0]:
                time.sleep(0.1)
            assert process.stdin
            process.stdin.close()
            assert process.wait(500) == 0
        logged = database.execute(LOSS).fetchall()
    assert logged == [(100 * number, 1 / number) for number in range(1, 6)]


def test_it_ends_with_training_though_mlflow_is_away(tmp_path):
    beats(tmp_path, 2)
    process = follower(tmp_path, MLFLOW_TRACKING_URI="http://127.0.0.1:9", MLFLOW_RUN_ID="r")
    assert process.stdin
    process.stdin.close()
    assert process.wait(500) == 0
