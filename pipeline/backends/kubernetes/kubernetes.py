"""Runs a job on a Kubernetes cluster as an Indexed Job, one at most, however often it is submitted.

A Job is found by its labels, and named by what it runs and the number of the attempt: where the reply to a
request was lost, the same name is asked for again, and the cluster says that it has it. What was rented is
kept beside the job (submission_journal.py), since a cluster forgets.
"""

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.backends import ownership, staging
from pipeline.backends.cluster import Cluster, ClusterRefused, ClusterUnreachable, leave, left_s
from pipeline.backends.kubernetes import manifest, pod_status
from pipeline.backends.kubernetes.cluster_api import ClusterApi
from pipeline.backends.kubernetes.manifest import Site
from pipeline.backends.kubernetes.pod_entrypoint import NAME, NUM_PODS
from pipeline.backends.kubernetes.pod_status import Seen
from pipeline.backends.submission_journal import Submission, SubmissionJournal
from pipeline.contract.backend import LIVE, Job, LiveJob, State, label
from pipeline.contract.errors import JobError
from pipeline.contract.records import replace_text
from pipeline.machines.own_machines import OwnMachine
from pipeline.storage.bucket import BucketFolder

log = logging.getLogger(__name__)

JOB, NIGHT, FOLDER = "daybreak/job", "daybreak/night", "daybreak/folder"  # annotations of a Job
END_S, POLL_S = 120.0, 0.2  # in which a deleted Job is gone
IMAGE_S = 300.0  # for an image that cannot be pulled: a registry may be away for moments


