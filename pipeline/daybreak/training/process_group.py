"""Forms the group of all workers of a job: over nccl where each has a GPU of its own, else over gloo.

Only gloo joins workers on CPU and on GPU, and workers that share a GPU. No worker knows the devices of the
others, so each publishes its own in the store of the rendezvous before the group is formed.
"""

import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from daybreak.contract.errors import JobError
from daybreak.training.devices import device, device_names, is_shared, name

KEY = "daybreak/device"  # in the store, with the rank of its worker
COLLECTIVE_TIMEOUT = timedelta(minutes=5)  # after which a silent worker has all of them restarted


class WorkerGroup:
    """The workers of a job: the rank and the device of this one, and sums over all of them."""

    def __init__(self) -> None:
        """Joins the group that torchrun has started; raises JobError where it started none."""
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        if not 0 <= self.rank < self.world_size:
            raise JobError(
                f"worker {self.rank} of a world of {self.world_size} has no others to train with; "
                f"start at least one by torchrun (key train.num_workers)"
            )
        self.device = device()
        if self.device.type == "cpu":
            be_deterministic()
            # Filling costs time, and uninitialized memory is never read.
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        names = form(self.device, rank=self.rank, world_size=self.world_size, timeout=COLLECTIVE_TIMEOUT)
        self.devices = device_names(names)  # of all workers, in a few words

    def total(self, counts: NDArray[Any]) -> NDArray[Any]:
        """Returns the sum over workers, which all call it together."""
        if self.world_size == 1:
            return counts
        added = torch.from_numpy(counts).to(self.device)
        dist.all_reduce(added)
        summed: NDArray[Any] = added.cpu().numpy()
        return summed

    def close(self) -> None:
        """Leaves the group."""
        if dist.is_initialized():
            dist.destroy_process_group()


def be_deterministic() -> None:
    """Asks torch for deterministic algorithms, and its compiler, without importing that."""
    torch.set_deterministic_debug_mode("warn")
    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"  # is read when the compiler is imported
    if compiler := sys.modules.get("torch._inductor.config"):
        compiler.deterministic = True  # type: ignore[attr-defined]


def agreed(value: Any) -> Any:
    """Returns the value of worker 0 on all workers."""
    if not dist.is_initialized():
        return value
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def form(device: torch.device, *, rank: int, world_size: int, timeout: timedelta) -> tuple[str, ...]:
    """Joins the group of all workers, and returns the name of each one's device, by rank.

    A single worker needs none. `timeout` is that of each collective.
    """
    own = name(device)
    if world_size == 1 or dist.is_initialized():
        return (own,) * world_size
    store, _, _ = next(rendezvous("env://", rank, world_size, timeout=timeout))
    transport = "nccl" if device.type == "cuda" and not is_shared(device) else "gloo"
    answers = exchanged(f"{transport} {own}", store=store, rank=rank, world_size=world_size)
    transports, names = zip(*(one.split(" ", 1) for one in answers), strict=True)
    dist.init_process_group(
        "nccl" if set(transports) == {"nccl"} else "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
    )
    return names


def exchanged(own: str, *, store: Store, rank: int, world_size: int) -> tuple[str, ...]:
    """Returns what all workers say, by rank; all call it together."""
    store.set(f"{KEY}/{rank}", own)
    return tuple(store.get(f"{KEY}/{other}").decode() for other in range(world_size))
