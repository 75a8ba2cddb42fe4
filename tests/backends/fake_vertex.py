"""Vertex AI's JobService on loopback: the client's own routes and messages, and replicas that are processes.

The routes are read out of the client's gapic classes and requests are parsed into its protos, so what it
would refuse to send or to read is refused here as well. Each replica of a job is a process with
CLUSTER_SPEC in its environment. Capacity, quota, preemption and restarts follow the service as the project
knows it (docs/vertex.md); what goes wrong with calls is scripted by `Trouble`.
"""

import itertools
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

import psutil
from google.api_core import path_template
from google.cloud.aiplatform_v1.services.job_service.transports import rest_base
from google.cloud.aiplatform_v1.types import CustomJob, JobState, Scheduling, job_service
from google.protobuf import json_format

STOCKOUT = (
    "Resources are insufficient in region: {region}. "
    "Please try a different region or use a different accelerator."
)
METRIC = "aiplatform.googleapis.com/custom_model_training_{device}"
QUOTA = f"The following quota metrics exceed quota limits: {METRIC}"
LIVE = {JobState.JOB_STATE_QUEUED, JobState.JOB_STATE_PENDING, JobState.JOB_STATE_RUNNING}
RESOURCE_EXHAUSTED, INVALID_ARGUMENT, INTERNAL, DEADLINE = 8, 3, 13, 4
PREEMPTIONS, CRASHES, WORKER_RESTARTS, JOB_RESTARTS = 6, 3, 5, 3  # restarts that each of them is given


class Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


@dataclass(frozen=True)
class Trouble:
    """What happens to one call: refused before it acts, or its reply lost after it did."""

    how: Literal["refuse", "cut before", "cut after", "hang", "hang after"]
    status: int = 503
    message: str = "The service is currently unavailable."


@dataclass
class Market:
    """What there is to be had, per region and machine type; what is not named is plenty."""

    stock: dict[tuple[str, str], int] = field(default_factory=dict)  # machines that are free
    quota: dict[tuple[str, str], Literal["queued", "429", "failed"]] = field(default_factory=dict)
    waits: set[tuple[str, str]] = field(default_factory=set)  # flex-start jobs stay in the queue


