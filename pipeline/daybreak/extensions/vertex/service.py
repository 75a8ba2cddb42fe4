"""Creates, finds, watches and cancels our jobs on Vertex AI, in any region."""

import logging
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal

from daybreak.backends.place import RetryPolicy
from daybreak.contract.backend import label
from daybreak.contract.errors import JobError
from daybreak.extensions.vertex.client import Client, Denied, is_on_loopback

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import CustomJob

log = logging.getLogger(__name__)

STATES: dict[str, Literal["queued", "running", "succeeded"]] = {
    "QUEUED": "queued",
    "PENDING": "queued",
    "PAUSED": "queued",
    "RUNNING": "running",
    "UPDATING": "running",
    "CANCELLING": "running",
    "SUCCEEDED": "succeeded",
}


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

    @property
    def is_on_loopback(self) -> bool:
        """Returns whether it is a service of a test, whose machines have this machine's disk."""
        return is_on_loopback(self.endpoint)

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
        """Returns all jobs with those labels, in any state. Raises Unreachable."""
        wanted = " AND ".join(f'labels.{key}="{label(value)}"' for key, value in labels.items())
        return list(self._pages(region, wanted))

    def _pages(self, region: str, wanted: str) -> "Iterator[CustomJob]":
        client, parent, token = self.of(region), self._parent(region), ""
        while True:
            request = {"parent": parent, "filter": wanted, "page_size": 100, "page_token": token}
            page = client.ask(client.jobs.list_custom_jobs, request=request)
            yield from page.custom_jobs
            token = page.next_page_token
            if not token:
                return

    def make(self, custom_job: dict[str, Any], *, region: str) -> "CustomJob":
        """Creates the job, once, and returns it.

        Raises NoQuota; Denied; Unreachable if the service does not answer, which leaves open whether there
        will be a job.
        """
        client = self.of(region)
        request = {"parent": self._parent(region), "custom_job": custom_job}
        try:
            made: CustomJob = client.once(client.jobs.create_custom_job, request=request)
        except Denied as error:
            if error.status == HTTPStatus.TOO_MANY_REQUESTS:
                raise NoQuota(error.message) from None
            raise
        return made

    def end(self, resource: str) -> None:
        """Asks for the end of the job; no error if it has ended, or does not exist."""
        client = self.of(region_of(resource))
        try:
            client.ask(client.jobs.cancel_custom_job, name=resource)
        except Denied as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST):
                raise
            log.info("job %s has ended already, or never was", resource)

    def _parent(self, region: str) -> str:
        return f"projects/{self.project}/locations/{region}"


def state_name(job: "CustomJob") -> str:
    """Returns the service's name of the state of the job."""
    return str(job.state.name).removeprefix("JOB_STATE_")


def region_of(resource: str) -> str:
    """Returns the region of a job, from its full name."""
    return resource.split("/")[3]
