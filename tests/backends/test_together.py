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

    def dataset(self, folder: Path, split: str) -> Any:
        (folder / f"worker {os.environ['RANK']} of {os.environ['WORLD_SIZE']}").touch()
        return super().dataset(folder, split)


def test_two_machines_train_one_model_through_a_preemption_without_notice(service, tmp_path):
    arrays, folder = tmp_path / "arrays", tmp_path / "job"
    write_curve(arrays, num_samples=1000)
    told = recipe(
        workload=f"{__name__}:Witnessed", arguments={"delay_s": 0.01}, arrays=str(arrays), num_samples=3000,
        batch_size=32, micro_batch_size=16, rate=0.01, checkpoint_every_s=0.2,
    )  # fmt: skip
    folder.mkdir()
    records.replace_text(folder / "job.json", records.dumps(told))
    backend = vertex(service.url)
    handle = backend.submit(
        job(tmp_path, command=(*COMMAND, str(folder)), num_machines=2, strategy="spot", timeout_s=600,
            environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    )  # fmt: skip
    pools = service.only().job.job_spec.worker_pool_specs
    assert [pool.replica_count for pool in pools] == [1, 1]
    assert {v.name: v.value for v in pools[1].container_spec.env}["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"

    wait(
        lambda: list((folder / "checkpoints").glob("seen=*")) or backend.state(handle) == "failed",
        timeout_s=300,
    )
    assert backend.state(handle) == "running", service.log()
    service.only().tell("preempt")
    wait(lambda: backend.state(handle) != "running", timeout_s=300)
    assert end(backend, handle) == "succeeded", service.log()

    assert {path.name for path in arrays.glob("worker*")} == {"worker 0 of 2", "worker 1 of 2"}
    assert len(read_lines(folder / "starts.jsonl")) == 2
    result = records.read(Result, folder)
    assert (result.num_samples, result.stopped_by) == (3000, "finished")
    assert [(epoch.num_samples, epoch.whole) for epoch in result.epochs] == [(1000, True)] * 3
    assert records.digest(folder / "model") == result.model_digest