class Kubernetes(Cluster):
    """Jobs of one namespace."""

    def __init__(
        self,
        *,
        image: str,
        machines: str = "machines.csv",
        namespace: str = "default",
        context: str = "",
        service_account: str = "",
        queue: str = "",
        bucket: str = "",
        wait_minutes: float = 15.0,
    ) -> None:
        """Keeps where jobs run; `wait_minutes` is how long a job may wait for nodes that there are not."""
        super().__init__(machines=machines)
        self.site = Site(
            namespace=namespace, image=image, service_account=service_account, queue=queue, bucket=bucket
        )
        self._wait_s = 60 * wait_minutes
        self._bucket = BucketFolder(url=bucket) if bucket else None
        self._api = ClusterApi(namespace=namespace, context=context)

    def submitted(self, job: Job, machine: OwnMachine, journal: SubmissionJournal) -> str:
        """Submits the job unless it stands, and returns the name of its Job."""
        standing = self._standing(job.name)
        for each in standing:
            self._adopt(each, journal, job)
        mine = [journal.of(each["metadata"]["name"]) for each in standing]
        states = {each.resource: self.known(journal, each) for each in mine if each}
        kept = next((name for name, state in states.items() if state in LIVE or state == "succeeded"), "")
        if kept:
            self._end_others(standing, kept)
            self._complete(kept, job, standing)
            return kept
        number = 1 + max((_number(name) for name in [*states, *self._known(journal, job.name)]), default=0)
        name = f"{_stem(job.name)}-{number}"
        now = datetime.now(UTC)
        seconds = left_s(job, now)
        labels = self._labels(job, number)
        request = manifest.indexed_job(
            job, machine.machine, name=name, selector=manifest.chosen(machine.words(job.rental.strategy)),
            site=self.site, labels=labels, annotations={JOB: job.name, NIGHT: job.night, FOLDER: job.folder},
            staged=_stem(job.name), left_s=seconds, until=now.timestamp() + seconds,
        )  # fmt: skip
        replace_text(journal.folder / "attempt", name)
        if self._bucket and (journal.folder / "job.json").exists():
            staging.pack(self._bucket, _stem(job.name), journal.folder, night=Path())
        submission = Submission(
            attempt=name, job=job.name, rental=job.rental, asked_at=now.isoformat(), resource=name
        )
        try:
            made = self._api.create_job(request)
        except ClusterRefused as refused:
            why = (
                f"the cluster does not take job {job.name} on {job.rental} ({refused}); look at the quota of "
            )
            return self.refuse(
                journal, submission, f"{why}namespace {self.site.namespace}, and at {self.file}"
            )
        journal.put(submission)
        self._complete(name, job, [made] if made else self._standing(job.name))
        return name

    def _complete(self, name: str, job: Job, standing: Sequence[Mapping[str, Any]]) -> None:
        """Creates the secret and the service that the pods of a Job wait for, if a kill came in between."""
        made = next((each for each in standing if each["metadata"]["name"] == name), None)
        if made is None:
            return
        owner = manifest.owner_of(name, made["metadata"]["uid"])
        labels = {"daybreak": self.home}
        environment = {
            key: value for key, value in job.environment.items() if key != "PYTHONPATH"
        } | {"PIPELINE_ATTEMPT": name, NUM_PODS: str(job.rental.num_machines), NAME: name}  # fmt: skip
        if job.rental.num_machines > 1:
            self._api.create_service(manifest.service(name, labels=labels, owner=owner))
        self._api.create_secret(
            manifest.secret(name, environment, labels=labels, owner=owner)
        )  # pods wait for it

    def _standing(self, job: str) -> list[dict[str, Any]]:
        return self._api.jobs({"daybreak": self.home, "daybreak/job": label(job)})

    def _adopt(self, made: Mapping[str, Any], journal: SubmissionJournal, job: Job) -> None:
        """Records a Job whose request was not answered, or whose journal was lost."""
        name = made["metadata"]["name"]
        if journal.of(name) is None:
            asked = made["metadata"]["creationTimestamp"]
            journal.put(
                Submission(attempt=name, job=job.name, rental=job.rental, asked_at=asked, resource=name)
            )

    def _known(self, journal: SubmissionJournal, job: str) -> list[str]:
        return [each.attempt for each in journal.submissions() if each.job == job]

    def _end_others(self, standing: Sequence[Mapping[str, Any]], kept: str) -> None:
        for other in standing:
            name = other["metadata"]["name"]
            if name != kept and pod_status.seen(other, ()).state in LIVE:
                log.warning("job %s lives twice; ending Job %s, %s stays", _stem(kept), name, kept)
                self._api.delete_job(name)

    def looked(self, journal: SubmissionJournal, submission: Submission) -> State:
        """Returns the state of a submission, and records it with its times."""
        name = submission.resource
        standing = self._standing(submission.job)
        job = next((each for each in standing if each["metadata"]["name"] == name), None)
        pods = self._api.pods({manifest.OF_A_JOB: name}) if job else []
        seen = pod_status.seen(job, pods) if job else Seen(cause="gone")
        if seen.state in LIVE:
            self._end_others(standing, name)
        return self._record(journal, submission, job, pods, seen)

    def _record(
        self, journal: SubmissionJournal, submission: Submission, job: Mapping[str, Any] | None,
        pods: Sequence[Mapping[str, Any]], seen: Seen,
    ) -> State:  # fmt: skip
        """Records the state and the times; ends a Job that waits for what does not come."""
        name, state = submission.attempt, seen.state
        started, ended = pod_status.times(job, pods) if job else (None, None)
        final = seen.cause == "out of memory"
        if state in LIVE:
            waited_s = (datetime.now(UTC) - seen.since).total_seconds() if seen.since else 0.0
            most_s = submission.rental.max_wait_s or self._wait_s
            if seen.cause == "unschedulable" and waited_s > most_s:
                self._api.delete_job(name)
                state = "refused"
            elif seen.cause == "no image" and waited_s > IMAGE_S:
                self._api.delete_job(name)
                state, final = "failed", True
        self._exchange(journal, _stem(submission.job), alive=state in LIVE)
        times = {"started_at": _iso(started)} if started else {}
        if state in LIVE:
            journal.change(name, state=state, **times)
            return state
        text = "" if state == "succeeded" else _sentence(submission, seen, file=self.file, site=self.site)
        if text:
            log.warning("%s", text)
            leave(journal, name, text, final=final)
        journal.change(name, state=state, reason=text, ended_at=_iso(ended or datetime.now(UTC)), **times)
        return state

    def _exchange(self, journal: SubmissionJournal, name: str, *, alive: bool) -> None:
        """Fetches what the job has left in the bucket, and sends it what has changed."""
        if not self._bucket:
            return
        try:
            if alive:
                staging.push_updates(self._bucket, name, journal.folder)
            staging.pull_results(self._bucket, name, journal.folder)
        except Exception as error:
            if not alive:
                raise JobError(
                    f"what job {name} left is in {self._bucket.url}, which does not answer "
                    f"({type(error).__name__}: {error}); try again"
                ) from error
            log.warning("%s does not answer: %s; the next look fetches it", self._bucket.url, error)

    def cancel(self, handle: str) -> None:
        """Deletes the Job and returns when its pods have ended; no error if it has, or never existed."""
        name, journal = self.parted(handle)
        submission = journal.of(name)
        if submission is None or submission.state not in LIVE:
            return
        try:
            if self.looked(journal, submission) not in LIVE:
                return
            self._api.delete_job(name)
            until = time.monotonic() + END_S
            while self._api.pods({manifest.OF_A_JOB: name}) and time.monotonic() < until:
                time.sleep(POLL_S)
            self.looked(journal, submission)
        except (ClusterUnreachable, ClusterRefused) as error:
            log.warning("whether job %s was cancelled is not known: %s", submission.job, error)

    def live(self) -> list[LiveJob]:
        """Returns the jobs of this home that wait or run."""
        try:
            standing = self._api.jobs({"daybreak": self.home})
        except (ClusterUnreachable, ClusterRefused) as error:
            raise JobError(f"the cluster does not list its Jobs: {error}; try again") from None
        return [
            LiveJob(
                handle=f"{meta['name']} {meta['annotations'][FOLDER]}",
                job=meta["annotations"][JOB],
                night=meta["annotations"][NIGHT],
                state=state,
                created_at=pod_status.moment(meta["creationTimestamp"]),
            )
            for each in standing
            if (meta := each["metadata"]) and (state := pod_status.seen(each, ()).state) in LIVE
        ]

    def logs(self, handle: str) -> str:
        """Returns the command that prints what the pods have printed."""
        name = self.parted(handle)[0]
        return f"kubectl logs --namespace {self.site.namespace} --selector {manifest.OF_A_JOB}={name}"

    def preflight(self, regions: Sequence[str]) -> Iterator[tuple[str, bool, str]]:
        """Yields whether the cluster answers, whether this account may do what it has to, and what lacks."""
        needed = [("batch", "jobs", "create list delete"), ("", "pods", "list"), ("", "services", "create"),
                  ("", "secrets", "create")]  # fmt: skip
        try:
            lacks = [
                f"{verb} {resource}"
                for group, resource, verbs in needed
                for verb in verbs.split()
                if not self._api.may(verb, resource, group=group)
            ]
        except (ClusterUnreachable, ClusterRefused) as error:
            yield "cluster", False, f"does not answer: {error}; look at the kubeconfig and backend.context"
            return
        text = f"namespace {self.site.namespace}: this account may do what a night needs"
        if lacks:
            text = (
                f"this account may not {', '.join(lacks)} in namespace {self.site.namespace}; give it a role "
                f"that may (docs/kubernetes.md)"
            )
        yield "cluster", not lacks, text
        if self.site.bucket:
            return
        yield "bucket", True, "none: the nodes share the folder of the nights at the same path"

    @cached_property
    def home(self) -> str:
        """The token of the home of the nights."""
        return ownership.home_token()

    def is_own(self, name: str) -> bool:
        """Returns whether it is the name of a Job of ours."""
        return name.startswith("daybreak-")

    def _labels(self, job: Job, number: int) -> dict[str, str]:
        facts = {"night": job.night, "model": job.model, "job": job.name, "attempt": str(number)}
        own = {f"daybreak/{key}": _value(label(value)) for key, value in facts.items()}
        return {"daybreak": self.home, **own}


