"""Two machines that only know CLUSTER_SPEC train one model together, also after one was taken away."""

import os
from pathlib import Path
from typing import Any

import pytest

from pipeline import records
from pipeline.training.recipe import Result
from tests.backends.rented import end, job, vertex, wait
from tests.fakes import LineWorkload, read_lines, write_curve
from tests.training.recipes import recipe

pytestmark = pytest.mark.slow

COMMAND = (
    "torchrun", "--nnodes=1", "--nproc-per-node=1", "--max-restarts=3", "--shutdown-timeout=20",
    "-m", "pipeline.training.worker",
)  # fmt: skip


class Witnessed(LineWorkload):
    """Leaves a file per worker, which says how many there are."""

    def __init__(self, *, witness: str, delay_s: float) -> None:
        super().__init__(delay_s=delay_s)
        self.witness = Path(witness)

    def dataset(self, folder: Path, split: str) -> Any:
        (self.witness / f"worker {os.environ['RANK']} of {os.environ['WORLD_SIZE']}").touch()
        return super().dataset(folder, split)


def test_two_machines_train_one_model_through_a_preemption_that_takes_their_disks(
    service, tmp_path, monkeypatch
):
    night, witness, bucket = tmp_path / "night", tmp_path / "witness", f"file://{tmp_path}/bucket"
    folder = night / "data" / "work" / "jobs" / "j"
    folder.mkdir(parents=True)
    witness.mkdir()
    monkeypatch.chdir(night)
    write_curve(night / "data" / "arrays", num_samples=1000)
    told = recipe(
        workload=f"{__name__}:Witnessed", arguments={"delay_s": 0.01, "witness": str(witness)},
        arrays="data/arrays", num_samples=3000, batch_size=32, micro_batch_size=16, rate=0.01,
        checkpoint_every_s=0.2, checkpoints=f"{bucket}/checkpoints",
    )  # fmt: skip
    records.replace_text(folder / "job.json", records.dumps(told))
    backend = vertex(service.url, bucket=bucket)
    handle = backend.submit(
        job(tmp_path, command=(*COMMAND, str(folder)), folder=str(folder), num_machines=2, strategy="spot",
            timeout_s=600, environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    )  # fmt: skip
    pools = service.only().job.job_spec.worker_pool_specs
    assert [pool.replica_count for pool in pools] == [1, 1]
    assert {v.name: v.value for v in pools[1].container_spec.env}["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"

    def copied_or_over() -> bool:
        return bool(list((tmp_path / "bucket").rglob("seen=*/manifest*"))) or not service.live()

    wait(copied_or_over, timeout_s=300)
    assert backend.state(handle) == "running", service.log()
    service.only().tell("preempt")
    assert end(backend, handle, timeout_s=300) == "succeeded", service.log()

    assert {path.name for path in witness.iterdir()} == {"worker 0 of 2", "worker 1 of 2"}
    assert "going on from" in service.log()
    assert len(read_lines(folder / "starts.jsonl")) == 2
    result = records.read(Result, folder)
    assert (result.num_samples, result.stopped_by) == (3000, "finished")
    assert [(epoch.num_samples, epoch.whole) for epoch in result.epochs] == [(1000, True)] * 3
    assert records.digest(folder / "model") == result.model_digest
    assert read_lines(folder / "progress.jsonl")[-1]["seen"] == 3000
    assert not (folder / "checkpoints").exists()
