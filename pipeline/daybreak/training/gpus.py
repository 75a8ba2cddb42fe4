"""Checks that a worker sees the GPUs that its machine was rented with, and explains where it does not.

If the driver is missing, or too old for torch's CUDA, torch only warns and goes on without a GPU: the job
would train on the CPU at the price of the GPU, and miss its deadline. The launcher states in the environment
which GPUs a machine has; without that statement there is no check. Fewer or slower devices than were paid for
would miss the deadline just the same.
"""

import ctypes
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from daybreak.contract.errors import JobError
from daybreak.contract.record_parts import LOCAL

MACHINE, GPUS = "DAYBREAK_MACHINE", "DAYBREAK_GPUS"  # environment variables: its name; "1 x L4" or unset
CHIPS = "DAYBREAK_CHIPS"  # of a TPU machine: how many it has
DRIVER = Path("/proc/driver/nvidia/version")  # of the kernel, so it is seen in containers too
MOUNTED = "/usr/local/nvidia/lib64"  # where GKE and Vertex AI, which runs on it, mount the driver's libraries
MODEL = re.compile(r"\b[A-Z]{1,2}\d{1,4}[A-Z]?\b")  # of a device, in the maker's name of it: L4, A100, GB200
OLDEST = {12: 525, 13: 580}  # oldest driver that runs a major version of CUDA (CUDA compatibility guide)


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """The facts that decide whether torch sees a GPU."""

    torch: str  # version
    cuda: str  # version that torch was built for; "" for none
    driver: str  # version of the loaded one; "" for none
    library: bool  # whether the driver's libcuda.so.1 is found


def environment(machine: str, gpus: str) -> dict[str, str]:
    """Returns the environment variables that tell workers which machine and GPUs they have."""
    return {MACHINE: machine, GPUS: gpus} if gpus else {}


def check(variables: Mapping[str, str] = os.environ) -> None:
    """Raises JobError where this worker was given GPUs and sees none, fewer, or others."""
    given = variables.get(GPUS, "")
    if not given:
        return
    import torch

    if not torch.cuda.is_available():
        raise JobError(unseen(variables.get(MACHINE, ""), given, facts=_gpu_facts()))
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    if wrong := mismatch(variables.get(MACHINE, ""), given, names=names):
        raise JobError(wrong)


def check_chips(seen: int, variables: Mapping[str, str] = os.environ) -> None:
    """Raises JobError where a worker sees fewer chips of a TPU than its machine was given."""
    given = int(variables.get(CHIPS, "0"))
    if seen < given:
        raise JobError(
            f"the worker on {variables.get(MACHINE, '')} was given {given} chips of a TPU and sees {seen}; "
            f"look at the topology that is asked for with this machine, or name another in plan.machines"
        )


def mismatch(machine: str, given: str, *, names: Sequence[str]) -> str:
    """Says how the visible GPUs differ from the GPUs given to the job, and what to do; "" if they match.

    More GPUs than given are accepted. Names are compared only where both contain a known model.
    """
    number, _, device = given.partition(" x ")
    seen = f"the worker on {machine} was given {given} and sees {len(names)} x {names[0]}"
    if len(names) < int(number):
        then = "look at CUDA_VISIBLE_DEVICES, and at what is asked for with this machine"
        return f"{seen}; {then}, or name another machine in plan.machines"
    models, wanted = set(MODEL.findall(names[0])), set(MODEL.findall(device))
    if models and wanted and not models & wanted:
        return f"{seen}; fix the device of {machine} in your machines file, or what is asked for with it"
    return ""


def unseen(machine: str, given: str, *, facts: GpuFacts) -> str:
    """Returns why a worker does not see the GPUs of its machine, and what to do."""
    oldest = OLDEST.get(int(facts.cuda.partition(".")[0] or 0), 0)
    image = "the environment" if machine == LOCAL else "backend.image"
    if not facts.cuda:
        why = f"torch {facts.torch} is built without CUDA"
        then = f"build {image} with a torch for CUDA (--build-arg DEVICE=cuda)"
    elif not facts.driver:
        why = "no NVIDIA driver is loaded"
        then = "run train again, and name another machine in plan.machines if it happens again"
    elif int(facts.driver.partition(".")[0]) < oldest:
        why = f"its driver is {facts.driver}, and CUDA {facts.cuda} (torch {facts.torch}) needs {oldest}"
        older = f"build {image} for an older CUDA (--build-arg DEVICE=cu126)"
        then = f"{older}, or name a machine with a newer driver"
    elif not facts.library:
        why = f"its driver {facts.driver} is loaded, but libcuda.so.1 is not found"
        then = f"set LD_LIBRARY_PATH={MOUNTED} in {image}"
    else:
        why = f"its driver {facts.driver} and libcuda.so.1 are there, but torch {facts.torch} finds no device"
        then = "look at CUDA_VISIBLE_DEVICES, and name another machine in plan.machines if it is not that"
    return f"the worker on {machine} was given {given} and sees no GPU: {why}; {then}"


def _gpu_facts() -> GpuFacts:
    import torch

    return GpuFacts(
        torch=str(torch.__version__), cuda=torch.version.cuda or "", driver=driver(), library=_has_library()
    )


def driver(path: Path = DRIVER) -> str:
    """Returns the version of the NVIDIA driver that the kernel has loaded; "" for none."""
    if not path.exists():
        return ""
    match = re.search(r"Kernel Module[^\n]*?\s(\d+(?:\.\d+)+)", path.read_text())
    return match[1] if match else ""


def _has_library() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
