"""The command of a job: torchrun alone or among machines, or the module by itself."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from daybreak.backends.torchrun import LOSSES, RESTARTS, NodeRank, command, threads

WORKER = ["-m", "worker", "folder"]


def test_a_machine_alone_meets_nobody() -> None:
    words = command("worker", ["folder"], num_workers=2)
    assert words[1:5] == ["-m", "torch.distributed.run", "--standalone", "--nnodes=1"]
    assert "--nproc-per-node=2" in words
    assert words[-3:] == WORKER


def test_a_module_without_workers_runs_by_itself() -> None:
    assert command("worker", ["folder"], num_workers=0) == [sys.executable, *WORKER]


def test_torchrun_gets_nodes_place_and_master() -> None:
    place = NodeRank(num_nodes=3, rank=2, host="b1", master="a:2222")
    words = command("worker", ["folder"], num_workers=2, place=place, meeting="j")
    assert {
        "--nnodes=3",
        "--rdzv-endpoint=a:2222",
        "--rdzv-id=j",
        "--local-addr=b1",
        "--rdzv-conf=is_host=false",
    } < set(words)
    assert "--standalone" not in words
    assert words[-3:] == WORKER


@pytest.mark.slow
def test_torchrun_leaves_nothing_among_temporary_files(tmp_path: Path) -> None:
    words = command("tests.backends.script", ["exit 0"], num_workers=1)
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(words, env=environment, check=True)
    assert not list(tmp_path.iterdir())


def test_workers_share_the_cores() -> None:
    alone, shared = (int(threads(number)["OMP_NUM_THREADS"]) for number in (0, 10_000))
    assert alone >= shared == 1


def test_a_job_that_goes_on_with_fewer_gives_torchrun_a_range_and_outlives_losses() -> None:
    place = NodeRank(num_nodes=4, rank=1, host="b", master="a:1", min_nodes=2)
    words = command("m", (), num_workers=1, place=place, meeting="x")
    assert "--nnodes=2:4" in words
    assert f"--max-restarts={LOSSES}" in words
    whole = command("m", (), num_workers=1, place=replace(place, min_nodes=4), meeting="x")
    assert "--nnodes=4" in whole
    assert f"--max-restarts={RESTARTS}" in whole
