"""Chooses the device that a worker trains on: a GPU or TPU chip, its own if there are enough, or the CPU."""

import os
import resource
from collections import Counter
from collections.abc import Iterable

import psutil
import torch

from daybreak.contract.errors import JobError


def device() -> torch.device:
    """Returns the device of this worker, and makes a GPU the current device."""
    if os.environ.get("PJRT_DEVICE"):  # machines with a TPU set it
        return _tpu()
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


def is_shared(device: torch.device) -> bool:
    """Returns whether workers of this machine share the device, since it has fewer GPUs than workers."""
    return device.type == "cuda" and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > torch.cuda.device_count()


def name(device: torch.device) -> str:
    """Returns the name of a worker's device: `NVIDIA L4`, `CPU`."""
    if os.environ.get("PJRT_DEVICE"):
        return f"TPU {os.environ.get('TPU_ACCELERATOR_TYPE', '')}".rstrip()
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else "CPU"


def device_names(names: Iterable[str]) -> str:
    """Returns the devices of all workers in a few words.

    >>> device_names(["NVIDIA A100", "NVIDIA L4", "NVIDIA L4"]), device_names(["CPU"])
    ('NVIDIA A100 + 2 x NVIDIA L4', 'CPU')
    """
    return " + ".join(f"{count} x {name}" if count > 1 else name for name, count in Counter(names).items())


def peak_memory_bytes() -> int:
    """Returns the most memory that this worker has used on its device."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_use() -> float | None:
    """Returns the share of the memory of this worker's device that is in use; None where it is not known."""
    if os.environ.get("PJRT_DEVICE"):
        return None
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return 1 - free / total
    return float(psutil.virtual_memory().percent) / 100


def _tpu() -> torch.device:
    """Returns the chip of this worker; raises JobError where torch_xla is missing."""
    try:
        import torch_xla
    except ImportError as error:
        raise JobError(
            f"PJRT_DEVICE asks for torch_xla, and it cannot be imported ({error}); use the image that was "
            f"built for TPUs (docs/vertex.md), or unset PJRT_DEVICE"
        ) from None
    chip: torch.device = torch_xla.device()
    return chip
