"""Runs the module of a job on a machine of Vertex AI: the entry point of its container.

    python -m daybreak.backends.entrypoint --until T --workers N -- MODULE ARGUMENTS

Several machines find each other by CLUSTER_SPEC, which the service sets: the machine of workerpool0 is the
master, those of the other pools follow in order. torchrun gets nodes, place and master from there; RANK and
MASTER_ADDR are not promised by the service.

The module ends at T (seconds since 1970) at the latest, even if nobody else is alive to end it.

With `--bucket`, inputs of the job are fetched from the bucket first, and results are sent there (staging.py).
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from daybreak.backends import node
from daybreak.backends.host_election import HostElection
from daybreak.backends.node import Task
from daybreak.backends.torchrun import NodeRank
from daybreak.contract import code_path

SPEC = "CLUSTER_SPEC"


def place(text: str) -> NodeRank | None:
    """Returns the place of this machine by the JSON of CLUSTER_SPEC; None if it is the only machine.

    >>> place('{"cluster": {"workerpool0": ["a:2222"], "workerpool1": ["b:2222", "c:2222"]},'
    ...       ' "task": {"type": "workerpool1", "index": 1}}')
    NodeRank(num_nodes=3, rank=2, host='c', master='a:2222', min_nodes=0)
    """
    if not text:
        return None
    spec = json.loads(text)
    cluster, pool, index = spec["cluster"], spec["task"]["type"], int(spec["task"]["index"])
    pools = sorted(cluster, key=lambda name: int(name.removeprefix("workerpool")))
    machines = [(name, number) for name in pools for number in range(len(cluster[name]))]
    if len(machines) == 1:
        return None
    return NodeRank(
        num_nodes=len(machines),
        rank=machines.index((pool, index)),
        host=cluster[pool][index].rpartition(":")[0],
        master=cluster["workerpool0"][0],
    )


@dataclass(frozen=True, kw_only=True)
class Staging:
    """The bucket for a job's inputs and results."""

    bucket: str  # URL
    job: str
    folder: str  # of the job, as its arguments name it


def run_staged(task: Task, staging: Staging, *, here: NodeRank | None) -> int:
    """Runs the module on a machine that has to fetch the night from the bucket; returns its exit status."""
    from daybreak.backends.staging import CODE, unpack
    from daybreak.backends.sync import BucketSync
    from daybreak.storage.bucket import BucketFolder

    root = Path(tempfile.gettempdir()) / "daybreak"
    folder = root / "data" / "work" / "jobs" / staging.job
    folder.mkdir(parents=True, exist_ok=True)
    bucket = BucketFolder(url=staging.bucket)
    unpack(bucket, staging.job, root, folder)
    sync = BucketSync(bucket, staging.job, folder, node=here.rank if here else 0)
    sync.start()
    os.chdir(root)
    os.environ |= {**code_path.environment(root / CODE), "DAYBREAK_HOME": str(root)}
    arguments = (str(folder) if word == staging.folder else word for word in task.arguments)
    election, has_result = None, (folder / "result.json").exists
    if here and here.is_elastic:
        attempt = os.environ.get("DAYBREAK_ATTEMPT", "job")
        election = HostElection(
            bucket,
            *("jobs", staging.job, "hosts", attempt),
            host=here.host,
            has_result=has_result,
        )
    task = replace(task, arguments=tuple(arguments), has_result=has_result)
    return node.run(task, place=here, election=election, send_result=sync.finish)


def main(words: Sequence[str], *, here: NodeRank | None) -> int:
    """Runs what the command line says, in that place among the job's machines; returns the exit status."""
    parser = argparse.ArgumentParser(description="Run a module as one machine of a job.")
    parser.add_argument("--until", type=float, default=float("inf"), help="seconds since 1970")
    parser.add_argument("--workers", type=int, default=0, help="by torchrun; 0: the module itself")
    parser.add_argument("--bucket", default="", help="URL of the folder for staging")
    parser.add_argument("--job", default="", help="its name there")
    parser.add_argument("--folder", default="", help="the folder of the job, as the arguments name it")
    parser.add_argument("module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(words)
    task = Task(
        module=options.module,
        arguments=tuple(options.arguments),
        num_workers=options.workers,
        until=options.until,
    )
    if not options.bucket:
        return node.run(task, place=here)
    staging = Staging(bucket=options.bucket, job=options.job, folder=options.folder)
    return run_staged(task, staging, here=here)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], here=place(os.environ.get(SPEC, ""))))
