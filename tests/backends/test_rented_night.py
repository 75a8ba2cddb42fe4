"""A whole night through the DAG on rented machines, with a stock-out and a machine that is taken away."""

import json
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.frame import SMALL
from daybreak.contract import params, records
from daybreak.contract.record_types import Night, Training, Verdict, Version
from tests.clones import clone
from tests.dags.conftest import checkout, database, in_airflow  # noqa: F401

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(2400)]

RUN = """
    import json, retrain
    dag = retrain.dag
    dag.deadline = None
    for task in dag.tasks:
        task.poke_interval = 1
    run = dag.test(run_conf={"reason": "on rented machines"})
    states = {task.task_id: str(task.state) for task in run.get_task_instances()}
    print(json.dumps({"run": str(run.state.value), "run_id": run.run_id, "states": states}))
"""
PLACE = ("us-central1", "n2-standard-8")  # of CPUs: its workers run here


@pytest.fixture
def home(checkout: Path, service: Any, tmp_path: Path, furnish: Callable[[Path], Path]) -> Path:  # noqa: F811
    """A home whose nights rent, and ask again after seconds where they would wait for minutes."""
    folder, bucket = furnish(clone(checkout, tmp_path / "rented")), f"file://{tmp_path}/bucket"
    vertex = {
        "use": "daybreak:Vertex",
        "project": "p",
        "image": "eu.example/trainer:1",
        "endpoint": service.url,
        "bucket": bucket,
    }
    overrides = [
        *SMALL,
        f"backend={json.dumps(vertex)}",
        f"plan.machines=[{PLACE[1]}]",
        f"plan.regions=[{PLACE[0]}]",
        f"train.checkpoints={bucket}/checkpoints",
        "train.checkpoint_every_s=1",
        "train.epochs=6",
        "profile.batch_sizes=[32,64]",
        "profile.steps=2",
        "smoke_test.samples=0",
    ]
    params.override(folder, overrides, into=folder)
    patience = folder / "pipeline" / "daybreak" / "jobs" / "observed_job.py"
    assert "PATIENCE_S = 2 * TICK_S" in patience.read_text()
    patience.write_text(patience.read_text().replace("PATIENCE_S = 2 * TICK_S", "PATIENCE_S = 2.0"))
    subprocess.run(["git", "-C", str(folder), "commit", "--all", "--quiet", "-m", "rent"], check=True)
    return folder


def test_one_model_in_time_from_one_job_at_any_instant(
    home: Path,
    service: Any,
    in_airflow: Any,  # noqa: F811
    database: None,  # noqa: F811
    tmp_path: Path,
) -> None:
    service.market.stock[PLACE] = 0
    granted, taken, most = False, False, 0
    with ThreadPoolExecutor(1) as aside:
        night = aside.submit(in_airflow, RUN, home=home, seconds=1100)
        while not night.done():
            live = service.live()
            most = max(most, len(live))
            if not granted and any(one.error for one in list(service.jobs.values())):
                service.market.stock[PLACE], granted = 1, True  # it comes back when its job has ended
            if live and not taken and any((tmp_path / "bucket").glob("checkpoints/**/heads/*.json")):
                live[0].tell("preempt")
                taken = True
            time.sleep(0.05)
    ended = night.result()
    assert (ended["run"], taken, most) == ("success", True, 1), ended
    asked = [running.job for running in service.jobs.values()]
    failed, done = "JOB_STATE_FAILED", "JOB_STATE_SUCCEEDED"
    assert [job.state.name for job in asked] == [failed, failed, done]  # none to be had, taken away, finished
    assert [running.preemptions for running in service.jobs.values()] == [0, 1, 0]
    for one, other in pairwise(asked):
        assert one.end_time <= other.create_time
    folder = next((home / "nights").iterdir()) / "data" / "run"
    opened, training = records.read(Night, folder), records.read(Training, folder)
    assert training.ended_at and training.ended_at <= opened.train_until
    assert (training.num_restarts, training.stopped_by) == (1, "finished")
    assert training.cost_usd > 0
    assert "going on from" in service.log()
    verdict = records.read(Verdict, folder)
    assert verdict.decided_at and verdict.decided_at <= opened.decide_until
    assert (verdict.challenger, records.read(Version, folder).number) == (1, 1)
    log = subprocess.check_output(["git", "log", "--format=%B", "nights", "--"], cwd=home, text=True)
    assert log.count(f"Night: {opened.id}\n") == 1
    assert not service.live()
