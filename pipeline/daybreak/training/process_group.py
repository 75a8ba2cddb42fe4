"""Forms the group of all workers of a job: over nccl where each has a GPU of its own, else over gloo.

Only gloo joins workers on CPU and on GPU, and workers that share a GPU. No worker knows the devices of the
others, so each publishes its own in the store of the rendezvous before the group is formed.
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from daybreak.training.devices import is_shared, name

KEY = "daybreak/device"  # in the store, with the rank of its worker


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
