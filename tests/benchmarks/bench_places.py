"""Does a whole night come through a preemption on a team's own cluster? Kubernetes on loopback, a real Slurm.

A home of a small shop has a night on each, by the stages that the DAG runs, on spot nodes of a file of
machines. As soon as training has a checkpoint, its nodes are taken away. The night has to train every sample
once, promote its model, keep its deadlines, have one job at most at any time, and leave none.

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

from pipeline.backends.slurm import slurm_client
from pipeline.contract import records
from pipeline.contract.records import Night, Release, Training, Verdict
from tests.backends import real_slurm
from tests.backends.conftest import IMAGE, MACHINES, PODS
from tests.backends.fake_cluster import FakeCluster
from tests.benchmarks import frame

EPOCHS = 6
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
                backend={"use": "pipeline.backends.kubernetes.kubernetes:Kubernetes",
                         "image": "eu.example/trainer:1", "bucket": f"file://{folder}/bucket"},
                sets=[f"train.checkpoints=file://{folder}/bucket/checkpoints"],
                num_live=lambda: len(cluster.live()),
                preempt=lambda: cluster.disrupt(cluster.live()[0]["metadata"]["name"]),
                checkpoints=lambda home: any((folder / "bucket").glob("checkpoints/**/heads/*.json")),
            )  # fmt: skip


@contextmanager
def slurm(folder: Path) -> Iterator[Place]:
    """Two nodes of a real Slurm, and a folder that they share."""
    (folder / "machines.csv").write_text(MACHINES)
    given = {"SLURM_CONF": str(folder / "slurm" / "slurm.conf")}
    with patch.dict(os.environ, given), real_slurm.cluster(folder / "slurm") as cluster:
        yield Place(
            backend={"use": "pipeline.backends.slurm.slurm:Slurm"},
            sets=[],
            num_live=lambda: sum(
                job.phase != "over" and job.name.startswith("daybreak") for job in slurm_client.listed()
            ),
            preempt=cluster.take_away,
            checkpoints=lambda home: any(home.glob("nights/*/data/work/jobs/*/checkpoints/*/manifest.json")),
        )


def night_on(place: Place, folder: Path) -> dict[str, float]:
    """A night there, and what came of it."""
    backend = {**place.backend, "machines": str(folder / "machines.csv")}
    sets = [*frame.SMALL, f"backend={json.dumps(backend)}", "plan.machines=[node]",
            "train.checkpoint_every_s=1", f"train.epochs={EPOCHS}", "profile.steps=2",
            "profile.batch_sizes=[32,64]", "gate.min_samples=5", *place.sets]  # fmt: skip
    most, taken = 0, False
    with frame.home() as home:
        words = [sys.executable, "-m", "pipeline", "night", *frame.sets(sets)]
        with subprocess.Popen(
            words, cwd=home, env=frame.environment(home), stdout=sys.stderr, stderr=sys.stderr
        ) as process:
            while process.poll() is None:
                live = place.num_live()
                most = max(most, live)
                if live and not taken and place.checkpoints(home):
                    place.preempt()
                    taken = True
                time.sleep(0.1)
        run = next((home / "nights").iterdir()) / "data" / "run"
        night, training, verdict, release = (
            records.read(kind, run) for kind in (Night, Training, Verdict, Release)
        )
        assert isinstance(night, Night)
        assert isinstance(training, Training)
        assert isinstance(verdict, Verdict)
        assert isinstance(release, Release)
        whole = [each.whole for each in training.epochs]
        in_time = (
            training.ended_at is not None and verdict.decided_at is not None
            and training.ended_at <= night.train_until and verdict.decided_at <= night.decide_until
        )  # fmt: skip
        return {
            "nights": 1,
            "preempted while they trained": taken and training.num_restarts > 0,
            "trained every sample once": whole == [True] * EPOCHS and training.stopped_by == "finished",
            "promoted in time": process.returncode == 0 and in_time and frame.champion_of(home) == 1,
            "jobs at once, at most": most,
            "jobs left": place.num_live(),
        }


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
