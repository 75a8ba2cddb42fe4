"""JobService: custom jobs, and the machines there are for them.

Capacity, quota, preemption and restarts follow the service as the project knows it (docs/vertex.md).
"""

import itertools
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from google.cloud.aiplatform_v1.types import CustomJob, JobState, Scheduling, job_service

from tests.backends.fake.faults import Refusal, filtered, missing, nonsense, page, refuse_bad_labels
from tests.backends.fake.running import LIVE, QUOTA, Running

if TYPE_CHECKING:
    from tests.backends.fake_vertex import FakeVertex

MOST_POOLS = 4


@dataclass
class Market:
    """What there is to be had, per region and machine type; what is not named is plenty."""

    stock: dict[tuple[str, str], int] = field(default_factory=dict)  # machines that are free
    quota: dict[tuple[str, str], Literal["queued", "429", "failed"]] = field(default_factory=dict)
    waits: set[tuple[str, str]] = field(default_factory=set)  # flex-start jobs stay in the queue
    unsupported: set[tuple[str, str]] = field(default_factory=set)  # machines that a region does not have
    closed: set[str] = field(default_factory=set)  # regions of Compute Engine alone


class Jobs:
    """JobService."""

    def __init__(self, home: "FakeVertex") -> None:
        self.home = home
        self.market = Market()
        self.jobs: dict[str, Running] = {}
        self.starts: list[tuple[float, str]] = []  # when each attempt of each job began to run
        self.disks = itertools.count()
        self.late_error_s = self.queue_s = 0.0
        self.cancel_notice_s = 2.0
        self.lock = threading.RLock()

    def close(self) -> None:
        for running in self.jobs.values():
            running.tell("cancel")
        self.cancel_notice_s = 0.0
        for running in self.jobs.values():
            running.thread.join(10)

    # Capacity

    def take(self, running: Running) -> bool:
        with self.lock:
            if not self.has(running):
                return False
            for key, number in running.wanted.items():
                if key in self.market.stock:
                    self.market.stock[key] -= number
            return True

    def has(self, running: Running) -> bool:
        return all(self.market.stock.get(key, number) >= number for key, number in running.wanted.items())

    def freed(self, running: Running) -> None:
        with self.lock:
            for key, number in running.wanted.items():
                if key in self.market.stock and running.job.start_time:
                    self.market.stock[key] += number

    def note_starts(self, running: Running) -> None:
        self.starts.append((time.monotonic(), running.job.labels.get("job", "")))

    # The methods of JobService

    def create_custom_job(self, request: Any) -> Any:
        self._known(request.parent)
        job = CustomJob(request.custom_job)
        _refuse_nonsense(job)
        with self.lock:
            number = 1000 + len(self.jobs)
            job.name = f"{request.parent}/customJobs/{number}"
            job.create_time = datetime.now(UTC)
            job.state = JobState.JOB_STATE_QUEUED
            running = Running(job, self)
            for key in running.wanted:
                if key in self.market.unsupported:
                    raise nonsense(f"Machine type {key[1]} is not supported in region {key[0]}.")
                if self.market.quota.get(key) == "429":
                    raise Refusal(429, "RESOURCE_EXHAUSTED", QUOTA.format(device=f"{key[1]}_gpus"))
            self.jobs[job.name] = running
            running.thread.start()
        return running.message()

    def get_custom_job(self, request: Any) -> Any:
        return self._named(request.name).message()

    def list_custom_jobs(self, request: Any) -> Any:
        self._known(request.parent)
        wanted = filtered(request.filter)
        with self.lock:
            in_region = [one for one in self.jobs.values() if one.job.name.startswith(request.parent + "/")]
        # The newest first, as the service has it; a page at a time.
        shown = [one.message() for one in reversed(in_region) if wanted(one.job)]
        jobs, token = page(shown, request)
        return job_service.ListCustomJobsResponse(custom_jobs=jobs, next_page_token=token)

    def cancel_custom_job(self, request: Any) -> Any:
        running = self._named(request.name)
        if running.job.state not in LIVE:
            state = running.job.state.name
            raise Refusal(400, "FAILED_PRECONDITION", f"The job is in state {state} and cannot be cancelled.")
        running.tell("cancel")
        return None

    def _known(self, parent: str) -> None:
        self.home.known(parent)
        region = parent.rpartition("/")[2]
        if region in self.market.closed:
            raise nonsense(f"Unsupported region for Vertex AI: {region}.")

    def _named(self, name: str) -> Running:
        self.home.known(name)
        if name not in self.jobs:
            raise missing("CustomJob", name)
        return self.jobs[name]


def _refuse_nonsense(job: CustomJob) -> None:
    """What the service refuses of the things that a client can get wrong."""
    pools = job.job_spec.worker_pool_specs
    if not pools or pools[0].replica_count != 1:
        raise nonsense("The first worker pool must have a replica count of 1.")
    if len(pools) > MOST_POOLS:
        raise nonsense(f"A job has {MOST_POOLS} worker pools at most.")
    types = {pool.machine_spec.machine_type for pool in pools}
    strategy = job.job_spec.scheduling.strategy
    if strategy == Scheduling.Strategy.FLEX_START and len(types) > 1:
        raise nonsense("Flex-start needs one machine type in all worker pools.")
    for pool in pools:
        spec = pool.machine_spec
        if not pool.container_spec.image_uri:
            raise nonsense("container_spec.image_uri is required.")
        if spec.tpu_topology and (len(pools) > 1 or spec.accelerator_type):
            raise nonsense("A TPU job has one worker pool and no accelerator type.")
    refuse_bad_labels(job.labels)
