"""Describes this machine: cores, memory, caches, and a fingerprint of everything that decides speed."""

import hashlib
import json
import os
import platform
import resource
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
STATUS = Path("/proc/self/status")
CACHE_BYTES = 32 << 20  # if the kernel does not say
KEPT = timedelta(days=7)  # how long measurements hold: a virtual machine may have moved by then
KEPT_DISTURBED = timedelta(hours=20)  # those that other processes disturbed: until the next night


def fingerprint() -> dict[str, Any]:
    """Returns the facts of this machine that decide its speed."""
    import torch

    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "cpu": _cpu_name(),
        "num_cores": num_cores(),
        "num_threads": torch.get_num_threads(),
        "memory_gib": round(installed_bytes() / 2**30),
        "devices": names,
        "torch": str(torch.__version__),
    }


def facts_digest(facts: Any) -> str:
    """Returns a short digest of facts of JSON types."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def installed_bytes() -> int:
    """Returns the bytes of memory of this machine, or of the container if that has less."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    names = {1: "memory.limit_in_bytes", 2: "memory.max"}
    paths = [folder / names[version] for folder, version in own_cgroups("memory")]
    limits = [path.read_text().strip() for path in paths if path.exists()]
    return min([installed, *(int(limit) for limit in limits if limit.isdigit())])


def own_cgroups(controller: str) -> Iterator[tuple[Path, Literal[1, 2]]]:
    """Yields the folders of this process's cgroup and its parents, each with the version of cgroups."""
    for line in OWN_CGROUPS.read_text().splitlines() if OWN_CGROUPS.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUPS / controller if controllers else CGROUPS
        own = root / path.lstrip("/")  # a container may see it at the root instead
        for folder in (own, *own.parents):
            if folder.is_relative_to(root):
                yield folder, 1 if controllers else 2


def limit_bytes() -> int | None:
    """Returns the bytes left within the limits of this process (`ulimit -d`, `-v`); None: no limit."""
    if not STATUS.exists():
        return None
    used = status()
    kinds = {resource.RLIMIT_DATA: "VmData", resource.RLIMIT_AS: "VmSize"}
    limits = [(resource.getrlimit(kind)[0], used[name]) for kind, name in kinds.items()]
    left = [limit - taken for limit, taken in limits if limit != resource.RLIM_INFINITY]
    return max(0, min(left)) if left else None


def status() -> dict[str, int]:
    """Returns the sizes of this process in bytes, by the kernel's names."""
    lines = (line.split() for line in STATUS.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1:] == ["kB"]}


def last_cache_bytes() -> int:
    """Returns the bytes of the last cache before the device's memory."""
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).L2_cache_size)
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("*/size")]
    return max((int(text[:-1]) << 10 for text in sizes if text.endswith("K")), default=CACHE_BYTES)


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
