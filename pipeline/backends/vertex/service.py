"""Which jobs of ours does Vertex AI have? Making, finding, watching and ending them, in any region.

CreateCustomJob is not idempotent and its reply can be lost, so a job carries a token as a label: whether a
request has become a job is seen by looking for it. A request is given time to become one before another is
sent.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pipeline.backends.vertex.client import Calls, Denied, Patience, TurnedAway, Unanswered
from pipeline.backends.vertex.submission_journal import Order
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
    """The project may not have so many devices; not even a job was made."""


class Service:
    """Vertex AI, as one home of nights sees it."""

    def __init__(self, *, project: str, endpoint: str, patience: Patience) -> None:
        self.project, self.endpoint, self.patience = project, endpoint, patience
        self._calls: dict[str, Calls] = {}

    def of(self, region: str) -> Calls:
        """The calls to that region."""
        if region not in self._calls:
            self._calls[region] = Calls(region=region, endpoint=self.endpoint, patience=self.patience)
        return self._calls[region]

    def get(self, resource: str) -> "CustomJob | None":
        """The job of that name; None where there is none. Raises Unanswered."""
        calls = self.of(region_of(resource))
        try:
            job: CustomJob = calls.ask(calls.client.get_custom_job, name=resource)
        except Denied as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        return job

    def find(self, region: str, **labels: str) -> "list[CustomJob]":
        """All jobs with those labels, whatever became of them, oldest first. Raises Unanswered."""
        wanted = " AND ".join(f'labels.{key}="{label(value)}"' for key, value in labels.items())
        return sorted(self._pages(region, wanted), key=_age)

    def _pages(self, region: str, wanted: str) -> "Iterator[CustomJob]":
        calls = self.of(region)
        token = ""
        while True:
            asked = {"parent": self._parent(region), "filter": wanted, "page_size": 100, "page_token": token}
            page = calls.ask(calls.client.list_custom_jobs, request=asked)
            yield from page.custom_jobs
            token = page.next_page_token
            if not token:
                return

    def standing(self, name: str, *, home: str, regions: Iterable[str]) -> "CustomJob | None":
        """The job of that name that has succeeded, or lives; of two that live the younger is ended."""
        jobs = [job for region in sorted(regions) for job in self.find(region, job=name, daybreak=home)]
        done = [job for job in jobs if state_name(job) == "SUCCEEDED"]
        alive = sorted((job for job in jobs if state_name(job) in ALIVE), key=_age)
        kept = (done or alive)[:1]
        for extra in alive:
            if extra not in kept:
                log.warning("job %s is there twice; %s is ended", name, extra.name)
                self.end(extra.name)
        return kept[0] if kept else None

    def arrived(self, order: Order) -> "CustomJob | None":
        """The job that came of the order, once it is sure whether one did."""
        settled = datetime.fromisoformat(order.asked_at).timestamp() + self.patience.settle_s
        pause_s = self.patience.first_pause_s / 4
        while True:
            over = time.time() >= settled  # before the look: what has come until then is seen
            if found := self.find(order.rental.region, attempt=order.attempt):
                return found[0]
            if over:
                return None
            time.sleep(min(pause_s, max(0.0, settled - time.time())))
            pause_s *= 2

    def make(self, asked: dict[str, Any], order: Order) -> "CustomJob":
        """The job, made once.

        Raises NoQuota; Denied; Unanswered where the service does not let itself be asked, which leaves open
        whether there will be a job.
        """
        calls = self.of(order.rental.region)
        request = {"parent": self._parent(order.rental.region), "custom_job": asked}
        pauses = self.patience.pauses()
        while True:
            try:
                made: CustomJob = calls.once(calls.client.create_custom_job, request=request)
                return made
            except Denied as error:
                if error.status == HTTPStatus.TOO_MANY_REQUESTS:
                    raise NoQuota(error.message) from None
                raise
            except Unanswered as error:
                if not isinstance(error, TurnedAway) and (found := self._late(order)):
                    return found
                pause_s = next(pauses, None)
                if pause_s is None:
                    raise
                log.info("%s; asked again in %.1f s", error, pause_s)
                time.sleep(pause_s)

    def _late(self, order: Order) -> "CustomJob | None":
        """What came of a request just made."""
        return self.arrived(replace(order, asked_at=datetime.now(UTC).isoformat()))

    def end(self, resource: str) -> "CustomJob | None":
        """The job, cancelled, and mostly ended; None where there is none."""
        calls = self.of(region_of(resource))
        until = time.monotonic() + self.patience.cancel_s
        try:
            calls.ask(calls.client.cancel_custom_job, name=resource)
        except Denied as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST):
                raise
            log.info("job %s has ended already, or never was", resource)
        pause_s = self.patience.first_pause_s / 4
        while (job := self.get(resource)) and state_name(job) in ALIVE:
            if time.monotonic() > until:
                log.warning("job %s is told to end, and has not yet", resource)
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 8.0)
        return job

    def _parent(self, region: str) -> str:
        return f"projects/{self.project}/locations/{region}"


def state_name(job: "CustomJob") -> str:
    """The state of the job by the service's name of it."""
    return str(job.state.name).removeprefix("JOB_STATE_")


def region_of(resource: str) -> str:
    """Where a job is, by its full name."""
    return resource.split("/")[3]


def _age(job: "CustomJob") -> tuple[datetime, str]:
    return job.create_time, job.name
