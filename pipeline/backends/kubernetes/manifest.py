"""Builds what a cluster gets for a job: an Indexed Job, a headless service, a secret with its environment.

The pods of a Job are its machines. Each has a stable name behind the service, by which those of several find
each other. A disruption (preemption, eviction, a drained node) ends the Job, as the launcher decides what
comes next, and is told from an error of the user's code by the conditions of the pod. Where a job may go on
with fewer machines, a disrupted pod is replaced instead, and the Job ends with its first pod. Machines of
another kind are the pods of a second Job, which belongs to the first. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from pipeline.backends.kubernetes.pod_entrypoint import FIRST_POD, MIN_PODS, job_name
from pipeline.contract.backend import Job
from pipeline.contract.machine import Machine
from pipeline.training import gpus

WORKER = "worker"  # the container
GPU, TPU = "nvidia.com/gpu", "google.com/tpu"  # resources of a node, and keys of its taint
TOPOLOGY = "cloud.google.com/gke-tpu-topology"  # label of a node: how the chips of its slice are joined
QUEUE = "kueue.x-k8s.io/queue-name"
ENTRYPOINT = ("python", "-m", "pipeline.backends.kubernetes.pod_entrypoint")
GRACE_S = 60  # from SIGTERM to SIGKILL, for a last checkpoint
KEPT_S = 2 * 86_400  # that an ended Job stays, so that a look the next day sees why it ended
SHARE = 0.9  # of a node's cores and memory, as the system of the node takes its part


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where jobs run and under which account: the settings of the backend in params.yaml."""

    namespace: str
    image: str
    tpu_image: str = ""  # the image built for TPUs; "": `image` is
    service_account: str = ""
    queue: str = ""  # a LocalQueue of Kueue; jobs are then created suspended, and Kueue admits them
    bucket: str = ""  # URL for staging
    min_machines: int = 0  # with which a job of more goes on; 0: only with all


@dataclass(frozen=True, kw_only=True)
class Part:
    """The machines of one kind among those of a job."""

    machine: Machine
    count: int
    selector: Mapping[str, str]  # labels of the nodes; pods tolerate taints of the same keys
    first: int = 0  # machines of the job that come before these


def indexed_job(
    job: Job, part: Part, *, name: str, staged: str, site: Site, labels: Mapping[str, str],
    annotations: Mapping[str, str], left_s: float, until: float, owners: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:  # fmt: skip
    """Returns the Job that a part of the job's machines are.

    Args:
        job: what runs.
        part: what it runs on.
        name: of the Job of the first part, unique to this attempt.
        staged: name of the job in the bucket, the same for all attempts.
        site: the settings of the backend.
        labels: by which it is found.
        annotations: what a person may want to know.
        left_s: how long it may run, in seconds; the cluster ends it then.
        until: when the module ends by itself, in seconds since 1970.
        owners: with which it is deleted.
    """
    count = part.count
    is_elastic = 0 < site.min_machines < count and not job.rental.others
    spec: dict[str, Any] = {
        "completions": count,
        "parallelism": count,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "activeDeadlineSeconds": max(1, int(left_s)),
        "ttlSecondsAfterFinished": KEPT_S,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "Ignore" if is_elastic else "FailJob",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": WORKER, "operator": "NotIn", "values": [0]},
                },
            ]
        },
        "template": {
            "metadata": {"labels": dict(labels)},
            "spec": _pod(job, part, name=name, staged=staged, site=site, until=until),
        },
    }
    if is_elastic:
        spec["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
        (container,) = spec["template"]["spec"]["containers"]
        container.setdefault("env", []).append({"name": MIN_PODS, "value": str(site.min_machines)})
    marked = dict(labels)
    if site.queue:
        spec["suspend"] = True
        marked[QUEUE] = site.queue
    metadata: dict[str, Any] = {
        "name": job_name(name, first=part.first),
        "labels": marked,
        "annotations": dict(annotations),
    }
    if owners:
        metadata["ownerReferences"] = [dict(owner) for owner in owners]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _pod(job: Job, part: Part, *, name: str, staged: str, site: Site, until: float) -> dict[str, Any]:
    machine, selector = part.machine, part.selector
    asked: dict[str, str] = {
        "cpu": f"{int(1000 * SHARE * machine.vcpus)}m",
        "memory": str(int(SHARE * machine.memory_bytes)),
    }
    device = device_of(machine)
    if device:
        asked[device] = str(machine.num_devices)
    num_workers = machine.num_processes if job.rental.others and job.num_workers else job.num_workers
    words = ["--until", str(until), "--workers", str(num_workers)]
    if site.bucket:
        words += ["--bucket", site.bucket, "--job", staged, "--folder", job.folder]
    container: dict[str, Any] = {
        "name": WORKER,
        "image": (machine.is_tpu and site.tpu_image) or site.image,
        "command": list(ENTRYPOINT),
        "args": [*words, "--", job.module, *job.arguments],
        "envFrom": [{"secretRef": {"name": name}}],
        "resources": {"requests": asked, "limits": asked},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    own: dict[str, str] = {}
    if machine.is_tpu:
        own = {"PJRT_DEVICE": "TPU", gpus.MACHINE: machine.name, gpus.CHIPS: str(machine.num_devices)}
    if job.rental.others:  # before what the secret says of the first part
        own |= {gpus.MACHINE: machine.name, gpus.GPUS: machine.gpus, FIRST_POD: str(part.first)}
    if own:
        container["env"] = [{"name": key, "value": value} for key, value in own.items()]
    taints = dict.fromkeys([*selector, *([device] if device else [])])
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "subdomain": name,
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": False,
        "nodeSelector": dict(selector),
        "tolerations": [{"key": key, "operator": "Exists"} for key in taints],
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    if site.service_account:
        pod |= {"serviceAccountName": site.service_account, "automountServiceAccountToken": True}
    return pod


def service(
    name: str, *, labels: Mapping[str, str], owner: Mapping[str, Any], pods: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the headless service that gives pods with some labels names; it is deleted with its Job."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": dict(labels), "ownerReferences": [dict(owner)]},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # workers meet before any of them is ready
            "selector": dict(pods),
        },
    }


def secret(
    name: str, environment: Mapping[str, str], *, labels: Mapping[str, str], owner: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the secret with the environment of the job, since an address may hold a password."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": dict(labels), "ownerReferences": [dict(owner)]},
        "type": "Opaque",
        "stringData": dict(environment),
    }


def owner_of(name: str, uid: str) -> dict[str, Any]:
    """Returns the reference that ties an object to the Job."""
    return {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "blockOwnerDeletion": False}


def device_of(machine: Machine) -> str:
    """Returns the resource by which a pod asks for the machine's devices; "" where it has none."""
    return TPU if machine.is_tpu else GPU if machine.num_devices else ""


def num_chips(selector: Mapping[str, str]) -> int | None:
    """Returns the chips of the slice that these labels choose; None where they name no topology.

    >>> num_chips({"cloud.google.com/gke-tpu-topology": "2x4"})
    8
    """
    topology = selector.get(TOPOLOGY)
    return prod(int(side) for side in topology.split("x")) if topology else None


def chosen(words: Sequence[str]) -> dict[str, str]:
    """Returns the labels of nodes that `KEY=VALUE` words name.

    >>> chosen(["cloud.google.com/gke-accelerator=nvidia-l4"])
    {'cloud.google.com/gke-accelerator': 'nvidia-l4'}
    """
    return dict(word.partition("=")[::2] for word in words)
