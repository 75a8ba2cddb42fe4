"""Checks whether a cluster would accept a job by params.yaml, rather than leave it waiting for ever.

Nothing is changed: a Job on each machine, or a JobSet, is created by a dry run, which passes the namespace's
policies and quotas and the API's validation.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from daybreak.backends.place import Refused, Unreachable
from daybreak.backends.staging import writable
from daybreak.contract.backend import Job
from daybreak.contract.errors import JobError, ParamsError
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Rental
from daybreak.extensions.kubernetes import manifest, node_labels, pod_status
from daybreak.extensions.kubernetes.cluster_api import JOBSET_VERBS, KUEUE, ClusterApi
from daybreak.extensions.kubernetes.manifest import JOBSET, JobTemplate, KubernetesSite, MachineGroup
from daybreak.extensions.kubernetes.pod_entrypoint import SET_STEM, STEM
from daybreak.extensions.vertex.image import look_up
from daybreak.machines.own_machines import OwnMachine

NEEDED = (
    ("batch", "jobs", "create list delete"),
    ("", "pods", "list"),
    ("", "services", "create"),
    ("", "secrets", "create"),
    ("", "events", "list"),
)
OF_KUEUE = ((KUEUE, "workloads", "list"), (KUEUE, "localqueues", "list"))


def findings(
    site: KubernetesSite, api: ClusterApi, *, machines: Callable[[], Sequence[OwnMachine]], file: str
) -> Iterator[tuple[str, bool, str]]:
    """Yields checks as (name, passed, result or remedy).

    `file` lists the machines; "" if machines are the nodes of the cluster. A cluster that does not answer is
    not asked anything else.
    """
    try:
        needed = [*NEEDED, *(OF_KUEUE if site.queue else ())]
        lacks = [
            f"{verb} {resource}"
            for group, resource, verbs in needed
            for verb in verbs.split()
            if not api.may(verb, resource, group=group)
        ]
        kind = _kind(site, api)
    except (Unreachable, Refused) as error:
        yield "cluster", False, f"{error}; look at the kubeconfig and backend.context"
        return
    text = f"namespace {site.namespace}: this account may do what a night needs"
    if lacks:
        text = (
            f"this account may not {', '.join(lacks)} in namespace {site.namespace}; give it a role "
            f"that may (docs/kubernetes.md)"
        )
    yield "cluster", not lacks, text
    yield "JobSet", *kind
    if site.queue:
        yield "queue", *_queue(site, api)
    yield from _machines(site, api, machines=machines, file=file)
    yield "image", *_image(site.image, key="image")
    if site.tpu_image:
        yield "image for TPUs", *_image(site.tpu_image, key="tpu_image")
    try:
        yield "bucket", True, writable(site.bucket)
    except ParamsError as error:
        yield "bucket", False, str(error)


def _kind(site: KubernetesSite, api: ClusterApi) -> tuple[bool, str]:
    """Returns whether jobs run as JobSets or, which is no error, as Indexed Jobs."""
    if api.makes_job_sets:
        return True, "jobs run as JobSets"
    queued = ", on machines of one kind, as there is a queue" if site.queue else ""
    why = "the cluster has no JobSets"
    if api.serves_job_sets:
        why = f"this account may not {', '.join(JOBSET_VERBS)} jobsets of {JOBSET} in {site.namespace}"
    return True, f"jobs run as Indexed Jobs{queued}: {why}"


def _queue(site: KubernetesSite, api: ClusterApi) -> tuple[bool, str]:
    """Returns whether Kueue has the queue of the settings, and admits jobs from it."""
    name, where = site.queue, f"namespace {site.namespace}"
    try:
        queue = api.local_queue(name)
    except (Unreachable, Refused) as error:
        return False, f"whether {where} has LocalQueue {name} is not known: {error}"
    if queue is None:
        return False, f"{where} has no LocalQueue {name} of Kueue; make it, or set backend.queue"
    if stopped := pod_status.stopped(queue):
        return False, f"LocalQueue {name} takes no jobs ({stopped}); look at its ClusterQueue"
    return True, f"LocalQueue {name} takes jobs"


def _machines(
    site: KubernetesSite, api: ClusterApi, *, machines: Callable[[], Sequence[OwnMachine]], file: str
) -> Iterator[tuple[str, bool, str]]:
    """Yields which machines there are, and whether the cluster would take a job on each."""
    try:
        own = machines()
    except (Unreachable, Refused, ParamsError) as error:
        yield "machines" if file else "nodes", False, str(error)
        return
    nodes: Sequence[Mapping[str, Any]] | None = None
    if not file:
        kinds = ", ".join(f"{each.machine.count} x {each.machine.name}" for each in own)
        yield "nodes", True, f"the machines are nodes of the cluster: {kinds}"
    else:
        try:
            nodes = api.nodes()
        except (Unreachable, Refused) as error:
            yield "nodes", True, f"whether they have the devices of {file} is not known: {error}"
    for each in own:
        ways = {each.machine.name: each.options}
        if each.machine.spot:
            ways[f"{each.machine.name} as spot"] = each.spot_options
        for name, words in ways.items():
            well, text = _job(site, api, each.machine, manifest.chosen(words), nodes=nodes, file=file)
            yield "job", well, f"{name}: {text}"


def _job(
    site: KubernetesSite,
    api: ClusterApi,
    machine: Machine,
    selector: Mapping[str, str],
    *,
    nodes: Sequence[Mapping[str, Any]] | None,
    file: str,
) -> tuple[bool, str]:
    """Returns whether the cluster would take a job on a machine, and has a node for it."""
    job = Job(
        name="check", module="daybreak", rental=Rental(machine=machine.name), folder="check", timeout_s=60
    )
    part = MachineGroup(machine=machine, count=1, selector=selector)
    attempt = JobTemplate(
        job=job, name=f"{STEM}check", staged="check", labels={}, annotations={}, left_s=60, until=0
    )
    of_set = replace(attempt, name=f"{SET_STEM}check")
    try:
        api.try_out(manifest.indexed_job(attempt, part, site=site))
        if api.makes_job_sets:
            api.try_out(manifest.job_set(of_set, [part], site=site, of_jobs={}))
    except (Unreachable, Refused) as error:
        return False, f"{error}; look at namespace {site.namespace}, its quotas and its policies"
    taken = "the cluster would take a job"
    if nodes is None:
        return True, taken
    lacking = node_labels.lacking(nodes, selector, machine)
    if lacking is None:
        return True, f"{taken}, which waits until an autoscaler starts a node: none has the labels in {file}"
    if lacking:
        return False, f"of the nodes {lacking}; install the device's plugin there, or fix its line in {file}"
    return True, taken


def _image(image: str, *, key: str) -> tuple[bool, str]:
    """Returns whether the registry has the image; nodes may see one that this machine does not."""
    try:
        status, digest = look_up(image)
    except (JobError, ParamsError, ImportError) as error:
        why = str(error).partition(";")[0]
        return True, f"whether {image} exists is not known here ({why}); check --rent pulls it"
    if status == HTTPStatus.NOT_FOUND:
        return False, f"backend.{key} {image} does not exist; push it (docs/kubernetes.md), or fix its tag"
    if status == HTTPStatus.OK:
        return True, f"{image} is {digest or 'there'}"
    why = f"its registry answers {status}, without a secret of the cluster's"
    return True, f"whether {image} exists is not known here ({why}); check --rent pulls it"