class Running:
    """One custom job: its message, and its replicas as processes."""

    def __init__(self, job: CustomJob, service: "FakeVertex") -> None:
        self.job, self.service = job, service
        self.processes: list[subprocess.Popen[bytes]] = []
        self.preemptions = self.crashes = self.worker_restarts = self.job_restarts = 0
        self.told: Literal["", "cancel", "preempt", "crash", "lose"] = ""
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
        found: dict[tuple[str, str], int] = {}
        for pool in self.job.job_spec.worker_pool_specs:
            key = (self.region, pool.machine_spec.machine_type)
            found[key] = found.get(key, 0) + pool.replica_count
        return found

    def tell(self, what: Literal["cancel", "preempt", "crash", "lose"], *, notice_s: float = 0.0) -> None:
        self.told, self.notice_s = what, notice_s
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
        service, (key, *_) = self.service, self.wanted
        flex = self.scheduling.strategy == Scheduling.Strategy.FLEX_START
        patience_s = (
            self.scheduling.max_wait_duration.total_seconds() or float("inf") if flex else float("inf")
        )
        while True:
            if self.told == "cancel":
                return self._end(JobState.JOB_STATE_CANCELLED)
            quota = service.market.quota.get(key)
            if quota == "failed":
                return self._end(JobState.JOB_STATE_FAILED, RESOURCE_EXHAUSTED, QUOTA.format(device=key[1]))
            waits = quota == "queued" or (flex and key in service.market.waits)
            if not waits and time.monotonic() >= self.began + service.queue_s:
                if service.take(self):
                    self.job.state = JobState.JOB_STATE_PENDING
                    return True
                if not flex:
                    text = STOCKOUT.format(region=self.region)
                    return self._end(JobState.JOB_STATE_FAILED, RESOURCE_EXHAUSTED, text)
            if time.monotonic() >= self.began + patience_s:
                return self._end(JobState.JOB_STATE_EXPIRED)
            self.wake.wait(0.01)
            self.wake.clear()

    def _attempt(self) -> bool:
        """Run all replicas once; whether the whole job is to start again."""
        self._start()
        started = time.monotonic()
        limit_s = self.scheduling.timeout.total_seconds() or 7 * 86400
        while True:
            if self.told == "cancel":
                self.job.state = JobState.JOB_STATE_CANCELLING
                self._kill(notice_s=self.service.cancel_notice_s)
                return self._end(JobState.JOB_STATE_CANCELLED)
            if self.told in ("preempt", "crash", "lose"):
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
        what, self.told = self.told, ""
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
        replica = f"workerpool{int(index > 0)}-{max(0, index - 1)}"
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
        hosts = [[f"127.0.0.1:{_free_port()}" for _ in range(pool.replica_count)] for pool in pools]
        cluster = {f"workerpool{number}": found for number, found in enumerate(hosts)}
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
        told = {variable.name: variable.value for variable in container.env}
        disk = self.service.folder / f"disk{next(self.service.disks)}"  # a new machine
        disk.mkdir()
        environment = {**self.service.image, **told, "CLUSTER_SPEC": json.dumps(spec), "TMPDIR": str(disk)}
        log = self.service.folder / f"{self.job.name.rpartition('/')[2]}.log"
        with log.open("ab") as output:
            return subprocess.Popen(
                [*command, *container.args],
                env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                cwd=disk, start_new_session=True,
            )  # fmt: skip

    def _kill(self, *, notice_s: float) -> None:
        """The end of the containers: asked if there is notice, then gone with all that is in them."""
        living = [process for process in self.processes if process.poll() is None]
        family = [one for process in living for one in _family(process.pid)]
        if notice_s:
            for process in living:
                process.terminate()
            until = time.monotonic() + notice_s
            while time.monotonic() < until and any(process.poll() is None for process in living):
                self.wake.wait(0.01)
                self.wake.clear()
        for process in living:
            family += _family(process.pid)
        for one in family:
            if one.is_running():
                one.kill()
        for process in self.processes:
            process.wait()


