"""Creates, finds, watches and cancels our jobs on Vertex AI, in any region.

CreateCustomJob is not idempotent and its reply can be lost, so a job carries a token as a label: a search for
the label shows whether a request has become a job. A request is given time to become one before the next is
sent.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pipeline.backends.submission_journal import Submission
from pipeline.backends.vertex.client import Client, Denied, NotDone, RetryPolicy, Unreachable
from pipeline.contract.backend import State, label
from pipeline.contract.errors import JobError

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import CustomJob

log = logging.getLogger(__name__)

STATES: dict[str, State] = {
    "QUEUED": "queued", "PENDING": "queued", "PAUSED": "queued",
    "RUNNING": "running", "UPDATING": "running", "CANCELLING": "running",
    "SUCCEEDED": "succeeded",
}  # fmt: skip
ALIVE = frozenset(name for name, state in STATES.items() if state != "succeeded")


class NoQuota(JobError):
    """The quota of the project does not allow so many devices; no job was created."""


class Service:
    """Vertex AI, as one home of nights sees it."""

    def __init__(self, *, project: str, endpoint: str, retry: RetryPolicy) -> None:
        self.project, self.endpoint, self.retry = project, endpoint, retry
        self._clients: dict[str, Client] = {}

    def of(self, region: str) -> Client:
        """Returns the client of that region."""
        if region not in self._clients:
            self._clients[region] = Client(region=region, endpoint=self.endpoint, retry=self.retry)
        return self._clients[region]

    def get(self, resource: str) -> "CustomJob | None":
        """Returns the job of that name; None if it does not exist. Raises Unreachable."""
        client = self.of(region_of(resource))
        try:
            job: CustomJob = client.ask(client.jobs.get_custom_job, name=resource)
        except Denied as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        return job

    def find(self, region: str, **labels: str) -> "list[CustomJob]":
        """Returns all jobs with those labels, in any state, oldest first. Raises Unreachable."""
        wanted = " AND ".join(f'labels.{key}="{label(value)}"' for key, value in labels.items())
        return sorted(self._pages(region, wanted), key=_age)

    def _pages(self, region: str, wanted: str) -> "Iterator[CustomJob]":
        client, parent, token = self.of(region), self._parent(region), ""
        while True:
            request = {"parent": parent, "filter": wanted, "page_size": 100, "page_token": token}
            page = client.ask(client.jobs.list_custom_jobs, request=request)
            yield from page.custom_jobs
            token = page.next_page_token
            if not token:
                return

    def standing(
        self, name: str, *, home: str, regions: Iterable[str]
    ) -> "tuple[CustomJob | None, list[CustomJob]]":
        """Returns the job of that name that has succeeded, or else the oldest that is alive, and the others.

        The others were alive, and are ended: there are some where a lost request became a job late, or two
        hosts submitted at once. All who look keep the same one.
        """
        jobs = [job for region in sorted(regions) for job in self.find(region, job=name, daybreak=home)]
        done = [job for job in jobs if state_name(job) == "SUCCEEDED"]
        alive = sorted((job for job in jobs if state_name(job) in ALIVE), key=_age)
        kept = (done or alive)[:1]
        ended = []
        for extra in alive:
            if extra not in kept:
                log.warning("job %s exists twice; ending %s", name, extra.name)
                ended.append(self.end(extra.name) or extra)
        return kept[0] if kept else None, ended

    def arrived(self, submission: Submission) -> "CustomJob | None":
        """Returns the job that the submission became, once it is certain whether there is one; else None."""
        settled = datetime.fromisoformat(submission.asked_at).timestamp() + self.retry.settle_s
        settled = min(settled, time.time() + self.retry.settle_s)  # the clock may have been set back
        pause_s = self.retry.first_pause_s / 4
        while True:
            over = time.time() >= settled  # before the search, which sees all that has arrived by then
            if jobs := self.find(submission.rental.region, attempt=submission.attempt):
                return jobs[0]
            if over:
                return None
            time.sleep(min(pause_s, max(0.0, settled - time.time())))
            pause_s *= 2

    def make(self, custom_job: dict[str, Any], submission: Submission) -> "CustomJob":
        """Creates the job, once, and returns it.

        Raises NoQuota; Denied; Unreachable if the service does not answer, which leaves open whether there
        will be a job.
        """
        client = self.of(submission.rental.region)
        request = {"parent": self._parent(submission.rental.region), "custom_job": custom_job}
        pauses = self.retry.pauses()
        while True:
            try:
                made: CustomJob = client.once(client.jobs.create_custom_job, request=request)
                return made
            except Denied as error:
                if error.status == HTTPStatus.TOO_MANY_REQUESTS:
                    raise NoQuota(error.message) from None
                raise
            except Unreachable as error:
                if not isinstance(error, NotDone) and (job := self._late(submission)):
                    return job
                pause_s = next(pauses, None)
                if pause_s is None:
                    raise
                log.info("%s; retrying in %.1f s", error, pause_s)
                time.sleep(pause_s)

    def _late(self, submission: Submission) -> "CustomJob | None":
        """Returns the job that the last request became, if it did."""
        return self.arrived(replace(submission, asked_at=datetime.now(UTC).isoformat()))

    def end(self, resource: str) -> "CustomJob | None":
        """Cancels the job and returns it, ended in most cases; None if it does not exist."""
        client = self.of(region_of(resource))
        until = time.monotonic() + self.retry.cancel_s
        try:
            client.ask(client.jobs.cancel_custom_job, name=resource)
        except Denied as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST):
                raise
            log.info("job %s has ended already, or never was", resource)
        pause_s = self.retry.first_pause_s / 4
        while (job := self.get(resource)) and state_name(job) in ALIVE:
            if time.monotonic() > until:
                log.warning("job %s was cancelled, and has not ended yet", resource)
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 8.0)
        return job

    def _parent(self, region: str) -> str:
        return f"projects/{self.project}/locations/{region}"


def state_name(job: "CustomJob") -> str:
    """Returns the service's name of the state of the job."""
    return str(job.state.name).removeprefix("JOB_STATE_")


def region_of(resource: str) -> str:
    """Returns the region of a job, from its full name."""
    return resource.split("/")[3]


def _age(job: "CustomJob") -> tuple[datetime, str]:
    return job.create_time, job.name
