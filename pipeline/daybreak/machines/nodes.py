"""Derives a team's own machines from the nodes of its cluster, for a team without a file of machines.

Nodes with the same options, GPUs and cores are one row of `own_machines`: their number, the least memory, the
highest price. FLOP/s and bandwidth, which nodes do not report, come from the catalog's entry of the device. A
device that the catalog lacks needs a row in the file.

A kind of node stays known for a day after it was last seen: an autoscaler removes idle nodes, and a job that
lost its node is submitted again by the same name.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from daybreak.contract.errors import JobError, ParamsError
from daybreak.contract.records import replace_text
from daybreak.machines import catalog, own_machines
from daybreak.machines.own_machines import GB, OwnMachine

log = logging.getLogger(__name__)

KNOWN_FOR = timedelta(days=1)
PRICE = "daybreak/usd-per-hour"  # label of a node with its price by the hour
NAMED_OTHERWISE = {"nvidia-tesla-a100": "A100 40GB"}  # by GKE, which calls the larger one nvidia-a100-80gb
SLOWER = frozenset(("pcie", "nvl"))  # variants of Hopper; the catalog has the figures of SXM
PARTS = frozenset(("mig", "shared"))  # of a GPU


@dataclass(frozen=True, kw_only=True)
class Node:
    """What a node offers to jobs."""

    kind: str  # begins the name of its machine: the type of instance, the partition
    product: str  # the cluster's name of its GPUs; "" where nothing names them
    num_devices: int
    vcpus: int
    memory_bytes: int
    options: tuple[str, ...]  # with which a job asks for a node like it
    usd_per_hour: float = 0.0

    @property
    def name(self) -> str:
        """Returns the name of its machine, such as `main-4x-a100-80gb-64cpu`."""
        devices = f"-{self.num_devices}x-{self.product}" if self.num_devices else ""
        return re.sub(r"[^a-z0-9.]+", "-", f"{self.kind}{devices}-{self.vcpus}cpu".lower()).strip("-")


def device(product: str) -> str:
    """Returns the catalog's name of a GPU that a cluster calls so; "" where the catalog has none like it.

    >>> device("NVIDIA-A100-SXM4-80GB"), device("h100"), device("NVIDIA-H100-PCIe"), device("NVIDIA-L40S")
    ('A100 80GB', 'H100', '', '')
    """
    if product in NAMED_OTHERWISE:
        return NAMED_OTHERWISE[product]
    words = set(re.findall(r"[a-z0-9]+", product.lower()))
    if words & PARTS:
        return ""
    known = {each.device for each in catalog.rented() if each.gpus}
    alike = [name for name in known if set(name.lower().split()) <= words]
    name = max(alike, key=len, default="")
    return "" if name.startswith("H") and words & SLOWER else name


def usd_per_hour(text: str, *, where: str) -> float:
    """Returns the price in `text`; ParamsError, beginning with `where`, if the text is not a valid price."""
    try:
        usd = float(text)
    except ValueError:
        usd = -1.0
    if not 0 <= usd < float("inf"):
        raise ParamsError(f"{where} is {text!r}; set it to dollars, such as 2.50")
    return usd


def rows(nodes: Iterable[Node], *, place: str, file: Path) -> list[dict[str, str]]:
    """Returns a row of `own_machines` for nodes alike, by name.

    Nodes with GPUs that the catalog does not know are left out with a warning; where nothing else is there,
    ParamsError says so.
    """
    alike: dict[str, list[Node]] = {}
    for node in nodes:
        alike.setdefault(node.name, []).append(node)
    made, unknown = [], []
    for name, group in sorted(alike.items()):
        first = group[0]
        known = device(first.product) if first.num_devices else "cpu"
        if not known:
            unknown.append(f"{first.num_devices} x {first.product or 'a GPU that nothing names'}")
            continue
        made.append(
            {
                "name": name,
                "device": known,
                "num_devices": str(first.num_devices),
                "vcpus": str(first.vcpus),
                "memory_gb": f"{min(node.memory_bytes for node in group) / GB:.3f}",
                "count": str(len(group)),
                "options": " ".join(first.options),
                "usd_per_hour": str(max(node.usd_per_hour for node in group)),
            }
        )
    if unknown:
        text = (
            f"{place} has nodes with {', '.join(dict.fromkeys(unknown))}, which the catalog does not know; "
            f"write a row for each kind of node that a plan may choose in {file}, with its flops_per_s"
        )
        if not made:
            raise ParamsError(text)
        log.warning("%s; until then the other nodes are planned with", text)
    if not made:
        raise ParamsError(
            f"{place} has no node that is ready for jobs; look at its nodes, or write your machines in {file}"
        )
    return made


def machines(
    read: Callable[[], Sequence[Node]], *, kept: Path | None, place: str, file: Path
) -> tuple[OwnMachine, ...]:
    """Returns the machines that the nodes are, with those that were in the last day.

    While the cluster does not answer, they are those of the file `kept`. Where there is none, or it has none,
    the error that says so is raised.
    """
    now = datetime.now(UTC)
    known = {
        name: each
        for name, each in (_kept(kept) if kept else {}).items()
        if now - datetime.fromisoformat(each["seen"]) <= KNOWN_FOR
    }
    try:
        fresh = rows(read(), place=place, file=file)
    except (JobError, ParamsError) as error:
        if not known:
            raise
        log.warning("%s; its nodes are taken as they were last seen", error)
    else:
        known |= {row["name"]: {"seen": now.isoformat(), "row": row} for row in fresh}
        if kept:
            kept.parent.mkdir(parents=True, exist_ok=True)
            replace_text(kept, json.dumps(known, indent=1))
    lines = [(f"{place}, its nodes {name}", known[name]["row"]) for name in sorted(known)]
    return own_machines.parsed(lines, source=f"the nodes of {place}", dated=now.date())


def _kept(path: Path) -> dict[str, Any]:
    try:
        known: dict[str, Any] = json.loads(path.read_text())
        return known
    except (OSError, ValueError):  # the next answer of the cluster writes it anew
        return {}
