"""Builds what a cluster gets for a job: a JobSet or an Indexed Job, and a secret with its environment.

The pods of a Job are its machines. Each has a stable name behind a headless service, by which those of
several find each other. A disruption (preemption, eviction, a drained node) ends the Job, as the launcher
decides what comes next, and is told from an error of the user's code by the conditions of the pod. Where a
job may go on with fewer machines, a disrupted pod is replaced instead, and the Job ends with any of its pods.
Machines of another kind are the pods of a second Job. A JobSet makes both Jobs and the service; without
JobSet the second Job belongs to the first, as does the service, which is then built here. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from daybreak.contract.backend import Job
from daybreak.contract.machine import Machine
from daybreak.extensions.kubernetes.pod_entrypoint import (
    FIRST_POD,
    MIN_PODS,
    is_job_set,
    job_name,
    replicated_job,
)
from daybreak.training import gpus

WORKER = "worker"  # the container
GPU, TPU = "nvidia.com/gpu", "google.com/tpu"  # resources of a node, and keys of its taint
TOPOLOGY = "cloud.google.com/gke-tpu-topology"  # label of a node: how the chips of its slice are joined
QUEUE = "kueue.x-k8s.io/queue-name"
JOBSET, JOBSET_VERSION = "jobset.x-k8s.io", "v1alpha2"  # group of the API
ENTRYPOINT = ("python", "-m", "daybreak.extensions.kubernetes.pod_entrypoint")
GRACE_S = 60  # from SIGTERM to SIGKILL, for a last checkpoint
KEPT_S = 2 * 86_400  # that an ended Job stays, so that a look the next day sees why it ended
SHARE = 0.9  # of a node's cores and memory, as the system of the node takes its part


@dataclass(frozen=True, kw_only=True)
class KubernetesSite:
    """Where jobs run and under which account: the settings of the backend in params.yaml."""

    namespace: str
    image: str
    tpu_image: str = ""  # the image built for TPUs; "": `image` is
    service_account: str = ""
    queue: str = ""  # a LocalQueue of Kueue; jobs are then created suspended, and Kueue admits them
    bucket: str = ""  # URL for staging
    min_machines: int = 0  # with which a job of more goes on; 0: only with all


@dataclass(frozen=True, kw_only=True)
class MachineGroup:
    """The machines of one kind among those of a job."""

    machine: Machine
    count: int
    selector: Mapping[str, str]  # labels of the nodes; pods tolerate taints of the same keys
    first: int = 0  # machines of the job that come before these


@dataclass(frozen=True, kw_only=True)
class JobTemplate:
    """The parts of a request that are the same for all machines of an attempt."""

    job: Job
    name: str  # of the JobSet or the Job of the first part, and of the service and the secret
    staged: str  # name of the job in the bucket, the same for all attempts
    labels: Mapping[str, str]  # by which the attempt is found; pods have them, too
    annotations: Mapping[str, str]  # for people
    left_s: float  # how long it may run, in seconds; the cluster ends it then
    until: float  # when the module ends by itself, in seconds since 1970


def indexed_job(
    attempt: JobTemplate,
    part: MachineGroup,
    *,
    site: KubernetesSite,
    owners: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Returns the Job that a part of the job's machines are; it is deleted with its `owners`."""
    name = job_name(attempt.name, first=part.first)
    made = _object("batch/v1", "Job", name, _spec(attempt, part, site=site), attempt=attempt, site=site)
    if owners:
        made["metadata"]["ownerReferences"] = [dict(owner) for owner in owners]
    return made


def job_set(
    attempt: JobTemplate, parts: Sequence[MachineGroup], *, site: KubernetesSite, of_jobs: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the JobSet that the job is: each part of its machines is a Job of it, with labels `of_jobs`.

    It is done when the Job of the first part is, and fails with any of them: the others are then deleted,
    and nothing is restarted, as that is up to the launcher.
    """
    jobs = [
        {
            "name": replicated_job(first=part.first),
            "replicas": 1,
            "template": {
                "metadata": {"labels": dict(of_jobs)},
                "spec": _spec(attempt, part, site=site),
            },
        }
        for part in parts
    ]
    spec: dict[str, Any] = {
        "replicatedJobs": jobs,
        "network": {
            "enableDNSHostnames": attempt.job.rental.num_machines > 1,
            "publishNotReadyAddresses": True,  # workers meet before any of them is ready
        },
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [jobs[0]["name"]]},
        "failurePolicy": {"maxRestarts": 0},
    }
    return _object(f"{JOBSET}/{JOBSET_VERSION}", "JobSet", attempt.name, spec, attempt=attempt, site=site)


def _object(
    version: str, kind: str, name: str, spec: Mapping[str, Any], *, attempt: JobTemplate, site: KubernetesSite
) -> dict[str, Any]:
    """Returns a Job or JobSet, which waits in the queue if the site has one."""
    queued = {"suspend": True} if site.queue else {}
    marks = {QUEUE: site.queue} if site.queue else {}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {
            "name": name,
            "labels": {**attempt.labels, **marks},
            "annotations": dict(attempt.annotations),
        },
        "spec": {**spec, "ttlSecondsAfterFinished": KEPT_S, **queued},
    }


def _spec(attempt: JobTemplate, part: MachineGroup, *, site: KubernetesSite) -> dict[str, Any]:
    """Returns what a Job by itself and one of a JobSet have in common."""
    count = part.count
    is_elastic = 0 < site.min_machines < count and not attempt.job.rental.others
    spec: dict[str, Any] = {
        "completions": count,
        "parallelism": count,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "activeDeadlineSeconds": max(1, int(attempt.left_s)),
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
            "metadata": {"labels": dict(attempt.labels)},
            "spec": _pod(attempt, part, site=site),
        },
    }
    if is_elastic:
        spec["successPolicy"] = {"rules": [{"succeededCount": 1}]}
        (container,) = spec["template"]["spec"]["containers"]
        container.setdefault("env", []).append({"name": MIN_PODS, "value": str(site.min_machines)})
    return spec


def _pod(attempt: JobTemplate, part: MachineGroup, *, site: KubernetesSite) -> dict[str, Any]:
    job, machine, selector = attempt.job, part.machine, part.selector
    asked: dict[str, str] = {
        "cpu": f"{int(1000 * SHARE * machine.vcpus)}m",
        "memory": str(int(SHARE * machine.memory_bytes)),
    }
    device = device_of(machine)
    if device:
        asked[device] = str(machine.num_devices)
    num_workers = machine.num_processes if job.rental.others and job.num_workers else job.num_workers
    words = ["--until", str(attempt.until), "--workers", str(num_workers)]
    if site.bucket:
        words += ["--bucket", site.bucket, "--job", attempt.staged, "--folder", job.folder]
    container: dict[str, Any] = {
        "name": WORKER,
        "image": (machine.is_tpu and site.tpu_image) or site.image,
        "command": list(ENTRYPOINT),
        "args": [*words, "--", job.module, *job.arguments],
        "envFrom": [{"secretRef": {"name": attempt.name}}],
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
        "subdomain": attempt.name,
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
    """Returns the reference that ties an object to the Job or JobSet of that name."""
    version, kind = (f"{JOBSET}/{JOBSET_VERSION}", "JobSet") if is_job_set(name) else ("batch/v1", "Job")
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "blockOwnerDeletion": False}


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