class FakeVertex:
    """The service; `with FakeVertex() as service: ... service.url`."""

    def __init__(self, *, image: Mapping[str, str]) -> None:
        self.image = dict(image)  # the environment of every container
        self.market = Market()
        self.jobs: dict[str, Running] = {}
        self.starts: list[tuple[float, str]] = []  # when each attempt of each job began to run
        self.calls: list[str] = []
        self.disks = itertools.count()
        self.late_error_s = self.queue_s = 0.0
        self.cancel_notice_s = 2.0
        self.trouble: Callable[[str], Trouble | None] = lambda method: None
        self.lock = threading.RLock()
        self.closing = threading.Event()
        self.server = _Server(("127.0.0.1", 0), Handler)
        self.server.service, self.server.routes = self, _routes(self)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.projects = {"p"}
        self._scratch = tempfile.TemporaryDirectory(prefix="fake-vertex-")
        self.folder = Path(self._scratch.name)

    def __enter__(self) -> "FakeVertex":
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        for running in self.jobs.values():
            running.tell("cancel")
        self.cancel_notice_s = 0.0
        for running in self.jobs.values():
            running.thread.join(10)
        self.server.shutdown()
        self.server.server_close()
        self._scratch.cleanup()

    # What tests do and ask

    def live(self) -> list[Running]:
        return [running for running in self.jobs.values() if running.thread.is_alive()]

    def only(self) -> Running:
        (found,) = self.jobs.values()
        return found

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    @contextmanager
    def troubled(self, *script: Trouble | None, method: str = "") -> Iterator[None]:
        """The next calls (of one method) go wrong one after the other; those after them do not."""
        left = list(script)

        def next_one(called: str) -> Trouble | None:
            return left.pop(0) if left and method in ("", called) else None

        self.trouble = next_one
        try:
            yield
        finally:
            self.trouble = lambda method: None

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
        project = request.parent.split("/")[1]
        self._known(project)
        job = CustomJob(request.custom_job)
        _refuse_nonsense(job)
        with self.lock:
            number = 1000 + len(self.jobs)
            job.name = f"{request.parent}/customJobs/{number}"
            job.create_time = datetime.now(UTC)
            job.state = JobState.JOB_STATE_QUEUED
            running = Running(job, self)
            (key, *_) = running.wanted
            if self.market.quota.get(key) == "429":
                raise Refusal(429, "RESOURCE_EXHAUSTED", QUOTA.format(device=f"{key[1]}_gpus"))
            self.jobs[job.name] = running
            running.thread.start()
        return running.message()

    def get_custom_job(self, request: Any) -> Any:
        return self._named(request.name).message()

    def list_custom_jobs(self, request: Any) -> Any:
        self._known(request.parent.split("/")[1])
        wanted = _filter(request.filter)
        with self.lock:
            found = [one for one in self.jobs.values() if one.job.name.startswith(request.parent + "/")]
        # The newest first, as the service has it; a page at a time.
        shown = [one.message() for one in reversed(found) if wanted(one.job)]
        first, size = int(request.page_token or 0), request.page_size or 100
        token = str(first + size) if first + size < len(shown) else ""
        return job_service.ListCustomJobsResponse(
            custom_jobs=shown[first : first + size], next_page_token=token
        )

    def cancel_custom_job(self, request: Any) -> Any:
        running = self._named(request.name)
        if running.job.state not in LIVE:
            state = running.job.state.name
            raise Refusal(400, "FAILED_PRECONDITION", f"The job is in state {state} and cannot be cancelled.")
        running.tell("cancel")
        return None

    def _known(self, project: str) -> None:
        if project not in self.projects:
            raise Refusal(403, "PERMISSION_DENIED", f"Permission denied on resource project {project}.")

    def _named(self, name: str) -> Running:
        self._known(name.split("/")[1])
        if name not in self.jobs:
            raise Refusal(404, "NOT_FOUND", f"The CustomJob {name!r} does not exist.")
        return self.jobs[name]


def _refuse_nonsense(job: CustomJob) -> None:
    """What the service refuses of the things that a client can get wrong."""
    pools = job.job_spec.worker_pool_specs
    if not pools or pools[0].replica_count != 1:
        raise Refusal(400, "INVALID_ARGUMENT", "The first worker pool must have a replica count of 1.")
    types = {pool.machine_spec.machine_type for pool in pools}
    strategy = job.job_spec.scheduling.strategy
    if strategy == Scheduling.Strategy.FLEX_START and len(types) > 1:
        raise Refusal(400, "INVALID_ARGUMENT", "Flex-start needs one machine type in all worker pools.")
    for pool in pools:
        spec = pool.machine_spec
        if not pool.container_spec.image_uri:
            raise Refusal(400, "INVALID_ARGUMENT", "container_spec.image_uri is required.")
        if spec.tpu_topology and (len(pools) > 1 or spec.accelerator_type):
            raise Refusal(400, "INVALID_ARGUMENT", "A TPU job has one worker pool and no accelerator type.")
    for key, value in job.labels.items():
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) or not re.fullmatch(r"[a-z0-9_-]{0,63}", value):
            raise Refusal(400, "INVALID_ARGUMENT", f"Label {key}={value} is not valid.")


def _filter(text: str) -> Callable[[CustomJob], bool]:
    """`labels.KEY="VALUE" AND ...`, also by state, as the service documents it."""
    tests: list[Callable[[CustomJob], bool]] = []
    for part in filter(None, (part.strip() for part in text.split(" AND "))):
        group = [term.strip() for term in part.strip("()").split(" OR ")]
        tests.append(lambda job, group=group: any(_term(term)(job) for term in group))
    return lambda job: all(test(job) for test in tests)


