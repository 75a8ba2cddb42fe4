"""A whole night through the DAG on rented machines, with a stock-out and a machine that is taken away."""

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pipeline import params, records
from pipeline.records import Night, Training, Verdict
from tests.benchmarks.frame import SMALL
from tests.dags.conftest import checkout, database, in_airflow  # noqa: F401
from tests.dags.servers import IDENTITY

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1200)]

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
FIRST, SECOND = "g2-standard-8", "g2-standard-12"


@pytest.fixture
def home(checkout: Path, service: Any, tmp_path: Path) -> Path:  # noqa: F811
    """A home whose nights rent, of a service that has none of the cheapest machine."""
    folder, bucket = tmp_path / "nights of a shop", f"file://{tmp_path}/bucket"
    subprocess.run(["git", "clone", "--quiet", str(checkout), str(folder)], check=True)
    vertex = {"use": "pipeline.backends.vertex:Vertex", "project": "p", "image": "eu.example/trainer:1",
              "endpoint": service.url, "bucket": bucket}  # fmt: skip
    told = [*SMALL, f"backend={json.dumps(vertex)}", f"plan.machines=[{FIRST}, {SECOND}]",
            "plan.regions=[us-central1]", f"train.checkpoints={bucket}/checkpoints",
            "train.checkpoint_every_s=1", "train.epochs=6"]  # fmt: skip
    params.override(folder, told, into=folder)
    subprocess.run(["git", *IDENTITY, "commit", "--all", "--quiet", "-m", "rent"], cwd=folder, check=True)
    subprocess.run(["git", "config", "user.name", "A Test"], cwd=folder, check=True)
    subprocess.run(["git", "config", "user.email", "test@example.org"], cwd=folder, check=True)
    service.market.stock["us-central1", FIRST] = 0
    return folder


def test_one_model_in_time_from_one_job_at_any_instant(
    home: Path,
    service: Any,
    in_airflow: Any,  # noqa: F811
    database: None,  # noqa: F811
    tmp_path: Path,
) -> None:
    taken, most = False, 0
    with ThreadPoolExecutor(1) as aside:
        night = aside.submit(in_airflow, RUN, home=home, seconds=1100)
        while not night.done():
            live = service.live()
            most = max(most, len(live))
            if live and not taken and any((tmp_path / "bucket").glob("checkpoints/**/heads/*.json")):
                live[0].tell("preempt")
                taken = True
            time.sleep(0.01)
    ended = night.result()
    assert (ended["run"], taken, most) == ("success", True, 1), ended
    asked = [running.job for running in service.jobs.values()]
    machines = [job.job_spec.worker_pool_specs[0].machine_spec.machine_type for job in asked]
    assert machines[0] == FIRST and machines[-1] == SECOND
    assert sum(job.state.name == "JOB_STATE_SUCCEEDED" for job in asked) == 1
    for one, other in pairwise(asked):
        assert one.end_time <= other.create_time
    folder = next((home / "nights").iterdir()) / "data" / "run"
    opened, training = records.read(Night, folder), records.read(Training, folder)
    assert training.ended_at and training.ended_at <= opened.train_until
    assert training.num_restarts == 1
    assert training.stopped_by == "finished"
    assert training.cost_usd > 0
    assert records.read(Verdict, folder).action == "promote"
    log = subprocess.check_output(["git", "log", "--format=%s", "nights", "--"], cwd=home, text=True)
    assert log.count(": promote: ") == 1
    assert not service.live()
