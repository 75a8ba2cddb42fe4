"""Chooses the device that a worker trains on: its own GPU or TPU chip, or the CPU."""

import os
import resource

import torch

from pipeline.contract.errors import JobError


def device() -> torch.device:
    """Returns the device of this worker, which becomes the current GPU if it is one."""
    if os.environ.get("PJRT_DEVICE"):  # machines with a TPU set it
        return _tpu()
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cuda", torch.cuda.current_device())


def devices() -> str:
    """Returns the devices of all workers, named after that of this worker: `2 x NVIDIA L4`."""
    if os.environ.get("PJRT_DEVICE"):
        name = f"TPU {os.environ.get('TPU_ACCELERATOR_TYPE', '')}".rstrip()
    else:
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    return f"{workers} x {name}" if workers > 1 else name


def peak_memory_bytes() -> int:
    """Returns the most memory that this worker has used on its device."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


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
