"""Runs a job on a Kubernetes cluster as a JobSet where the cluster has that kind, else as an Indexed Job.

A job is named by its token: if the reply to a request was lost, the request is repeated with the same name,
and the cluster answers that the name exists. The name also tells a JobSet from a Job. Machines of another
kind are the pods of a second Job: as soon as one of the two has ended, the job has ended, and the other is
deleted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal

from daybreak.backends.cluster import Cluster
from daybreak.backends.faults import COMMON, GOES_ON, NEXT, Fault
from daybreak.backends.place import AT_ONCE, JobRequest, Refused, Rented, Unreachable, machines_of
from daybreak.backends.submission_journal import Submission
from daybreak.contract.backend import Job, label
from daybreak.contract.code_path import AT_HOME
from daybreak.contract.errors import ParamsError
from daybreak.extensions.kubernetes import cluster_check, manifest, node_labels, pod_status
from daybreak.extensions.kubernetes.cluster_api import ClusterApi
from daybreak.extensions.kubernetes.manifest import JobTemplate, KubernetesSite, MachineGroup
from daybreak.extensions.kubernetes.pod_entrypoint import NAME, NUM_PODS, SET_STEM, STEM, is_job_set
from daybreak.extensions.kubernetes.pod_status import JobObservation
from daybreak.machines.nodes import Node
from daybreak.machines.own_machines import OwnMachine
from daybreak.storage.home import Home

# Annotations of a Job or JobSet.
JOB, NIGHT, FOLDER, UNTIL = "daybreak/job", "daybreak/night", "daybreak/folder", "daybreak/until"
END_S = 120.0  # in which a deleted Job is gone
IMAGE_S = 300.0  # for an image that cannot be pulled: a registry may be away for moments


class Kubernetes(Cluster):
    """Jobs of one namespace."""

    place = "the cluster"

    def __init__(
        self,
        *,
        image: str,
        bucket: str,
        machines: str = "",
        namespace: str = "default",
        context: str = "",
        service_account: str = "",
        queue: str = "",
        wait_minutes: float = 15.0,
        min_machines: int = 0,
        tpu_image: str = "",
        home: Home | None = None,
    ) -> None:
        """Keeps where jobs run.

        `bucket` is the URL for staging; "" where pods have this machine's disk, as those of a test have.
        `wait_minutes` is how long a job may wait for nodes that there are not, and `min_machines` with how
        many a job of more goes on when it loses one; 0: with all. Machines with TPU chips run `tpu_image`,
        or `image` where that is "".
        """
        if min_machines and not bucket:
            raise ParamsError(
                "backend.min_machines needs a bucket, in which pods agree on the one where all meet; set "
                "backend.bucket, or remove backend.min_machines"
            )
        super().__init__(machines=machines, bucket=bucket, retry=replace(AT_ONCE, cancel_s=END_S), home=home)
        self.site = KubernetesSite(
            namespace=namespace,
            image=image,
            tpu_image=tpu_image,
            service_account=service_account,
            queue=queue,
            bucket=bucket,
            min_machines=min_machines,
        )
        self._api = ClusterApi(namespace=namespace, context=context)
        self._context = context
        self.faults = {**COMMON, **_faults(self.site, file=str(self.file), wait_s=60 * wait_minutes)}

    @cached_property
    def joins(self) -> bool:
        """Returns whether a job may have machines of several kinds.

        A queue admits a JobSet as a whole, but two Jobs one by one. While the cluster does not answer, a job
        that has such machines keeps them.
        """
        try:
            return not self.site.queue or self._api.makes_job_sets
        except Unreachable:
            return True

    @property
    def cluster(self) -> str:
        """Returns the name of its context."""
        return f"kubernetes-{self._context or 'current'}"

    def nodes(self) -> Sequence[Node]:
        """Returns the nodes that take pods of ours, on demand."""
        return [made for node in self._api.nodes() if (made := node_labels.node_of(node))]

    def own(self) -> tuple[OwnMachine, ...]:
        """Returns the machines; ParamsError where one has a part of a TPU slice, as a job has all of one."""
        machines = super().own()
        for each in machines:
            for words in filter(None, (each.options, each.spot_options)):
                selector, chips = manifest.chosen(words), each.machine.num_devices
                if each.machine.is_tpu and manifest.num_chips(selector) not in (None, chips):
                    raise ParamsError(
                        f"{self.file}: {each.machine.name} has {chips} chips, and a slice of "
                        f"{selector[manifest.TOPOLOGY]} has {manifest.num_chips(selector)}; name a topology "
                        f"of {chips}, since a job has the chips of one node"
                    )
        return machines

    def make(self, request: JobRequest) -> Rented:
        """Creates the JobSet or Job, or returns the one of that name.

        Of two Jobs for two kinds of machines it creates both or none.
        """
        is_set = self._api.makes_job_sets
        name, job = f"{SET_STEM if is_set else STEM}{request.attempt}", request.job
        notes = {JOB: job.name, NIGHT: job.night, FOLDER: str(request.folder), UNTIL: str(request.until)}
        attempt = JobTemplate(
            job=job,
            name=name,
            staged=request.folder.name,
            labels=_labels(request.labels),
            annotations=notes,
            left_s=request.run_s,
            until=request.until,
        )
        parts = self._parts(job)
        if is_set:
            asked = manifest.job_set(attempt, parts, site=self.site, of_jobs=_attempt(name))
            made = self._api.create(asked)
        else:
            made = self._make_jobs(attempt, parts)
        if made:
            return _found(made)
        there = self.find((), attempt=request.attempt)
        if not there:
            raise Unreachable(f"the cluster does not answer: it has job {name}, and does not list it")
        return there[0]

    def _make_jobs(self, attempt: JobTemplate, parts: Sequence[MachineGroup]) -> dict[str, Any] | None:
        made = self._api.create(manifest.indexed_job(attempt, parts[0], site=self.site))
        try:
            if made:
                self._make_others(attempt.job, made)
        except Refused:
            self._api.delete_job(attempt.name)
            raise
        return made

    def attached(self, rented: Rented, job: Job) -> None:
        """Creates what the pods of a job wait for, if a kill came in between.

        It is a service, where there are several, a Job for those of another kind, and then the secret. The
        first two a JobSet has by its controller.
        """
        name, num_pods = rented.name, job.rental.num_machines
        made: Mapping[str, Any] = rented.evidence
        owner = manifest.owner_of(name, made["metadata"]["uid"])
        labels, pods = {"daybreak": self.home_token}, _attempt(name)
        environment = {key: value for key, value in job.environment.items() if key not in AT_HOME}
        environment |= {"DAYBREAK_ATTEMPT": rented.attempt, NUM_PODS: str(num_pods), NAME: name}
        if not is_job_set(name):
            if num_pods > 1:
                self._api.create(manifest.service(name, labels=labels, owner=owner, pods=pods))
            self._make_others(job, made)
        self._api.create(manifest.secret(name, environment, labels=labels, owner=owner))

    def _make_others(self, job: Job, made: Mapping[str, Any]) -> None:
        """Creates the Jobs of machines of other kinds, with the time of the first Job, which owns them."""
        meta = made["metadata"]
        notes = meta["annotations"]
        attempt = JobTemplate(
            job=job,
            name=meta["name"],
            staged=Path(notes[FOLDER]).name,
            labels=_attempt(meta["name"]),
            annotations={},
            left_s=made["spec"]["activeDeadlineSeconds"],
            until=float(notes[UNTIL]),
        )
        owners = [manifest.owner_of(meta["name"], meta["uid"])]
        for part in self._parts(job)[1:]:
            self._api.create(manifest.indexed_job(attempt, part, site=self.site, owners=owners))

    def _parts(self, job: Job) -> list[MachineGroup]:
        """Returns the machines of the job by kind."""
        parts: list[MachineGroup] = []
        machines = machines_of(job, known=self.machines(), place=self.place)
        for machine, pool in zip(machines, job.rental.pools, strict=True):
            words = self.options(machine.name, job.rental.strategy)
            first = sum(part.count for part in parts)
            selector = manifest.chosen(words)
            parts.append(
                MachineGroup(machine=machine, count=pool.num_machines, selector=selector, first=first)
            )
        return parts

    def find(self, regions: Iterable[str], **labels: str) -> list[Rented]:
        """Returns the jobs of this home with these labels."""
        wanted = _labels({"daybreak": self.home_token, **labels})
        try:
            sets = self._api.job_sets(wanted)
        except Refused:  # then this account has made none
            sets = []
        return [_found(made) for made in (*self._api.jobs(wanted), *sets)]

    def get(self, name: str) -> Rented | None:
        """Returns the job of that name, from its JobSet, Jobs and pods, read in that order."""
        sets = self._api.job_sets(_attempt(name)) if is_job_set(name) else []
        jobs = self._jobs(name)
        head = next(iter(sets if is_job_set(name) else jobs), None)
        if head is None:
            return None
        pods = self._api.pods(_attempt(name))
        seen = pod_status.observation_of(head, jobs, pods)
        if seen.cause == "suspended" and self.site.queue:
            seen = pod_status.observation_of(
                head, jobs, pods, workload=self._api.workload(head["metadata"]["uid"])
            )
        if uid := pod_status.puzzling(seen.cause, head, jobs, pods):
            seen = pod_status.explained(seen, self._api.events(uid))
        return _rented(head, jobs, pods, seen)

    def _jobs(self, name: str) -> list[dict[str, Any]]:
        """Returns the Jobs of a job, that of its first pod first."""
        return sorted(self._api.jobs(_attempt(name)), key=lambda job: str(job["metadata"]["name"]))

    def explained(self, rented: Rented | None, submission: Submission, folder: Path) -> Rented:
        """Returns a job that has ended with why it did; of two Jobs the one that goes on is deleted."""
        until = monotonic() + END_S
        while submission.rental.others and (
            left := [job for job in self._jobs(submission.handle) if not pod_status.is_over(job)]
        ):
            for job in left:
                self._api.delete_job(job["metadata"]["name"])
            if monotonic() > until:
                raise Unreachable(f"a part of job {submission.handle} does not end; look at its pods")
            sleep(self.retry.first_pause_s)
        return super().explained(rented, submission, folder)

    def end(self, name: str) -> None:
        """Deletes the job, and its pods before it."""
        if is_job_set(name):
            self._api.delete_job_set(name)
        else:
            self._api.delete_job(name)

    def owns(self, name: str) -> bool:
        """Returns whether it is the name of a job of ours."""
        return name.startswith(STEM)

    def log_of(self, name: str, folder: Path) -> str:
        """Returns the command that prints what the pods have printed."""
        selector = ",".join(f"{key}={value}" for key, value in _attempt(name).items())
        return f"kubectl logs --namespace {self.site.namespace} --selector {selector}"

    def preflight(self, regions: Sequence[str]) -> Iterator[tuple[str, bool, str]]:
        """Yields whether the cluster would take jobs, and what lacks."""
        of_nodes = self.has_nodes_for_machines
        return cluster_check.findings(
            self.site, self._api, machines=self.own, file="" if of_nodes else str(self.file)
        )


def _found(made: Mapping[str, Any]) -> Rented:
    """Returns a job as its Job or JobSet alone says."""
    jobs = () if is_job_set(made["metadata"]["name"]) else (made,)
    return _rented(made, jobs, (), pod_status.observation_of(made, jobs, ()))


def _rented(
    head: Mapping[str, Any],
    jobs: Sequence[Mapping[str, Any]],
    pods: Sequence[Mapping[str, Any]],
    seen: JobObservation,
) -> Rented:
    """Returns the job described by its JobSet or first Job (`head`), all Jobs, and all pods."""
    meta = head["metadata"]
    there, started, ended = pod_status.times((head, *jobs), pods)
    state: Literal["queued", "running", "succeeded", "ended"] = "ended"
    if seen.cause == "done":
        state = "succeeded"
    elif seen.cause in pod_status.LIVE:
        state = "running" if seen.cause == "running" else "queued"
    notes, attempt = meta.get("annotations", {}), meta["labels"]["daybreak/attempt"]
    stem = SET_STEM if is_job_set(meta["name"]) else STEM
    return Rented(
        name=f"{stem}{attempt}",
        state=state,
        created_at=pod_status.moment(meta["creationTimestamp"]),
        attempt=attempt,
        job=notes.get(JOB, ""),
        night=notes.get(NIGHT, ""),
        folder=notes.get(FOLDER, ""),
        cause=seen.cause,
        since=seen.since,
        said=seen.text,
        status=seen.status,
        there_at=there,
        started_at=started,
        ended_at=ended,
        evidence=head,
    )


def _attempt(name: str) -> dict[str, str]:
    """Returns the label of all that belongs to a job of that name."""
    return _labels({"attempt": name.removeprefix(SET_STEM if is_job_set(name) else STEM)})


def _labels(facts: Mapping[str, str]) -> dict[str, str]:
    """Returns labels of a job; their values begin and end with a letter or digit."""
    return {
        key if key == "daybreak" else f"daybreak/{key}": label(value).strip("-_") or "none"
        for key, value in facts.items()
    }


def _faults(site: KubernetesSite, *, file: str, wait_s: float) -> dict[str, Fault]:
    """Returns why a job may end here beside `COMMON`; `file` lists the machines."""
    refused = partial(Fault, state="refused", patience_s=wait_s)
    longer = f"{NEXT}; a longer wait comes from backend.wait_minutes"
    return {
        "not taken": Fault(
            state="refused",
            text=f"the cluster does not take job {{job}} on {{what}}{{said}}; look at the quota of "
            f"namespace {site.namespace}, and at {file}; {NEXT}",
        ),
        "unschedulable": refused(text=f"no node takes job {{job}} on {{machine}}{{said}}; {longer}"),
        "no pods": refused(
            text=f"the cluster makes no pods of job {{job}} on {{what}}{{said}}; look at the quotas and "
            f"policies of namespace {site.namespace}; {longer}"
        ),
        "not started": refused(text=f"a node does not start job {{job}} on {{machine}}{{said}}; {longer}"),
        "not admitted": refused(
            text=f"Kueue will not admit job {{job}} on {{machine}} to queue {site.queue}{{said}}; {NEXT}"
        ),
        "no image": Fault(
            state="failed",
            final=True,
            patience_s=IMAGE_S,
            text=f"job {{job}} cannot start{{said}}; look at backend.image, {site.image}"
            + (f", and backend.tpu_image, {site.tpu_image}" if site.tpu_image else ""),
        ),
        "disrupted": Fault(
            state="preempted", text=f"job {{job}} was disrupted on {{machine}}{{said}}; {GOES_ON}"
        ),
    }
