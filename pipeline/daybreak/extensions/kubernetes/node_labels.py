"""Reads a Kubernetes node as a machine: labels, taints and allocatable resources."""

from collections.abc import Mapping, Sequence
from typing import Any

from daybreak.contract.machine import Machine
from daybreak.extensions.kubernetes.manifest import GPU, device_of
from daybreak.machines.nodes import PRICE, Node, usd_per_hour

TYPE = "node.kubernetes.io/instance-type"
# Labels with the GPU of a node, from Nvidia's feature discovery and from GKE.
PRODUCTS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")
SPOT = {
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "eks.amazonaws.com/capacityType": "SPOT",
    "karpenter.sh/capacity-type": "spot",
    "kubernetes.azure.com/scalesetpriority": "spot",
}


def node_of(node: Mapping[str, Any]) -> Node | None:
    """Returns what the node offers.

    None where it takes no pods of ours: it is not ready, cordoned, of Windows, or has a taint that they do
    not tolerate. None, too, for a spot node, which needs a row in the team's file to be planned as spot.
    """
    from kubernetes.utils.quantity import parse_quantity

    labels, spec, status = node["metadata"].get("labels") or {}, node.get("spec") or {}, node["status"]
    allocatable = status.get("allocatable") or {}
    cpu, memory, gpus = (parse_quantity(allocatable.get(name, "0")) for name in ("cpu", "memory", GPU))
    selector = {key: labels[key] for key in (TYPE, *(PRODUCTS if gpus else ())) if key in labels}
    tolerated = {*selector, *([GPU] if gpus else [])}
    taints = {taint["key"] for taint in spec.get("taints") or () if taint.get("effect") != "PreferNoSchedule"}
    is_ready = all(
        each["status"] == "True" for each in status.get("conditions") or () if each["type"] == "Ready"
    )
    is_spot = any(labels.get(key) == value for key, value in SPOT.items())
    is_other = labels.get("kubernetes.io/os", "linux") != "linux"
    if not is_ready or spec.get("unschedulable") or is_other or is_spot or taints - tolerated or not memory:
        return None
    return Node(
        kind=labels.get(TYPE, "node"),
        product=next((labels[key] for key in PRODUCTS if key in labels), ""),
        num_devices=int(gpus),
        vcpus=max(1, round(cpu)),  # a system that takes a part of a core leaves that many to ask 90 % of
        memory_bytes=int(memory),
        options=tuple(f"{key}={value}" for key, value in selector.items()),
        usd_per_hour=usd_per_hour(
            labels.get(PRICE, "0"), where=f"label {PRICE} of node {node['metadata']['name']}"
        ),
    )


def lacking(nodes: Sequence[Mapping[str, Any]], selector: Mapping[str, str], machine: Machine) -> str | None:
    """Names the devices of the machine that every node with these labels lacks; "" if a node has all.

    None where no node has the labels.
    """
    chosen = [node for node in nodes if selector.items() <= (node["metadata"].get("labels") or {}).items()]
    if not chosen:
        return None
    device = device_of(machine)
    most = max(int((node["status"].get("allocatable") or {}).get(device, 0)) for node in chosen)
    if not device or most >= machine.num_devices:
        return ""
    return f"{len(chosen)} have its labels, and none has {machine.num_devices} {device}, at most {most}"
