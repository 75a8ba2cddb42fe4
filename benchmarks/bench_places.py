"""Does a whole night come through a preemption on a team's own cluster? Kubernetes on loopback, a real Slurm.

A home of a small shop has a night on each, by its DAG in a real Airflow with scheduler and interface, on
spot nodes of a file of machines. As soon as training has a checkpoint, its nodes are taken away. The run has
to end green: it has trained every sample once, promoted its model, kept its deadlines, had one job at most
at any time, and left none.

QUICK=1: on Kubernetes alone.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from benchmarks import frame
from daybreak.contract import params, records
from daybreak.contract.record_types import Night, Release, Training, Verdict
from daybreak.extensions.slurm import slurm_client
from tests.backends import real_slurm
from tests.backends.conftest import IMAGE, MACHINES, PODS
from tests.backends.fake_cluster import FakeCluster
from tests.dags.servers import Standalone, airflow_standalone

EPOCHS = 6
RUNS = "/api/v2/dags/retrain/dagRuns"
ENDED = ("success", "failed")
NIGHT_S = 1800.0  # that a night may take on a busy machine
CREATE = "from daybreak.storage import home, mlflow_client; mlflow_client.create(home.Home.here())"
TARGETS: dict[str, frame.Target] = {
    "nights": ("==", 1 if frame.QUICK else 2),
    "preempted while they trained": ("==", 1 if frame.QUICK else 2),
    "trained every sample once": ("==", 1 if frame.QUICK else 2),
    "promoted in time": ("==", 1 if frame.QUICK else 2),
    "jobs at once, at most": ("==", 1),
    "jobs left": ("==", 0),
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A cluster, as a night is told of it."""

    backend: dict[str, str]
    sets: list[str]
    num_live: Callable[[], int]
    preempt: Callable[[], object]
    checkpoints: Callable[[Path], bool]


@contextmanager
def kubernetes(folder: Path) -> Iterator[Place]:
    """Two spot nodes of a cluster on loopback, and a bucket."""
    (folder / "machines.csv").write_text(PODS)
    (folder / "cluster").mkdir()
    with FakeCluster(folder / "cluster", image=IMAGE) as cluster:
        for name in ("b", "c"):
            cluster.add_node(name, labels={"pool": "spot", "spot": "true"}, taints=("spot",))
        with patch.dict(os.environ, KUBECONFIG=str(cluster.kubeconfig)):
            yield Place(
                backend={
                    "use": "daybreak:Kubernetes",
                    "image": "eu.example/trainer:1",
                    "bucket": f"file://{folder}/bucket",
                },
                sets=[f"train.checkpoints=file://{folder}/bucket/checkpoints"],
                num_live=lambda: len(cluster.live()),
                preempt=lambda: cluster.disrupt(cluster.live()[0]["metadata"]["name"]),
                checkpoints=lambda home: any((folder / "bucket").glob("checkpoints/**/heads/*.json")),
            )


@contextmanager
def slurm(folder: Path) -> Iterator[Place]:
    """Two nodes of a real Slurm, and a folder that they share."""
    (folder / "machines.csv").write_text(MACHINES)
    given = {"SLURM_CONF": str(folder / "slurm" / "slurm.conf")}
    with patch.dict(os.environ, given), real_slurm.cluster(folder / "slurm") as cluster:
        yield Place(
            backend={"use": "daybreak:Slurm"},
            sets=[],
            num_live=lambda: sum(
                job.phase != "over" and job.name.startswith("daybreak") for job in slurm_client.listed()
            ),
            preempt=cluster.take_away,
            checkpoints=lambda home: any(home.glob("nights/*/data/work/jobs/*/checkpoints/*/manifest.json")),
        )


def night_on(place: Place, folder: Path) -> dict[str, float]:
    """A night there, by the DAG, and what came of it."""
    backend = {**place.backend, "machines": str(folder / "machines.csv")}
    sets = [
        *frame.SMALL,
        f"backend={json.dumps(backend)}",
        "plan.machines=[node]",
        "train.checkpoint_every_s=1",
        f"train.epochs={EPOCHS}",
        "profile.steps=2",
        "profile.batch_sizes=[32,64]",
        "gate.min_samples=5",
        *place.sets,
    ]
    most, taken = 0, False
    with frame.home() as home:
        params.override(home, sets, into=home)
        subprocess.run(["git", "commit", "--all", "--quiet", "-m", "a cluster"], cwd=home, check=True)
        create = [sys.executable, "-c", CREATE]
        subprocess.run(create, cwd=home, env=frame.environment(home), check=True)
        (folder / "airflow").mkdir()
        with airflow_standalone(folder / "airflow", home=home, dags=home / "dags") as airflow:
            run = airflow.trigger({"reason": "a benchmark"})
            until = time.monotonic() + NIGHT_S
            while (state := _state(airflow, run)) not in ENDED and time.monotonic() < until:
                live = place.num_live()
                most = max(most, live)
                if live and not taken and place.checkpoints(home):
                    place.preempt()
                    taken = True
                time.sleep(0.5)
            _show(airflow, run)
        written = next((home / "nights").iterdir()) / "data" / "run"
        night, training, verdict, release = (
            records.read(kind, written) for kind in (Night, Training, Verdict, Release)
        )
        assert isinstance(night, Night)
        assert isinstance(training, Training)
        assert isinstance(verdict, Verdict)
        assert isinstance(release, Release)
        whole = [each.whole for each in training.epochs]
        in_time = (
            training.ended_at is not None
            and verdict.decided_at is not None
            and training.ended_at <= night.train_until
            and verdict.decided_at <= night.decide_until
        )
        return {
            "nights": 1,
            "preempted while they trained": taken and training.num_restarts > 0,
            "trained every sample once": whole == [True] * EPOCHS and training.stopped_by == "finished",
            "promoted in time": state == "success" and in_time and frame.champion_of(home) == 1,
            "jobs at once, at most": most,
            "jobs left": place.num_live(),
        }


def _state(airflow: Standalone, run: str) -> str:
    return str(airflow.ask("GET", f"{RUNS}/{run}")[1]["state"])


def _show(airflow: Standalone, run: str) -> None:
    """Print the state of each task of the run."""
    tasks = airflow.ask("GET", f"{RUNS}/{run}/taskInstances")[1]["task_instances"]
    print(", ".join(f"{task['task_id']} {task['state']}" for task in tasks), file=sys.stderr)


def main() -> None:
    """A night on each, and the sums."""
    figures = dict.fromkeys(TARGETS, 0.0)
    for make in (kubernetes,) if frame.QUICK else (kubernetes, slurm):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch).resolve()
            with make(folder) as place:
                for key, figure in night_on(place, folder).items():
                    most = key == "jobs at once, at most"
                    figures[key] = max(figures[key], figure) if most else figures[key] + figure
    frame.finish("places", figures, TARGETS)


if __name__ == "__main__":
    main()
