"""Forms the group of all workers of a job: over nccl where each has a GPU, else over gloo.

Only gloo joins a worker on a CPU with those on GPUs. Which devices the others have no worker knows, so each
says its own by the store of the rendezvous before the group is formed.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from pipeline.training.devices import name

KEY = "daybreak/device"  # in the store, with the rank of its worker


def form(device: torch.device, *, rank: int, world_size: int, timeout: timedelta) -> tuple[str, ...]:
    """Joins the group of all workers, and returns the name of each one's device, by rank.

    A single worker needs none. `timeout` is that of each collective.
    """
    own = name(device)
    if world_size == 1 or dist.is_initialized():
        return (own,) * world_size
    store, _, _ = next(rendezvous("env://", rank, world_size, timeout=timeout))
    names = exchanged(own, store=store, rank=rank, world_size=world_size)
    dist.init_process_group(
        transport(device, names), store=store, rank=rank, world_size=world_size, timeout=timeout
    )
    return names


def exchanged(own: str, *, store: Store, rank: int, world_size: int) -> tuple[str, ...]:
    """Returns the devices of all workers, which all call it together."""
    store.set(f"{KEY}/{rank}", own)
    return tuple(store.get(f"{KEY}/{other}").decode() for other in range(world_size))


def transport(device: torch.device, names: Sequence[str]) -> Literal["nccl", "gloo"]:
    """Returns what carries the sums of workers on these devices, the same for each of them."""
    return "nccl" if device.type == "cuda" and "CPU" not in names else "gloo"
