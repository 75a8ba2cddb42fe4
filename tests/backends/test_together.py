"""Two machines that only know CLUSTER_SPEC train tonight's model together, also when both are taken away."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.contract import records
from pipeline.contract.errors import NotYet
from pipeline.contract.params import Params, Plug
from pipeline.contract.records import Rental, Training
from pipeline.jobs import collector, launcher
from tests.backends.rented import vertex, wait
from tests.fakes import LineWorkload, read_lines
from tests.training import nights

pytestmark = pytest.mark.slow


class Witnessed(LineWorkload):
    """Leaves a file per worker, which says how many there are."""

    def __init__(self, *, witness: str) -> None:
        super().__init__(delay_s=0.01)
        self.witness = Path(witness)

    def dataset(self, folder: Path, split: str) -> Any:
        (self.witness / f"worker {os.environ['RANK']} of {os.environ['WORLD_SIZE']}").touch()
        return super().dataset(folder, split)


def told(witness: Path, checkpoints: str) -> Params:
    given = nights.told()
    train = given.train.model_copy(update={"checkpoints": checkpoints})
    workload = Plug(use=f"{__name__}:Witnessed", witness=str(witness))
    return given.model_copy(update={"workload": workload, "train": train})


def test_two_machines_train_tonights_model_through_a_preemption_that_takes_their_disks(
    service, tmp_path, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.chdir(tmp_path)
    nights.lay_out(tmp_path / "night")
    witness, bucket = tmp_path / "witness", f"file://{tmp_path}/bucket"
    witness.mkdir()
    night, params = nights.night(seconds=1800), told(witness, f"{bucket}/checkpoints")
    rental = Rental(machine="g2-standard-8", num_machines=2, region="us-central1", strategy="spot")
    plan = replace(nights.plan(num_samples=3000), rental=rental, usd_per_hour=1.0)
    backend = vertex(service.url, bucket=bucket)

    def train() -> Training | None:
        time.sleep(0.1)
        try:
            return launcher.train(night, nights.dataset(), plan, None, backend=backend, params=params)
        except NotYet:
            return None

    train()
    spec = service.only().job.job_spec
    assert [pool.replica_count for pool in spec.worker_pool_specs] == [1, 1]
    assert spec.scheduling.strategy.name == "SPOT"
    environment = {v.name: v.value for v in spec.worker_pool_specs[1].container_spec.env}
    assert environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"

    def copied_or_over() -> bool:
        there = (tmp_path / "bucket").rglob
        told = any(there("heads/*.json")) and any(there("starts.jsonl"))
        return told or not service.live()

    wait(copied_or_over, timeout_s=300)
    assert service.live(), service.log()
    service.only().tell("preempt")
    training = wait(train, timeout_s=300)

    assert {path.name for path in witness.iterdir()} == {"worker 0 of 2", "worker 1 of 2"}
    assert "going on from" in service.log()
    assert (training.num_samples, training.num_restarts, training.stopped_by) == (3000, 1, "finished")
    assert [(epoch.num_samples, epoch.whole) for epoch in training.epochs] == [(1000, True)] * 3
    assert records.digest(collector.MODEL) == training.model_digest
    (folder,) = (path for path in launcher.JOBS.iterdir() if path.is_dir())
    assert read_lines(folder / "progress.jsonl")[-1]["seen"] == 3000
    assert training.cost_usd > 0
    assert training.cost_usd == pytest.approx(backend.usd(folder), rel=0.1)
    assert not (folder / "checkpoints").exists()
    assert len(service.jobs) == 1
