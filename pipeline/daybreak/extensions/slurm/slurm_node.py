"""Runs the module of a job on a node of Slurm: what its batch script starts.

    python -m daybreak.extensions.slurm.slurm_node --until T --workers N --ended FILE -- MODULE ARGUMENTS

Several nodes find each other by the variables that srun sets, and by their addresses in Slurm. With
`--least M` they are tasks of an array, which elect their host in a folder beside FILE.
The first node, or one that fails before it, writes the exit status of the job to FILE, since Slurm forgets a
job minutes after its end.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from daybreak.backends import node
from daybreak.backends.host_election import HostElection
from daybreak.backends.torchrun import NodeRank
from daybreak.contract.records import replace_text
from daybreak.extensions.slurm import slurm_client
from daybreak.storage.bucket import BucketFolder

SIGNALS = 128  # exit statuses from it on are signals
PORTS = range(20_000, 60_000)  # by the id of the job, since jobs may share a node


def place(variables: Mapping[str, str], *, least: int = 0) -> NodeRank | None:
    """Returns the place of this node by the variables of Slurm; None if it is the only one.

    `least`: of how many nodes the tasks of an array form a job; 0: it is not in an array.
    """
    if least:
        return NodeRank(
            num_nodes=int(variables["SLURM_ARRAY_TASK_COUNT"]),
            rank=int(variables["SLURM_ARRAY_TASK_ID"]),
            host=_address(variables["SLURMD_NODENAME"]),
            master="",
            min_nodes=least,
        )
    if num_parts := int(variables.get("SLURM_HET_SIZE", "0")):  # of a heterogeneous job
        of_parts = [variables[f"SLURM_JOB_NODELIST_HET_GROUP_{part}"] for part in range(num_parts)]
        names = [name for nodes in of_parts for name in _names(nodes)]
        rank, job = names.index(variables["SLURMD_NODENAME"]), variables["SLURM_JOB_ID_HET_GROUP_0"]
    elif int(variables.get("SLURM_STEP_NUM_NODES", "1")) > 1:
        names = _names(variables["SLURM_STEP_NODELIST"])
        rank, job = int(variables["SLURM_NODEID"]), variables["SLURM_JOB_ID"]
    else:
        return None
    port = PORTS[int(job) % len(PORTS)]
    return NodeRank(
        num_nodes=len(names), rank=rank, host=_address(names[rank]), master=f"{_address(names[0])}:{port}"
    )


def _names(nodes: str) -> list[str]:
    """Returns the names of a list of nodes such as `n[1-2]`."""
    return _scontrol("show", "hostnames", nodes).split()


def _address(name: str) -> str:
    """Returns the address of a node; its name where Slurm has no other."""
    match = re.search(r"\bNodeAddr=(\S+)", _scontrol("show", "node", name, "--oneliner"))
    return match[1] if match else name


def _scontrol(*words: str) -> str:
    return subprocess.run(["scontrol", *words], capture_output=True, text=True, check=True).stdout


def main(words: Sequence[str]) -> int:
    """Runs what the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(description="Run a module as one node of a job.")
    parser.add_argument("--until", type=float, required=True, help="seconds since 1970")
    parser.add_argument("--workers", type=int, default=0, help="by torchrun; 0: the module itself")
    parser.add_argument("--ended", type=Path, required=True, help="file for the exit status")
    parser.add_argument("--least", type=int, default=0, help="nodes with which an array goes on")
    parser.add_argument("module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(words)
    task = node.Task(
        module=options.module,
        arguments=options.arguments,
        num_workers=options.workers,
        until=options.until,
        has_result=(options.ended.parents[1] / "result.json").exists,
    )
    here, election = place(os.environ, least=options.least), None
    if here and options.least:
        hosts = BucketFolder(url=str(options.ended.with_name(f"{options.ended.name}.hosts")))
        election = HostElection(hosts, host=here.host)
    status = node.run(task, place=here, election=election)
    is_own_error = 0 < status < SIGNALS  # on whichever node: the others are then ended because of it
    is_end = status == 0 if election else here is None or here.rank == 0
    if (is_end or is_own_error) and not options.ended.exists():
        replace_text(options.ended, f"{status}\n")
        if election:
            slurm_client.cancel(os.environ["SLURM_ARRAY_JOB_ID"], waiting=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