def _term(text: str) -> Callable[[CustomJob], bool]:
    if found := re.fullmatch(r'labels\.([a-z0-9_-]+)="([^"]*)"', text):
        return lambda job: job.labels.get(found[1]) == found[2]
    if found := re.fullmatch(r'state="([A-Z_]+)"', text):
        return lambda job: job.state.name == found[1]
    raise Refusal(400, "INVALID_ARGUMENT", f"Invalid filter: {text}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


# HTTP


def _routes(service: FakeVertex) -> list[tuple[str, re.Pattern[str], str, str, str]]:
    """Verb, path, field of the path, field of the body, and method, as the client's classes have them."""
    found = []
    for name, kind in vars(rest_base._BaseJobServiceRestTransport).items():
        method = re.sub(r"(?<!^)(?=[A-Z])", "_", name.removeprefix("_Base")).lower()
        if not name.startswith("_Base") or not hasattr(service, method):
            continue
        for option in kind._get_http_options():
            (field_,) = re.findall(r"\{(\w+)=", option["uri"])
            template = re.sub(r"\{\w+=([^}]*)\}", r"\1", option["uri"])
            assert path_template.validate(template, template.replace("*", "x"))
            pattern = re.compile("^" + re.escape(template).replace(r"\*", "[^/]+") + "$")
            found.append((option["method"].upper(), pattern, field_, option.get("body", ""), method))
    return found


class _Server(ThreadingHTTPServer):
    """What connections share."""

    daemon_threads = True
    service: FakeVertex
    routes: list[tuple[str, re.Pattern[str], str, str, str]]


class Handler(BaseHTTPRequestHandler):
    """One connection to the service."""

    protocol_version = "HTTP/1.1"
    server: "_Server"

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self, verb: str) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urlsplit(self.path)
        route = next((r for r in self.server.routes if r[0] == verb and r[1].match(address.path)), None)
        if route is None:
            return self._answer(404, _error(404, "NOT_FOUND", f"no route {verb} {address.path}"))
        _, _, field_, body, method = route
        self.server.service.calls.append(method)
        trouble = self.server.service.trouble(method)
        if trouble and trouble.how in ("refuse", "cut before", "hang"):
            return self._trouble(trouble)
        try:
            message = self._call(method, field_, body, address, text)
        except Refusal as refusal:
            return self._answer(refusal.status, _error(refusal.status, refusal.reason, str(refusal)))
        if trouble:
            return self._trouble(trouble)
        return self._answer(200, message)

    def _call(self, method: str, field_: str, body: str, address: Any, text: bytes) -> bytes:
        kind = getattr(job_service, "".join(word.title() for word in method.split("_")) + "Request")
        request = kind()
        found = {key: value for key, value in parse_qsl(address.query) if not key.startswith("$")}
        found[field_] = address.path.removeprefix("/v1/").removesuffix(":cancel")
        if field_ == "parent":
            found[field_] = found[field_].rpartition("/")[0]
        json_format.ParseDict(found, kind.pb(request))
        if body and body != "*":
            json_format.Parse(text, getattr(kind.pb(request), body))
        answer = getattr(self.server.service, method)(request)
        return b"{}" if answer is None else type(answer).to_json(answer).encode()

    def _trouble(self, trouble: Trouble) -> None:
        if trouble.how == "refuse":
            return self._answer(trouble.status, _error(trouble.status, "UNAVAILABLE", trouble.message))
        if trouble.how in ("hang", "hang after"):
            self.server.service.closing.wait(60)
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
        return None

    def _answer(self, status: int, content: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:  # whoever asked has gone
            self.close_connection = True


def _error(status: int, reason: str, message: str) -> bytes:
    return json.dumps({"error": {"code": status, "status": reason, "message": message}}).encode()
