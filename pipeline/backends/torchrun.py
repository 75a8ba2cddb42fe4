"""Renders the command of a job: a module by torchrun, or by itself. Nothing else knows torchrun's options.

Its workers meet at a store on the first machine by c10d, so that after a loss all of them meet anew.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

RESTARTS = 3  # by torchrun, of the workers in a job
SHUTDOWN_S = 20  # for workers to save when told to end


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where this machine stands among those of the job."""

    num_nodes: int
    rank: int
    host: str  # this machine's own name
    master: str  # HOST:PORT


def command(
    module: str, arguments: Sequence[str], *, num_workers: int, place: Place | None = None, meeting: str = ""
) -> list[str]:
    """Returns the command by this interpreter, on this machine alone or in its place among others.

    Args:
        module: what each worker runs.
        arguments: of the module.
        num_workers: on this machine; 0: the module itself, without torchrun.
        place: None where there is no other machine.
        meeting: name under which the workers of all machines meet.
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
    """Cores shared out to workers: as many threads on each start, so that sums are the same, bit for bit."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(max(1, cores // max(1, num_workers)))}
