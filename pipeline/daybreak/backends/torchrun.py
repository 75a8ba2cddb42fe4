"""Builds the command of a job: a module under torchrun, or by itself. Nothing else knows torchrun's options.

Workers rendezvous at a c10d store on one machine, so that after a loss all of them do so again. Where a job
may go on with fewer machines, the others wait moments for one that is lost, and take in one that comes.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

RESTARTS = 3  # by torchrun, of the workers in a job
SHUTDOWN_S = 20  # for workers to save after SIGTERM
LOSSES = 20  # of machines, which a job survives that may go on with fewer
# Until a machine that says nothing is lost, and until a rendezvous with enough machines is over, in seconds.
SILENT_S, LAST_CALL_S = 6, 6
JOIN_S = 7 * 86_400  # for which machines wait for enough others: until the home ends the job


@dataclass(frozen=True, kw_only=True)
class NodeRank:
    """The place of this machine among those of the job."""

    num_nodes: int
    rank: int
    host: str  # this machine's own name
    master: str  # HOST:PORT
    min_nodes: int = 0  # with which the job goes on; 0: only with all

    @property
    def is_elastic(self) -> bool:
        """Whether the job goes on with fewer machines."""
        return 0 < self.min_nodes < self.num_nodes


def command(
    module: str,
    arguments: Sequence[str],
    *,
    num_workers: int,
    place: NodeRank | None = None,
    meeting: str = "",
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
    restarts = LOSSES if place and place.is_elastic else RESTARTS
    if place is None:
        nodes = ["--standalone", "--nnodes=1"]
    else:
        count, conf = f"{place.num_nodes}", f"is_host={str(place.rank == 0).lower()}"
        if place.is_elastic:
            count = f"{place.min_nodes}:{place.num_nodes}"
            conf += f",last_call_timeout={LAST_CALL_S},keep_alive_interval={SILENT_S // 3}"
            conf += f",join_timeout={JOIN_S}"
        nodes = [
            f"--nnodes={count}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={place.master}",
            f"--rdzv-id={meeting}",
            f"--rdzv-conf={conf}",
            f"--local-addr={place.host}",
        ]
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *nodes,
        f"--nproc-per-node={num_workers}",
        f"--max-restarts={restarts}",
        f"--shutdown-timeout={SHUTDOWN_S}",
        f"--log-dir={os.devnull}",  # else each start leaves an empty folder in /tmp
        "-m",
        module,
        *arguments,
    ]


def threads(num_workers: int) -> dict[str, str]:
    """Returns the environment that divides the cores among the workers.

    The number of threads is the same on each start, so that sums are the same, bit for bit.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(max(1, cores // max(1, num_workers)))}
