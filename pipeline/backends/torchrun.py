"""Builds the command of a job: a module under torchrun, or by itself. Nothing else knows torchrun's options.

Workers rendezvous at a c10d store on the first machine, so that after a loss all of them do so again.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

RESTARTS = 3  # by torchrun, of the workers in a job
SHUTDOWN_S = 20  # for workers to save after SIGTERM


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of this machine among those of the job."""

    num_nodes: int
    rank: int
    host: str  # this machine's own name
    master: str  # HOST:PORT


def command(
    module: str, arguments: Sequence[str], *, num_workers: int, place: Place | None = None, meeting: str = ""
) -> list[str]:
    """Returns the command for this machine, alone or in its place among others, with this interpreter.

    Args:
        module: what each worker runs.
        arguments: of the module.
        num_workers: on this machine; 0: the module itself, without torchrun.
        place: None where there is no other machine.
        meeting: id of the rendezvous of the workers of all machines.
    """
    if not num_workers:
        return [sys.executable, "-m", module, *arguments]
    if place is None:
        nodes = ["--standalone", "--nnodes=1"]
    else:
        nodes = [
            f"--nnodes={place.num_nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={place.master}",
            f"--rdzv-id={meeting}", f"--rdzv-conf=is_host={str(place.rank == 0).lower()}",
            f"--local-addr={place.host}",
        ]  # fmt: skip
    return [
        sys.executable, "-m", "torch.distributed.run", *nodes, f"--nproc-per-node={num_workers}",
        f"--max-restarts={RESTARTS}", f"--shutdown-timeout={SHUTDOWN_S}", "-m", module, *arguments,
    ]  # fmt: skip


def threads(num_workers: int) -> dict[str, str]:
    """Returns the environment that divides the cores among the workers.

    The number of threads is the same on each start, so that sums are the same, bit for bit.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(max(1, cores // max(1, num_workers)))}
