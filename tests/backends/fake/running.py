"""The life of one custom job: the queue, its replicas as processes, preemption, restarts, the end."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from google.cloud.aiplatform_v1.types import CustomJob, JobState, Scheduling

from tests.backends.fake.processes import end_all, family, free_port, start

if TYPE_CHECKING:
    from tests.backends.fake.jobs import Jobs

STOCKOUT = (
    "Resources are insufficient in region: {region}. "
    "Please try a different region or use a different accelerator."
)
METRIC = "aiplatform.googleapis.com/custom_model_training_{device}"
QUOTA = f"The following quota metrics exceed quota limits: {METRIC}"
LIVE = {JobState.JOB_STATE_QUEUED, JobState.JOB_STATE_PENDING, JobState.JOB_STATE_RUNNING}
RESOURCE_EXHAUSTED, INVALID_ARGUMENT, INTERNAL, DEADLINE = 8, 3, 13, 4
PREEMPTIONS, CRASHES, WORKER_RESTARTS, JOB_RESTARTS = 6, 3, 5, 3  # restarts that each of them is given


class Running:
    """A custom job: the message, and the replicas as processes."""

    def __init__(self, job: CustomJob, service: "Jobs") -> None:
        self.job, self.service = job, service
        self.processes: list[subprocess.Popen[bytes]] = []
        self.preemptions = self.crashes = self.worker_restarts = self.job_restarts = 0
        self.instruction: Literal["", "cancel", "preempt", "crash", "lose", "end"] = ""
        self.final: tuple[JobState, int, str] = (JobState.JOB_STATE_FAILED, INTERNAL, "")
        self.notice_s = 0.0
        self.error: tuple[int, str] | None = None
        self.began = time.monotonic()
        self.ended = 0.0
        self.wake = threading.Event()
        self.thread = threading.Thread(target=self._live, daemon=True)

    # What the service decides

    @property
    def region(self) -> str:
        return str(self.job.name.split("/")[3])

    @property
    def scheduling(self) -> Scheduling:
        return self.job.job_spec.scheduling

    @property
    def wanted(self) -> dict[tuple[str, str], int]:
        """Machines of the job, by region and type."""
        counts: dict[tuple[str, str], int] = {}
        for pool in self.job.job_spec.worker_pool_specs:
            key = (self.region, pool.machine_spec.machine_type)
            counts[key] = counts.get(key, 0) + pool.replica_count
        return counts

    def tell(self, what: Literal["cancel", "preempt", "crash", "lose"], *, notice_s: float = 0.0) -> None:
        self.instruction, self.notice_s = what, notice_s
        self.wake.set()

    def end_as(self, state: JobState, code: int, text: str) -> None:
        """It ends with that state and error, whatever its processes do."""
        self.final, self.instruction = (state, code, text), "end"
        self.wake.set()

    def message(self) -> CustomJob:
        """The job as a client sees it now: the error comes late."""
        shown = CustomJob(self.job)
        if self.error and time.monotonic() >= self.ended + self.service.late_error_s:
            shown.error = {"code": self.error[0], "message": self.error[1]}
        return shown

    # Its life, in a thread of its own

    def _live(self) -> None:
        try:
            if self._wait_in_queue():
                while self._attempt():
                    pass
        finally:
            self._kill(notice_s=0)
            self.service.freed(self)

    def _wait_in_queue(self) -> bool:
        """Whether the job got its machines; without, it has ended."""
        service, keys = self.service, self.wanted
        flex = self.scheduling.strategy == Scheduling.Strategy.FLEX_START
        patience_s = (
            self.scheduling.max_wait_duration.total_seconds() or float("inf") if flex else float("inf")
        )
        pause_s = 0.01
        while True:
            if self.instruction == "cancel":
                return self._end(JobState.JOB_STATE_CANCELLED)
            if self.instruction == "end":
                return self._end(*self.final)
            quota = {service.market.quota.get(key): key for key in keys}
            if "failed" in quota:
                text = QUOTA.format(device=quota["failed"][1])
                return self._end(JobState.JOB_STATE_FAILED, RESOURCE_EXHAUSTED, text)
            waits = "queued" in quota or (flex and any(key in service.market.waits for key in keys))
            if not waits and time.monotonic() >= self.began + service.queue_s:
                if service.take(self):
                    self.job.state = JobState.JOB_STATE_PENDING
                    return True
                if not flex:
                    text = STOCKOUT.format(region=self.region)
                    return self._end(JobState.JOB_STATE_FAILED, RESOURCE_EXHAUSTED, text)
            if time.monotonic() >= self.began + patience_s:
                return self._end(JobState.JOB_STATE_EXPIRED)
            self.wake.wait(pause_s)
            self.wake.clear()
            pause_s = min(2 * pause_s, 0.5)  # hundreds of jobs that wait leave the machine to those that ask

    def _attempt(self) -> bool:
        """Run all replicas once; whether the whole job is to start again."""
        self._start()
        started = time.monotonic()
        limit_s = self.scheduling.timeout.total_seconds() or 7 * 86400
        while True:
            if self.instruction == "cancel":
                self.job.state = JobState.JOB_STATE_CANCELLING
                self._kill(notice_s=self.service.cancel_notice_s)
                return self._end(JobState.JOB_STATE_CANCELLED)
            if self.instruction == "end":
                self._kill(notice_s=0)
                return self._end(*self.final)
            if self.instruction in ("preempt", "crash", "lose"):
                return self._taken()
            if time.monotonic() > started + limit_s:
                self._kill(notice_s=0.5)
                return self._end(JobState.JOB_STATE_FAILED, DEADLINE, "Job exceeded its timeout.")
            statuses = [process.poll() for process in self.processes]
            if statuses[0] == 0:
                self._kill(notice_s=1.0)
                return self._end(JobState.JOB_STATE_SUCCEEDED)
            failed = next((i for i, status in enumerate(statuses) if status), None)
            if failed is not None:
                return self._failed(failed, statuses[failed] or 0)
            self.wake.wait(0.01)
            self.wake.clear()

    def _taken(self) -> bool:
        what, self.instruction = self.instruction, ""
        self._kill(notice_s=self.notice_s)
        if what == "preempt":
            self.preemptions += 1
            if self.preemptions <= PREEMPTIONS and self.service.has(self):
                self.job.state = JobState.JOB_STATE_PENDING
                return True
            return self._end(
                JobState.JOB_STATE_FAILED, RESOURCE_EXHAUSTED, STOCKOUT.format(region=self.region)
            )
        if (
            what == "crash"
        ):  # a machine is lost by the service's fault: 5 restarts of a worker, then 3 of the job
            if self.worker_restarts < WORKER_RESTARTS:
                self.worker_restarts += 1
                return True
            if self.job_restarts < JOB_RESTARTS:
                self.job_restarts, self.worker_restarts = self.job_restarts + 1, 0
                return True
        return self._end(JobState.JOB_STATE_FAILED, INTERNAL, "Internal error occurred.")

    def _failed(self, index: int, status: int) -> bool:
        pools = enumerate(self.job.job_spec.worker_pool_specs)
        names = [f"workerpool{number}-{i}" for number, pool in pools for i in range(pool.replica_count)]
        replica = names[index]
        self._kill(notice_s=0.5)
        if status in (-6, -11, 134, 139):
            self.crashes += 1
            if self.crashes <= CRASHES:
                return True
        if status in (-9, 137):
            return self._end(
                JobState.JOB_STATE_FAILED, INVALID_ARGUMENT, f"Replicas low on memory: {replica}."
            )
        text = f"The replica {replica} exited with a non-zero status of {status % 256}."
        return self._end(JobState.JOB_STATE_FAILED, INVALID_ARGUMENT, text)

    def _end(self, state: JobState, code: int = 0, text: str = "") -> Literal[False]:
        self.ended = time.monotonic()
        self.error = (code, text) if code else None
        self.job.end_time = datetime.now(UTC)
        self.job.state = state
        return False

    # Its processes

    def _start(self) -> None:
        pools = self.job.job_spec.worker_pool_specs
        hosts = [[f"127.0.0.1:{free_port()}" for _ in range(pool.replica_count)] for pool in pools]
        cluster = {f"workerpool{number}": addresses for number, addresses in enumerate(hosts)}
        self.processes = [
            self._replica(pool, {"cluster": cluster, "task": {"type": f"workerpool{number}", "index": index}})
            for number, pool in enumerate(pools)
            for index in range(pool.replica_count)
        ]
        if not self.job.start_time:
            self.job.start_time = datetime.now(UTC)
        self.job.state = JobState.JOB_STATE_RUNNING
        self.service.note_starts(self)

    def _replica(self, pool: Any, spec: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        container = pool.container_spec
        command = [sys.executable if word == "python" else word for word in container.command]
        variables = {variable.name: variable.value for variable in container.env}
        disk = self.service.home.folder / f"disk{next(self.service.disks)}"  # a new machine
        disk.mkdir()
        environment = {
            **self.service.home.image,
            **variables,
            "CLUSTER_SPEC": json.dumps(spec),
            "TMPDIR": str(disk),
        }
        log = self.service.home.folder / f"{self.job.name.rpartition('/')[2]}.log"
        return start([*command, *container.args], environment=environment, disk=disk, log=log)

    def _kill(self, *, notice_s: float) -> None:
        """The end of the containers: asked if there is notice, then gone with all that is in them."""
        living = [process for process in self.processes if process.poll() is None]
        members = [one for process in living for one in family(process.pid)]
        if notice_s:
            for process in living:
                process.terminate()
            until = time.monotonic() + notice_s
            while time.monotonic() < until and any(process.poll() is None for process in living):
                self.wake.wait(0.01)
                self.wake.clear()
        for process in living:
            members += family(process.pid)
        end_all(members)
        for process in self.processes:
            process.wait()
