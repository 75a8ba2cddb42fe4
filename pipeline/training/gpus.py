"""Does a worker see the GPUs that its machine was rented with? A sentence where it does not.

torch only warns where it finds no driver, or one older than its CUDA needs, and goes on as if there were no
GPU: the job would train on the CPU at the price of the GPU, and miss its deadline. What a machine has is told
by the launcher; where it tells nothing, nothing is asked.
"""

import ctypes
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.contract.errors import JobError
from pipeline.contract.records import LOCAL

MACHINE, GPUS = "PIPELINE_MACHINE", "PIPELINE_GPUS"  # in the environment: its name, and "1 x L4" or nothing
DRIVER = Path("/proc/driver/nvidia/version")  # of the kernel, so it is seen in containers too
MOUNTED = "/usr/local/nvidia/lib64"  # where GKE and Vertex AI, which runs on it, mount the driver's libraries
OLDEST = {12: 525, 13: 580}  # driver that runs a major version of CUDA (CUDA compatibility guide)


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What decides whether torch sees a GPU."""

    torch: str  # version
    cuda: str  # version that torch was built for; "" for none
    driver: str  # version of the loaded one; "" for none
    library: bool  # whether the driver's libcuda.so.1 is found


def environment(machine: str, gpus: str) -> dict[str, str]:
    """Returns what the workers on a machine are told of it."""
    return {MACHINE: machine, GPUS: gpus} if gpus else {}


def check(told: Mapping[str, str] = os.environ) -> None:
    """Raises JobError where this worker was given GPUs and sees none."""
    given = told.get(GPUS, "")
    if not given:
        return
    import torch

    if not torch.cuda.is_available():
        raise JobError(unseen(told.get(MACHINE, ""), given, sight=_sight()))


def unseen(machine: str, given: str, *, sight: Sight) -> str:
    """Returns why a worker does not see the GPUs of its machine, and what to do."""
    oldest = OLDEST.get(int(sight.cuda.partition(".")[0] or 0), 0)
    image = "the environment" if machine == LOCAL else "backend.image"
    if not sight.cuda:
        why = f"torch {sight.torch} is built without CUDA"
        then = f"build {image} with a torch for CUDA (--build-arg DEVICE=cuda)"
    elif not sight.driver:
        why = "no NVIDIA driver is loaded"
        then = "run train again, and name another machine in plan.machines if it happens again"
    elif int(sight.driver.partition(".")[0]) < oldest:
        why = f"its driver is {sight.driver}, and CUDA {sight.cuda} (torch {sight.torch}) needs {oldest}"
        then = f"build {image} with a torch for an older CUDA, or name a machine with a newer driver"
    elif not sight.library:
        why = f"its driver {sight.driver} is loaded, but libcuda.so.1 is not found"
        then = f"set LD_LIBRARY_PATH={MOUNTED} in {image}"
    else:
        why = f"its driver {sight.driver} and libcuda.so.1 are there, but torch {sight.torch} finds no device"
        then = "look at CUDA_VISIBLE_DEVICES, and name another machine in plan.machines if it is not that"
    return f"the worker on {machine} was given {given} and sees no GPU: {why}; {then}"


def _sight() -> Sight:
    import torch

    return Sight(
        torch=str(torch.__version__), cuda=torch.version.cuda or "", driver=driver(), library=_has_library()
    )


def driver(path: Path = DRIVER) -> str:
    """Returns the version of the NVIDIA driver that the kernel has loaded; "" for none."""
    if not path.exists():
        return ""
    found = re.search(r"Kernel Module[^\n]*?\s(\d+(?:\.\d+)+)", path.read_text())
    return found[1] if found else ""


def _has_library() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
