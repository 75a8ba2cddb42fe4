"""Runs a job on Vertex AI as a custom job, one at most, however often it is submitted.

A submission is written down before the service gets the request (submission_journal.py), with a token that
becomes a label of the job. A retry, after a kill or a lost reply, first looks for the job by its labels and
attaches to it. A request may still become a job after its retry did, and two hosts may submit at once: each
look at a job looks for others of its name, and ends all but the oldest. A handle is the service's name of the
job, a space, and the folder of the job.

While the service does not answer, the journal gives the last known state, so that a night goes on and ends.
"""

import json
import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.backends import billing, ownership, staging, submission_journal
from pipeline.backends.submission_journal import Submission, SubmissionJournal, stretches
from pipeline.backends.vertex import error_codes, preflight
from pipeline.backends.vertex.client import RetryPolicy, Unreachable
from pipeline.backends.vertex.job_spec import (
    Site,
    boot_disk,
    custom_job,
    disk_bytes_per_s,
    key_of,
    machine_of,
)
from pipeline.backends.vertex.service import ALIVE, STATES, NoQuota, Service, state_name
from pipeline.contract.backend import LIVE, Backend, Job, LiveJob, State, label
from pipeline.contract.errors import JobError, NotYet, ParamsError
from pipeline.contract.machine import Machine
from pipeline.contract.records import Rental, replace_text
from pipeline.machines import catalog, fees, pricelist
from pipeline.storage import checkout
from pipeline.storage.bucket import BucketFolder
from pipeline.training import worker_errors

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import CustomJob

log = logging.getLogger(__name__)

CONSOLE = "https://console.cloud.google.com/ai/platform"
REFUSED = "refused"  # instead of the service's name, for a request that did not become a job


