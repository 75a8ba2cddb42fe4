"""Runs a job on Vertex AI as a custom job, one at most, however often it is submitted (renting.py).

CreateCustomJob is not idempotent and its reply can be lost; a job carries its token as a label.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from daybreak.backends import billing
from daybreak.backends.faults import CANCELLED, NOT_TAKEN
from daybreak.backends.place import JobRequest, Refused, Rented, RetryPolicy
from daybreak.backends.renting import Renting
from daybreak.backends.submission_journal import Submission
from daybreak.contract import clock
from daybreak.contract.machine import Machine
from daybreak.extensions.vertex import error_codes, preflight
from daybreak.extensions.vertex.client import Denied
from daybreak.extensions.vertex.error_codes import NEVER
from daybreak.extensions.vertex.job_spec import VertexSite, boot_disk, custom_job, disk_bytes_per_s
from daybreak.extensions.vertex.service import STATES, NoQuota, Service, state_name
from daybreak.machines import catalog, fees, pricelist
from daybreak.storage.home import Home
from daybreak.training import worker_errors

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import CustomJob

log = logging.getLogger(__name__)

# Of a request that is wrong for this machine or region, and may be right for the next: the catalog has the
# regions of Compute Engine, which are more than those where Vertex AI has the machine.
NOT_THERE = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND)
REMAIN = ("INVALID_ARGUMENT", "NOT_FOUND")  # codes of those; FAILED_PRECONDITION asks for another try later
CONSOLE = "https://console.cloud.google.com/ai/platform"


class Vertex(Renting):
    """Custom jobs on Vertex AI."""

    place = "Vertex AI"
    faults = error_codes.FAULTS

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
        reserved_machine: str = "",
        network: str = "",
        network_attachment: str = "",
        disk_gb: int = 200,
        endpoint: str = "",  # of the service; the region's own if left out
        retry: RetryPolicy | None = None,
        home: Home | None = None,
    ) -> None:
        super().__init__(region=region, bucket=bucket, retry=retry or RetryPolicy(), home=home)
        self.site = VertexSite(
            project=project,
            region=region,
            image=image,
            bucket=bucket,
            service_account=service_account,
            reservation=reservation,
            persistent_resource=persistent_resource,
            reserved_machine=reserved_machine,
            network=network,
            network_attachment=network_attachment,
            disk_gb=disk_gb,
            tpu_image=tpu_image,
        )
        self.service = Service(project=project, endpoint=endpoint, retry=self.retry)
        self._unlisted: dict[str, Denied] = {}  # by region, where the service does not list our jobs

    def make(self, request: JobRequest) -> Rented:
        """Creates the job, once; Refused in a region that lists no jobs, as it could not be found again."""
        region = request.job.rental.region
        if unlisted := self._unlisted.get(region):
            raise _refused(unlisted)
        asked = custom_job(
            request.job,
            request.machines,
            site=self.site,
            labels=request.labels,
            attempt=request.attempt,
            now=request.now,
            left_s=request.left_s,
        )
        try:
            return _rented(self.service.make(asked, region=region))
        except NoQuota as error:
            message = str(error)
            cause = error_codes.classify(state="FAILED", code=8, message=message, ran=False)
            raise Refused(message, cause=cause) from None
        except Denied as error:
            if error.status in NOT_THERE:
                raise _refused(error) from None
            raise

    def find(self, regions: Iterable[str], **labels: str) -> list[Rented]:
        """Returns the jobs of this home with these labels; of a region that has no such service, none."""
        wanted, jobs = {"daybreak": self.home_token, **labels}, []
        for region in sorted(set(regions)):
            self._unlisted.pop(region, None)
            try:
                jobs += [_rented(job) for job in self.service.find(region, **wanted)]
            except Denied as error:
                if error.status not in NOT_THERE:
                    raise
                log.warning("%s; no job is made or looked for there", error)
                self._unlisted[region] = error
        return jobs

    def get(self, name: str) -> Rented | None:
        """Returns the job of that name; a failed job counts as running until the reason is known."""
        job = self.service.get(name)
        if job is None:
            return None
        rented = _rented(job)
        explained = job.error.code or job.error.message or state_name(job) != "FAILED"
        ended = job.end_time or job.update_time
        if not explained and ended and clock.now() < ended.timestamp() + self.retry.error_s:
            return replace(rented, state="running", ended_at=None)
        return rented

    def end(self, name: str) -> None:
        """Cancels the job."""
        self.service.end(name)

    def owns(self, name: str) -> bool:
        """Returns whether it is the full name of a job."""
        return name.count("/") == 5

    def explained(self, rented: Rented | None, submission: Submission, folder: Path) -> Rented:
        """Returns an ended job with the cause, from the service and the job's own workers."""
        if rented is None or rented.state == "succeeded":
            return super().explained(rented, submission, folder)
        job: CustomJob = rented.evidence
        failed = worker_errors.has_failed(folder, attempt=submission.token)
        code, message, ran = job.error.code, job.error.message, bool(job.start_time)
        cause = error_codes.classify(
            state=state_name(job), code=code, message=message, ran=ran, failed=failed
        )
        rented = replace(rented, cause=cause)
        if ran or self.faults[cause].state == "refused" or cause == CANCELLED:
            return rented
        # A job that failed before its command began, such as for a missing image, is billed for its machines.
        ended_at = rented.ended_at or clock.utc()
        start_up = billing.start_up(submission.rental, known=self.machines())
        return replace(rented, there_at=max(rented.created_at, ended_at - start_up))

    def preflight(self, regions: Sequence[str]) -> Iterator[tuple[str, bool, str]]:
        """Yields checks of everything that a job needs as (name, passed, result or remedy)."""
        everywhere = list(dict.fromkeys([self.site.region, *regions]))
        brief = replace(self.retry, call_s=min(10.0, self.retry.call_s), give_up_s=5.0)
        service = Service(project=self.site.project, endpoint=self.service.endpoint, retry=brief)
        return preflight.preflight(self.site, service, regions=everywhere)

    def machines(self) -> Sequence[Machine]:
        """Returns the machines on offer, with the newest prices, and the boot disk of a job."""
        kept = self.home.folder / pricelist.REFRESHED if self.home else None
        rented = catalog.rented(kept) if kept else catalog.rented()
        return tuple(
            replace(
                machine,
                joins=not machine.is_tpu,  # whose slices are jobs of one pool
                speeds=replace(
                    machine.speeds,
                    storage_bytes_per_s=disk_bytes_per_s(machine, disk_gb=self.site.disk_gb),
                ),
                disk=fees.boot_disk(boot_disk(machine), machine.region, size_gib=self.site.disk_gb),
            )
            for machine in rented
        )

    def log_of(self, name: str, folder: Path) -> str:
        """Returns the job's page in the console of Google Cloud."""
        _, project, _, region, _, number = name.split("/")
        return f"{CONSOLE}/locations/{region}/training/{number}?project={project}"


def _refused(error: Denied) -> Refused:
    """Returns a refusal that is for this machine or region only."""
    return Refused(error.message, cause=NEVER if error.code in REMAIN else NOT_TAKEN)


def _rented(job: "CustomJob") -> Rented:
    """Returns the job as the service has it."""
    labels = job.labels
    state: Literal["queued", "running", "succeeded", "ended"] = STATES.get(state_name(job), "ended")
    return Rented(
        name=job.name,
        state=state,
        created_at=job.create_time,
        attempt=labels.get("attempt", ""),
        job=labels.get("job", ""),
        night=labels.get("night", ""),
        said=job.error.message,
        started_at=job.start_time,
        ended_at=job.end_time,
        evidence=job,
    )