def _value(text: str) -> str:
    """Returns the text as the value of a label, which begins and ends with a letter or digit."""
    return text.strip("-_") or "none"


def _stem(job: str) -> str:
    """Returns the name of a Job without its number: distinct for each job of each home."""
    return f"daybreak-{hashlib.sha256(f'{ownership.home_token()} {job}'.encode()).hexdigest()[:20]}"


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _sentence(submission: Submission, seen: Seen, *, file: Path, site: Site) -> str:
    """Returns why a job ended without a model, and what to do."""
    job, machine = submission.job, submission.rental.machine
    said = f" ({seen.text.rstrip('.')[:300]})" if seen.text else ""
    goes_on = "it goes on from its last checkpoint"
    return {
        "unschedulable": f"no node takes job {job} on {machine}{said}; the plan's next machine is asked for; "
        f"a longer wait comes from backend.wait_minutes",
        "no image": f"job {job} cannot start{said}; look at backend.image, {site.image}",
        "disrupted": f"job {job} was disrupted on {machine}{said}; {goes_on}",
        "out of memory": f"job {job} ran out of the memory of {machine}{said}; name a machine with more in "
        f"plan.machines, or lower train.batch_size",
        "overtime": f"job {job} was ended after its time{said}; its last checkpoint is what the night has; "
        f"allow more by night.train_hours",
        "killed": f"job {job} was killed on {machine}{said}; {goes_on}",
        "gone": f"job {job} is gone from namespace {site.namespace}; {goes_on}",
        "error": f"job {job} ended with status {seen.status}, an error of its own code{said}; look at its "
        f"log, fix the workload, and run train again",
    }.get(seen.cause, f"job {job} ended as {seen.cause}{said}; {goes_on}")


def _iso(moment: datetime) -> str:
    return moment.isoformat()