class Vertex(Backend):
    """Custom jobs on Vertex AI."""

    def __init__(
        self,
        *,
        project: str,
        image: str,
        region: str = "us-central1",
        bucket: str = "",
        service_account: str = "",
        tpu_image: str = "",
        reservation: str = "",
        persistent_resource: str = "",
        network: str = "",
        disk_gb: int = 200,
        endpoint: str = "",  # of the service; the region's own if left out
        retry: RetryPolicy | None = None,
    ) -> None:
        self.site = Site(
            project=project, region=region, image=image, bucket=bucket, service_account=service_account,
            reservation=reservation, persistent_resource=persistent_resource, network=network,
            disk_gb=disk_gb, tpu_image=tpu_image,
        )  # fmt: skip
        self.bucket = BucketFolder(url=bucket) if bucket else None
        self.retry = retry or RetryPolicy()
        self.service = Service(project=project, endpoint=endpoint, retry=self.retry)

    def submit(self, job: Job) -> str:
        """Submits the job, unless it is alive, done, or on its way from a submission without a reply.

        Returns its handle. Raises JobError if it cannot be rented that way, OutOfTime if training has to end
        before it could run, and NotYet if the service does not answer: a retry goes on from the journal.
        """
        try:
            return self._submit(_completed(job, region=self.site.region))
        except Unreachable as error:
            raise NotYet(f"job {job.name} is not known to be taken: {error}") from error

    def _submit(self, job: Job) -> str:
        machine = machine_of(job, known=self.machines())
        journal = SubmissionJournal(Path(job.folder))
        with journal.alone():
            before = journal.pending(job.name)
            regions = {job.rental.region, *([before.rental.region] if before else [])}
            custom, ended = self.service.standing(job.name, home=self.home, regions=regions)
            if custom is None and before:
                custom = self.service.arrived(before)
            if custom is None:
                attempt = before.attempt if before else secrets.token_hex(8)
                submission = _submission(job, attempt=attempt, asked_at=datetime.now(UTC))
                labels = self._labels(job, attempt)
                now = datetime.now(UTC)
                request = custom_job(job, machine, site=self.site, labels=labels, attempt=attempt, now=now)
                replace_text(journal.folder / "attempt", attempt)
                if self.bucket and (journal.folder / "job.json").exists():
                    staging.pack(self.bucket, key_of(job), journal.folder, night=Path())
                journal.put(submission)
                try:
                    custom = self.service.make(request, submission)
                except NoQuota as error:
                    return self._refused(journal, submission, str(error))
            kept = self._adopt(journal, custom, name=job.name, rental=job.rental)
            replace_text(journal.folder / "attempt", kept.token)  # another host may have submitted it
            for extra in ended:
                self._record_extra(journal, extra, name=job.name, rental=job.rental)
            return f"{custom.name} {journal.folder}"

    def _adopt(
        self, journal: SubmissionJournal, custom: "CustomJob", *, name: str, rental: Rental
    ) -> Submission:
        attempt, asked_at = custom.labels["attempt"], custom.create_time.isoformat()
        return journal.adopt(
            custom.name, Submission(attempt=attempt, job=name, rental=rental, asked_at=asked_at)
        )

    def _record_extra(
        self, journal: SubmissionJournal, extra: "CustomJob", *, name: str, rental: Rental
    ) -> None:
        """Records a second job of that name, which was ended, so that it is paid for."""
        submission = self._adopt(journal, extra, name=name, rental=rental)
        ended_at = _iso(extra.end_time) or datetime.now(UTC).isoformat()
        journal.change(
            submission.attempt, state="preempted", started_at=_iso(extra.start_time), ended_at=ended_at
        )

    def state(self, handle: str) -> State:
        """Returns what the job is doing.

        If the service does not answer, it is the last known state, or `running` if none is known.
        """
        resource, journal = _parted(handle)
        submission = journal.of(resource)
        if submission and submission.state not in LIVE:
            return submission.state
        if resource.startswith(REFUSED):
            return "refused"
        try:
            job = self.service.get(resource)
        except Unreachable as error:
            state = submission.state if submission else "running"  # so that no second one is submitted
            log.warning(
                "%s; the last known state of job %s is %s",
                error,
                submission.job if submission else resource,
                state,
            )
            return state
        if job and state_name(job) in ALIVE:
            job = self._alone(journal, job)
        return self._record(journal, job) if job else "preempted"

    def _alone(self, journal: SubmissionJournal, job: "CustomJob") -> "CustomJob":
        """Ends all live jobs of that name but the oldest; returns the job, which may be an ended one."""
        submission = journal.of(job.name)
        if submission is None:
            return job
        regions = {each.rental.region for each in journal.submissions() if each.job == submission.job}
        try:
            _, ended = self.service.standing(submission.job, home=self.home, regions=regions)
        except Unreachable as error:
            log.warning("whether job %s exists twice is not known: %s", submission.job, error)
            return job
        for extra in ended:
            if extra.name != job.name:
                self._record_extra(journal, extra, name=submission.job, rental=submission.rental)
        return next((extra for extra in ended if extra.name == job.name), job)

    def cancel(self, handle: str) -> None:
        """Cancels the job, and returns when it has ended or soon will; no error if it has, or never existed.

        If the service does not answer, `state` goes on to report the job as alive; the hourly `reap` ends it.
        """
        resource, journal = _parted(handle)
        if resource.startswith(REFUSED):
            return
        try:
            job = self.service.end(resource)
        except Unreachable as error:
            log.warning("whether %s was cancelled is not known: %s", resource, error)
            return
        if job:
            self._record(journal, job)

    def live(self) -> list[LiveJob]:
        """Returns the jobs of this home that are queued or running, in all regions of the catalog."""
        regions = dict.fromkeys([self.site.region, *(machine.region for machine in self.machines())])
        return [
            LiveJob(handle=f"{job.name} ", job=job.labels.get("job", ""), night=job.labels.get("night", ""),
                   state=STATES[state_name(job)], created_at=job.create_time)
            for region in regions
            for job in self.service.find(region, daybreak=self.home)
            if state_name(job) in ALIVE
        ]  # fmt: skip

    def preflight(self, regions: Sequence[str]) -> Iterator[tuple[str, bool, str]]:
        """Yields for each check of what a job needs its name, whether it passed, and what to do."""
        everywhere = list(dict.fromkeys([self.site.region, *regions]))
        brief = replace(self.retry, call_s=min(10.0, self.retry.call_s), give_up_s=5.0)
        service = Service(project=self.site.project, endpoint=self.service.endpoint, retry=brief)
        return preflight.preflight(self.site, service, regions=everywhere)

    def usd(self, folder: Path) -> float | None:
        """Returns what the job in `folder` has cost so far; None without a submission or a price."""
        rented = stretches(folder)
        try:
            return billing.usd(rented, now=datetime.now(UTC), known=self.machines()) if rented else None
        except ParamsError as error:
            log.warning("%s; until then the cost of job %s is an estimate", error, folder.name)
            return None

    def machines(self) -> Sequence[Machine]:
        """Returns the machines on offer, with the newest prices, and the boot disk of a job."""
        try:
            rented = catalog.rented(checkout.home() / pricelist.REFRESHED)
        except ParamsError:  # outside a home
            rented = catalog.rented()
        return tuple(
            replace(
                machine,
                storage_bytes_per_s=disk_bytes_per_s(machine, disk_gb=self.site.disk_gb),
                disk=fees.boot_disk(boot_disk(machine), machine.region, size_gib=self.site.disk_gb),
            )
            for machine in rented
        )

    def logs(self, handle: str) -> str:
        """Returns the job's page in the console of Google Cloud, or the journal of one that was refused."""
        resource, journal = _parted(handle)
        if resource.startswith(REFUSED):
            return str(journal.folder / submission_journal.FILE)
        _, project, _, region, _, number = resource.split("/")
        return f"{CONSOLE}/locations/{region}/training/{number}?project={project}"

    @cached_property
    def home(self) -> str:
        """The token of the home of the nights."""
        return ownership.home_token()

    def _labels(self, job: Job, attempt: str) -> dict[str, str]:
        labels = {"night": job.night, "model": job.model, "job": job.name, "attempt": attempt}
        return {"daybreak": self.home, **{key: label(value) for key, value in labels.items()}}

    def _refused(self, journal: SubmissionJournal, submission: Submission, message: str) -> str:
        """Records that there is no quota, and returns a handle that says so."""
        resource = f"{REFUSED}/{submission.attempt}"
        self._explain(journal, submission, state="FAILED", code=8, message=message, ran=False)
        journal.change(submission.attempt, resource=resource)
        return f"{resource} {journal.folder}"

    def _record(self, journal: SubmissionJournal, job: "CustomJob") -> State:
        """Records the state of the job as the service reports it, and returns it."""
        known = journal.of(job.name)
        name, attempt = state_name(job), known.attempt if known else job.labels.get("attempt", "")
        self._exchange(journal, alive=name in ALIVE)
        times = {"started_at": _iso(job.start_time), "ended_at": _iso(job.end_time)}
        if state := STATES.get(name):
            journal.change(attempt, state=state, **times)
            return state
        explained = bool(job.error.code or job.error.message) or name != "FAILED"
        ended = job.end_time or job.update_time
        if not explained and ended and time.time() < ended.timestamp() + self.retry.error_s:
            return "running"  # the reason comes later than the end
        submission = journal.change(attempt, **times)
        if submission is None:  # it is in another journal
            return "preempted"
        code, message = job.error.code, job.error.message
        return self._explain(
            journal, submission, state=name, code=code, message=message, ran=bool(job.start_time)
        )  # fmt: skip

    def _exchange(self, journal: SubmissionJournal, *, alive: bool) -> None:
        """Fetches what the job has left, and sends it what has changed."""
        if not self.bucket or not journal.folder.name:
            return
        try:
            if alive:
                staging.push_updates(self.bucket, journal.folder.name, journal.folder)
            staging.pull_results(self.bucket, journal.folder.name, journal.folder)
        except Exception as error:
            if not alive:
                raise JobError(
                    f"what job {journal.folder.name} left is in {self.bucket.url}, which does not answer "
                    f"({type(error).__name__}: {error}); try again"
                ) from error
            log.warning("%s does not answer: %s; the next look fetches it", self.bucket.url, error)

    def _explain(
        self,
        journal: SubmissionJournal,
        submission: Submission,
        *,
        state: str,
        code: int,
        message: str,
        ran: bool,
    ) -> State:
        """Records why a job ended, in its submission and where the launcher looks for reasons."""
        logs = self.logs(f"{submission.resource} {journal.folder}") if submission.resource else ""
        request = error_codes.Request(job=submission.job, rental=submission.rental, logs=logs)
        failed = worker_errors.has_failed(journal.folder, attempt=submission.token)
        fault = error_codes.classify(
            request, state=state, code=code, message=message, ran=ran, failed=failed
        )  # fmt: skip
        log.warning("%s", fault.text)
        if fault.kind != "cancelled":
            line = {"attempt": submission.token, "rank": -1, "error": fault.text, "final": fault.final}
            with (journal.folder / "errors.jsonl").open("ab", buffering=0) as file:
                file.write((json.dumps(line) + "\n").encode())
        journal.change(submission.attempt, state=fault.state, reason=fault.text)
        return fault.state


def _completed(job: Job, *, region: str) -> Job:
    """Returns the job with its region, and with what only its job.json says."""
    rental = job.rental if job.rental.region else replace(job.rental, region=region)
    return replace(ownership.completed(job), rental=rental)


def _submission(job: Job, *, attempt: str, asked_at: datetime) -> Submission:
    return Submission(attempt=attempt, job=job.name, rental=job.rental, asked_at=asked_at.isoformat())


def _parted(handle: str) -> tuple[str, SubmissionJournal]:
    resource, _, folder = handle.partition(" ")
    if resource.count("/") != 5 and not resource.startswith(REFUSED):
        raise JobError(
            f"{handle!r} is not a job of Vertex AI; a backend was changed in params.yaml while a job ran: "
            f"set backend back until the night is over"
        )
    return resource, SubmissionJournal(Path(folder))


def _iso(moment: datetime | None) -> str:
    return moment.isoformat() if moment else ""
