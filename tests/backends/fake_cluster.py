"""A Kubernetes API server on loopback, for the kinds that a night needs; its pods are real processes.

Requests are held against the published schemas (package kubernetes-validate), names are unique, label
selectors select, a Job's controller does what the documentation of Indexed Jobs says: pods by index, failure
and success policy, replacement of pods, deadline, suspension. A pod that no node fits stays unschedulable, a
container that dies tells its exit code, and events tell what keeps pods from being made or started. A Job of
a queue has a Workload, as Kueue makes it, and waits for `admit`. Pods of several see each other by their
names: each process has an /etc/hosts of its own. With `has_job_sets` it is a cluster with JobSets, whose
controller makes the Jobs (fake_job_sets.py); what happens to a job is then asked for by the JobSet's name.
"""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

from tests.backends import fake_job_sets

VERSION = "1.34"
PATHS = re.compile(
    r"^/(?:api/v1|apis/(?:batch|authorization\.k8s\.io)/v1|apis/kueue\.x-k8s\.io/v1beta2"
    r"|apis/jobset\.x-k8s\.io/v1alpha2)"
    r"(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?$"
)
QUEUE, JOB_UID = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/job-uid"
JOBS = ("jobs", "jobsets")  # kinds that a job may be
OURS = ("index", "owner", "replaced", "terminating", "oom")  # metadata of pods that no cluster has
OF_A_JOB = "batch.kubernetes.io/job-name"
INDEX = "batch.kubernetes.io/job-completion-index"
TICK_S = 0.05
HANG_S = 1.5  # of a call that hangs


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, *, reason: str = "", message: str = "", status: str = "True") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now()}


class Refusal(Exception):
    """An answer that is not what was asked for."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code, self.body = (
            code,
            {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "message": message,
                "reason": reason,
                "code": code,
                "metadata": {},
            },
        )


REFUSALS = {
    "refuse": Refusal(503, "ServiceUnavailable", "try again later"),
    "busy": Refusal(429, "TooManyRequests", "try again later"),
    "conflict": Refusal(
        409,
        "Conflict",
        'Operation cannot be fulfilled on resourcequotas "team": the object has been modified',
    ),
}


class FakeCluster:
    """The server, its objects, and what may go wrong."""

    namespace = "default"  # the only one

    def __init__(self, folder: Path, *, image: dict[str, str]) -> None:
        self.folder, self.image = folder, image
        self.objects: dict[str, dict[str, dict[str, Any]]] = {
            kind: {} for kind in (*JOBS, "pods", "services", "secrets", "nodes", "events", "workloads")
        }
        self.has_job_sets = False
        self.queues: dict[str, str] = {}  # LocalQueues of Kueue, and why each takes no jobs
        self.failing: dict[str, tuple[str, str]] = {}  # why Jobs will have failed once their pods have ended
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.calls: list[str] = []
        # For the calls to come: "refuse", "busy", "conflict", "cut before", "cut after", "half", "hang",
        # "hang after", "". After these, `disturb` is asked at each call.
        self.trouble: list[str] = []
        self.troubled_kind = ""
        self.disturb: Callable[[], str] = lambda: ""
        self.is_away = False
        self.has_controllers = True  # else Jobs stay as they are made
        self.quota: int | None = None  # Jobs at most, and as many JobSets
        self.denied = ""  # what a webhook says to Jobs and JobSets
        self.forbidden: set[str] = set()
        self.lock = threading.RLock()
        self._over = threading.Event()
        self._uid = 0
        self.server = _Server(("127.0.0.1", 0), self.handler())
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "fake",
                    "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
                    "users": [{"name": "me", "user": {"token": "t"}}],
                    "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
                }
            )
        )

    def __enter__(self) -> "FakeCluster":
        self._threads = [
            threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}),
            threading.Thread(target=self._control),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.server.shutdown()
        self.server.server_close()
        for thread in self._threads:
            thread.join()
        for process in self.processes.values():
            self._signal(process, signal.SIGKILL)
            process.wait()

    def add_node(
        self,
        name: str,
        *,
        labels: dict[str, str],
        taints: tuple[str, ...] = (),
        pods: int = 110,
        **allocatable: str,
    ) -> None:
        spec = {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]}
        self.objects["nodes"][name] = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
            "status": {"allocatable": {"pods": str(pods), **allocatable}},
        }

    def live(self) -> list[dict[str, Any]]:
        """JobSets that have not ended, and Jobs of no such JobSet."""
        with self.lock:
            sets = [made for made in self.objects["jobsets"].values() if not _ended(made)]
            uids = [made["metadata"]["uid"] for made in sets]
            jobs = self.objects["jobs"].values()
            return [*sets, *(job for job in jobs if not _ended(job) and _owner(job) not in uids)]

    def heads(self) -> dict[str, dict[str, Any]]:
        """JobSets, and Jobs of none, by name."""
        jobs = self.objects["jobs"].items()
        alone = {name: job for name, job in jobs if "controller" not in _reference(job)}
        return self.objects["jobsets"] | alone

    def pods_of(self, job: str) -> list[dict[str, Any]]:
        """Pods of a Job or JobSet that are not replaced by others, by index."""
        with self.lock:
            owners = {job, *(each["metadata"]["name"] for each in self._jobs_of(job))}
            mine = [pod for pod in self.objects["pods"].values() if pod["metadata"]["owner"] in owners]
            mine = [pod for pod in mine if "replaced" not in pod["metadata"]]
            return sorted(mine, key=lambda pod: int(pod["metadata"]["index"]))

    def _jobs_of(self, name: str) -> list[dict[str, Any]]:
        """Jobs of a JobSet."""
        uid = self.objects["jobsets"].get(name, {}).get("metadata", {}).get("uid")
        return [job for job in self.objects["jobs"].values() if uid and _owner(job) == uid]

    def disrupt(
        self, job: str, *, reason: str = "PreemptionByScheduler", indexes: tuple[int, ...] = ()
    ) -> None:
        """Take pods of a Job away, all of them if none is named, as a scheduler or an eviction does."""
        with self.lock:
            for pod in self._chosen(job, indexes):
                message = "it makes room for a pod of higher priority"
                pod["status"]["conditions"].append(
                    condition("DisruptionTarget", reason=reason, message=message)
                )
                self._terminate(pod["metadata"]["name"])

    def lose_node(self, job: str, *, indexes: tuple[int, ...] = (), returns: bool = True) -> None:
        """Removes the nodes of a Job's pods, with the pods; for good unless nodes return."""
        with self.lock:
            for pod in self._chosen(job, indexes):
                name = pod["metadata"]["name"]
                if not returns:
                    del self.objects["nodes"][pod["spec"]["nodeName"]]
                pod["status"]["conditions"].append(condition("DisruptionTarget", reason="DeletionByPodGC"))
                self._signal(self.processes[name], signal.SIGKILL)

    def drain(self, node: str) -> None:
        """No pod is placed on the node any more, and those on it are evicted."""
        with self.lock:
            self.objects["nodes"][node]["spec"]["taints"].append({"key": "node.kubernetes.io/unschedulable"})
            for job in self.live():
                mine = self.pods_of(job["metadata"]["name"])
                there = [pod["metadata"]["index"] for pod in mine if pod["spec"].get("nodeName") == node]
                if there:
                    self.disrupt(
                        job["metadata"]["name"], reason="EvictionByEvictionAPI", indexes=tuple(there)
                    )

    def suspend(self, job: str) -> None:
        """Suspends a Job as Kueue does to make room: the pods end, and the Job waits again."""
        with self.lock:
            self.heads()[job]["spec"]["suspend"] = True
            self._workload(
                job,
                [
                    condition("Evicted", reason="Preempted", message="Preempted to accommodate a workload"),
                    condition(
                        "QuotaReserved", status="False", reason="Pending", message="insufficient quota"
                    ),
                ],
            )

    def deactivate(self, job: str) -> None:
        """What Kueue does with a Job that was tried too often: it waits until a person says otherwise."""
        self.suspend(job)
        with self.lock:
            self.objects["workloads"][job]["spec"]["active"] = False

    def _workload(self, job: str, conditions: list[dict[str, str]]) -> None:
        """Keeps what Kueue says of a Job, if it is of a queue."""
        made = self.heads()[job]["metadata"]
        if queue := made["labels"].get(QUEUE):
            self.objects["workloads"][job] = {
                "apiVersion": "kueue.x-k8s.io/v1beta2",
                "kind": "Workload",
                "metadata": {"name": f"job-{job}", "labels": {JOB_UID: made["uid"]}},
                "spec": {"queueName": queue, "active": True},
                "status": {"conditions": conditions},
            }

    def _chosen(self, job: str, indexes: tuple[int, ...]) -> list[dict[str, Any]]:
        return [pod for pod in self.pods_of(job) if not indexes or pod["metadata"]["index"] in indexes]

    def kill(self, job: str) -> None:
        """The containers of a Job get SIGKILL, from nobody knows where."""
        with self.lock:
            for pod in self.pods_of(job):
                self._signal(self.processes[pod["metadata"]["name"]], signal.SIGKILL)

    def run_out_of_memory(self, job: str) -> None:
        """The kernel kills the container of a pod, and the kubelet says why."""
        with self.lock:
            pod = self.pods_of(job)[0]
            pod["metadata"]["oom"] = True
            self._signal(self.processes[pod["metadata"]["name"]], signal.SIGKILL)

    def admit(self, job: str) -> None:
        """What Kueue does with a Job that has its turn."""
        with self.lock:
            self.heads()[job]["spec"]["suspend"] = False
            self._workload(job, [condition("QuotaReserved", reason="QuotaReserved")])

    @contextmanager
    def away(self) -> Iterator[None]:
        """Nobody gets an answer meanwhile."""
        self.is_away = True
        try:
            yield
        finally:
            self.is_away = False

    @contextmanager
    def troubled(self, *hows: str, kind: str = "") -> Iterator[None]:
        """The next calls go wrong, those on that kind if one is named."""
        self.trouble, self.troubled_kind = list(hows), kind
        try:
            yield
        finally:
            self.trouble = []

    # The API

    def handler(self) -> type[BaseHTTPRequestHandler]:
        """What answers each request."""
        return _handler(self)

    def answer(self, method: str, url: str, body: Any) -> dict[str, Any]:
        """What the API answers; Refusal with its status."""
        parts = urlsplit(url)
        if parts.path == "/apis/":
            kueue = [_group("kueue.x-k8s.io", "v1beta2")] if self.queues else []
            job_set = [_group("jobset.x-k8s.io", "v1alpha2")] if self.has_job_sets else []
            return {"kind": "APIGroupList", "groups": [*kueue, *job_set]}
        match = PATHS.match(parts.path)
        if match is None or (match["kind"] == "jobsets" and not self.has_job_sets):
            raise Refusal(404, "NotFound", f"the server could not find {parts.path}")
        kind, name = match["kind"], match["name"] or ""
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        with self.lock:
            self.calls.append(f"{method} {kind}")
            if kind == "selfsubjectaccessreviews":
                asked = body["spec"]["resourceAttributes"]
                allowed = f"{asked['verb']} {asked['resource']}" not in self.forbidden
                return {
                    "kind": "SelfSubjectAccessReview",
                    "spec": body["spec"],
                    "status": {"allowed": allowed},
                }
            if method == "POST":
                return self._create(kind, body, namespace=match["namespace"], for_good="dryRun" not in query)
            if method == "DELETE":
                return self._delete(kind, name, body or query)
            if f"list {kind}" in self.forbidden:
                raise Refusal(403, "Forbidden", f"{kind} is forbidden: User cannot list resource")
            return {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": self._select(kind, query)}

    def _get(self, kind: str, name: str) -> dict[str, Any]:
        if name not in self.objects[kind]:
            raise Refusal(404, "NotFound", f'{kind} "{name}" not found')
        return self.objects[kind][name]

    def _select(self, kind: str, query: dict[str, str]) -> list[dict[str, Any]]:
        """Returns objects as the API shows them, by labels, or events by the uid of their object."""
        if kind == "localqueues":
            return [_local_queue(name, why) for name, why in self.queues.items()]
        terms = (term.split("=") for term in query.get("labelSelector", "").split(",") if term)
        wanted = dict(terms)
        _, _, uid = query.get("fieldSelector", "").partition("involvedObject.uid=")
        return [
            {**made, "metadata": {key: each for key, each in made["metadata"].items() if key not in OURS}}
            for made in self.objects[kind].values()
            if wanted.items() <= made["metadata"].get("labels", {}).items()
            and (not uid or made["involvedObject"]["uid"] == uid)
        ]

    def _event(self, of: dict[str, Any], reason: str, message: str, *, kind: str = "Warning") -> None:
        """Tells once that something happens to an object; a repetition counts, and has its time."""
        meta = of["metadata"]
        name = f"{meta['name']}.{reason.lower()}"
        event = self.objects["events"].setdefault(
            name,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "creationTimestamp": now()},
                "involvedObject": {"kind": of["kind"], "name": meta["name"], "uid": meta["uid"]},
                "reason": reason,
                "type": kind,
                "firstTimestamp": now(),
                "count": 0,
            },
        )
        event |= {"message": message, "count": event["count"] + 1, "lastTimestamp": now()}

    def _create(
        self, kind: str, body: dict[str, Any], *, namespace: str, for_good: bool = True
    ) -> dict[str, Any]:
        if lack := _lack(kind, body):
            raise Refusal(422, "Invalid", f"{kind} is invalid: {lack}")
        for key, value in body["metadata"].get("labels", {}).items():
            if not re.fullmatch(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", value):
                raise Refusal(422, "Invalid", f"label {key}: invalid value {value!r}")
        name = body["metadata"]["name"]
        if not re.fullmatch(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", name):
            raise Refusal(422, "Invalid", f"name {name!r} is no DNS label")
        self._admit(kind, name, namespace=namespace)
        if not for_good:
            return body
        made: dict[str, Any] = json.loads(json.dumps(body))
        self._uid += 1
        made["metadata"] |= {"uid": f"uid-{self._uid}", "creationTimestamp": now(), "namespace": namespace}
        made["status"] = {}
        if kind == "secrets":
            text = made.pop("stringData", {})
            made["data"] = {key: base64.b64encode(value.encode()).decode() for key, value in text.items()}
        if kind == "jobs" and made["spec"].get("suspend"):
            made["status"]["conditions"] = [
                condition("Suspended", reason="JobSuspended", message="in the queue")
            ]
        self.objects[kind][name] = made if kind != "jobsets" else fake_job_sets.defaulted(made)
        if name in self.heads() and kind in JOBS:
            queue = made["metadata"].get("labels", {}).get(QUEUE, "")
            is_there = queue in self.queues
            why = "insufficient unused quota for cpu" if is_there else f"LocalQueue {queue} doesn't exist"
            reason = "Pending" if is_there else "Inadmissible"
            waits = condition("QuotaReserved", status="False", reason=reason, message=why)
            self._workload(name, [waits])
        return made

    def _admit(self, kind: str, name: str, *, namespace: str) -> None:
        """Refuses what may not be made here."""
        if name in self.objects[kind]:
            raise Refusal(409, "AlreadyExists", f'{kind} "{name}" already exists')
        if namespace != self.namespace:
            raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found')
        if kind in JOBS and self.denied:
            raise Refusal(403, "Forbidden", self.denied)
        num_live = sum(not _ended(made) for made in self.objects[kind].values()) if kind in JOBS else 0
        if kind in JOBS and self.quota is not None and num_live >= self.quota:
            raise Refusal(
                403, "Forbidden", f'{kind} "{name}" is forbidden: exceeded quota: team, used: {self.quota}'
            )

    def _delete(self, kind: str, name: str, options: dict[str, Any]) -> dict[str, Any]:
        made = self._get(kind, name)
        assert kind in JOBS
        assert options["propagationPolicy"] == "Foreground"
        own = [job for job in self.objects["jobs"].values() if _owner(job) == made["metadata"]["uid"]]
        for job in (made, *own):
            self._doom(job)
        return made

    def _doom(self, job: dict[str, Any]) -> None:
        """It will be gone when its pods have ended."""
        job["metadata"]["deletionTimestamp"] = now()
        for pod in self.pods_of(job["metadata"]["name"]):
            self._terminate(pod["metadata"]["name"])

    # What controllers, scheduler and kubelets do

    def _control(self) -> None:
        while not self._over.wait(TICK_S):
            with self.lock:
                for kind, reconcile in (("jobsets", self._reconcile_set), ("jobs", self._reconcile)):
                    for made in list(self.objects[kind].values()):
                        if self.has_controllers or made["metadata"].get("deletionTimestamp"):
                            reconcile(made)

    def _reconcile_set(self, made: dict[str, Any]) -> None:
        """One look of JobSet's controller at a JobSet."""
        jobs = self._jobs_of(made["metadata"]["name"])
        if made["metadata"].get("deletionTimestamp"):
            if not jobs:
                self._remove(made, kind="jobsets")
            return
        if _ended(made):
            for job in jobs:
                if not _ended(job):
                    self._doom(job)
            return
        if ended := fake_job_sets.next_condition(made, jobs, holds=_holds):
            kind, reason, message = ended
            made["status"] = {
                "conditions": [condition(kind, reason=reason, message=message)],
                "terminalState": kind,
                "restarts": 0,
            }
            return
        self._make_jobs_of(made)
        suspends = made["spec"].get("suspend", False)
        for job in self._jobs_of(made["metadata"]["name"]):
            job["spec"]["suspend"] = suspends
        if suspends != _holds(made, "Suspended"):
            reason, message = ("SuspendedJobs", "suspended") if suspends else ("ResumeJobs", "resumed")
            made["status"] = {
                "restarts": 0,
                "conditions": [
                    condition(
                        "Suspended", status=str(suspends), reason=reason, message=f"jobset is {message}"
                    )
                ],
            }

    def _make_jobs_of(self, made: dict[str, Any]) -> None:
        namespace = made["metadata"]["namespace"]
        service = fake_job_sets.service(made)
        if service and service["metadata"]["name"] not in self.objects["services"]:
            self._create("services", service, namespace=namespace)
        for job in fake_job_sets.jobs(made):
            if job["metadata"]["name"] not in self.objects["jobs"]:
                try:
                    self._create("jobs", job, namespace=namespace)
                except Refusal as refusal:
                    said = refusal.body["message"]
                    text = f'job "{job["metadata"]["name"]}" creation failed with error: {said}'
                    self._event(made, "JobCreationFailed", text)

    def _reconcile(self, job: dict[str, Any]) -> None:
        name = job["metadata"]["name"]
        self._look_at(name)
        pods = self.pods_of(name)
        over = all(pod["status"]["phase"] in ("Succeeded", "Failed", "Pending") for pod in pods)
        if job["metadata"].get("deletionTimestamp"):
            if over:
                self._remove(job, kind="jobs")
            return
        if _ended(job):
            return
        if job["spec"].get("suspend"):
            self._hold(job, pods)
            return
        if _holds(job, "Suspended"):
            job["status"]["conditions"] = [condition("Suspended", status="False", reason="JobResumed")]
        job["status"].setdefault("startTime", now())
        started = datetime.fromisoformat(job["status"]["startTime"].replace("Z", "+00:00"))
        late = (datetime.now(UTC) - started).total_seconds() > job["spec"]["activeDeadlineSeconds"] + 1
        failed = next((pod for pod in pods if self._fails(job, pod)), None)
        if self._succeeded(job, pods):
            job["status"]["conditions"] = [condition("SuccessCriteriaMet")]
            self._conclude(pods, over=over, job=job, ended=condition("Complete"))
        elif late or failed or name in self.failing:
            reason, message = self.failing.setdefault(name, self._why(late=late, failed=failed))
            ended = condition("Failed", reason=reason, message=message)
            self._conclude(pods, over=over, job=job, ended=ended)
        else:
            self._replace(job, pods)

    def _conclude(
        self, pods: list[dict[str, Any]], *, over: bool, job: dict[str, Any], ended: dict[str, str]
    ) -> None:
        for pod in pods:
            self._terminate(pod["metadata"]["name"])
        if over:
            job["status"] |= {"completionTime": now(), "conditions": [ended]}

    def _replace(self, job: dict[str, Any], pods: list[dict[str, Any]]) -> None:
        """Makes the pods that are missing, also in place of those whose failure is ignored."""
        for pod in pods:
            if pod["status"]["phase"] == "Failed":
                pod["metadata"]["replaced"] = True
        have = {pod["metadata"]["index"] for pod in self.pods_of(job["metadata"]["name"])}
        for index in set(range(job["spec"]["completions"])) - have:
            if "forbidden" in job["spec"]["template"]["spec"]["containers"][0]["image"]:
                message = "Error creating: admission webhook denied the request: image is not allowed"
                self._event(job, "FailedCreate", message)
                return
            self._pod(job, index)

    def _hold(self, job: dict[str, Any], pods: list[dict[str, Any]]) -> None:
        """The pods of a suspended Job go."""
        for pod in pods:
            if pod["status"]["phase"] in ("Pending", "Succeeded", "Failed"):
                pod["metadata"]["replaced"] = True
            else:
                self._terminate(pod["metadata"]["name"])
        if not self.pods_of(job["metadata"]["name"]):
            job["status"].pop("startTime", None)
            job["status"]["conditions"] = [
                condition("Suspended", reason="JobSuspended", message="in the queue")
            ]

    def _fails(self, job: dict[str, Any], pod: dict[str, Any]) -> bool:
        """Whether the Job fails by this pod: by the first rule of its policy that holds, else always."""
        if pod["status"]["phase"] != "Failed":
            return False
        true = {each["type"] for each in pod["status"]["conditions"] if each["status"] == "True"}
        for rule in job["spec"]["podFailurePolicy"]["rules"]:
            kinds = {each["type"] for each in rule.get("onPodConditions", ())}
            if kinds & true or ("onExitCodes" in rule and pod["status"].get("containerStatuses")):
                return bool(rule["action"] == "FailJob")
        return True

    def _succeeded(self, job: dict[str, Any], pods: list[dict[str, Any]]) -> bool:
        done = {pod["metadata"]["index"] for pod in pods if pod["status"]["phase"] == "Succeeded"}
        for rule in job["spec"].get("successPolicy", {}).get("rules", ()):
            if len(done) >= rule["succeededCount"]:
                return True
        return len(done) == job["spec"]["completions"]

    def _why(self, *, late: bool, failed: dict[str, Any] | None) -> tuple[str, str]:
        if late or failed is None:
            return "DeadlineExceeded", "Job was active longer than specified deadline"
        name = failed["metadata"]["name"]
        ended = failed["status"].get("containerStatuses", [{}])[0].get("state", {}).get("terminated", {})
        message = f"Container worker for pod team/{name} failed with exit code {ended.get('exitCode')}"
        return "PodFailurePolicy", message

    def _pod(self, job: dict[str, Any], index: int) -> None:
        self._uid += 1
        name = f"{job['metadata']['name']}-{index}-{self._uid:05d}"
        labels = {**job["spec"]["template"]["metadata"].get("labels", {}), OF_A_JOB: job["metadata"]["name"]}
        self.objects["pods"][name] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "uid": f"uid-{self._uid}",
                "labels": labels,
                "annotations": {INDEX: str(index)},
                "creationTimestamp": now(),
                "index": index,
                "owner": job["metadata"]["name"],
            },
            "spec": json.loads(json.dumps(job["spec"]["template"]["spec"])),
            "status": {"phase": "Pending", "conditions": []},
        }

    def _look_at(self, job: str) -> None:
        for pod in self.pods_of(job):
            name, status = pod["metadata"]["name"], pod["status"]
            process = self.processes.get(name)
            if process is None and status["phase"] == "Pending":
                self._start(pod)
            elif process is not None and status["phase"] == "Running" and process.poll() is not None:
                self._signal(process, signal.SIGKILL)  # a container ends with its first process
                code = process.returncode if process.returncode >= 0 else 128 - process.returncode
                reason = "OOMKilled" if "oom" in pod["metadata"] else "Error" if code else "Completed"
                begun = status["containerStatuses"][0]["state"]["running"]["startedAt"]
                ended = {"exitCode": code, "reason": reason, "startedAt": begun, "finishedAt": now()}
                status |= {
                    "phase": "Failed" if code else "Succeeded",
                    "containerStatuses": [_container(pod, terminated=ended)],
                }

    def _start(self, pod: dict[str, Any]) -> None:
        spec, status = pod["spec"], pod["status"]
        tolerated = {each["key"] for each in spec["tolerations"]}
        fits = [
            node
            for node in self.objects["nodes"].values()
            if spec["nodeSelector"].items() <= node["metadata"]["labels"].items()
            and {taint["key"] for taint in node["spec"]["taints"]} <= tolerated
            and self._num_pods_on(node["metadata"]["name"]) < int(node["status"]["allocatable"]["pods"])
        ]
        if not fits:
            if not status["conditions"]:
                count = len(self.objects["nodes"])
                message = f"0/{count} nodes are available: none matches the node selector or has room."
                status["conditions"] = [
                    condition("PodScheduled", reason="Unschedulable", message=message, status="False")
                ]
                self._event(pod, "FailedScheduling", message)
                why = "pod didn't trigger scale-up: 1 max node group size reached"
                self._event(pod, "NotTriggerScaleUp", why, kind="Normal")
            return
        container = spec["containers"][0]
        secret = self.objects["secrets"].get(container["envFrom"][0]["secretRef"]["name"])
        if "unmounted" in container["image"]:
            self._event(pod, "FailedMount", "no such disk")
            return
        waiting = ""
        if "missing" in container["image"]:
            waiting = "ImagePullBackOff"
        elif "invalid" in container["image"]:
            waiting = "InvalidImageName"
        elif secret is None:
            waiting = "CreateContainerConfigError"
        if waiting or secret is None:
            message = f"Back-off pulling image {container['image']}"
            status["containerStatuses"] = [_container(pod, waiting={"reason": waiting, "message": message})]
            return
        spec["nodeName"] = fits[0]["metadata"]["name"]
        given = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
        own = {"JOB_COMPLETION_INDEX": str(pod["metadata"]["index"])}
        own |= {each["name"]: each["value"] for each in container.get("env", ())}
        disk = self.folder / f"disk{len(self.processes)}"  # of its own, as a container has it
        disk.mkdir()
        own["TMPDIR"] = str(disk)
        words = [sys.executable, *container["command"][1:], *container["args"]]
        if spec["subdomain"] in self.objects["services"]:
            words = self._among_others(spec["subdomain"], words)
        with (self.folder / f"{pod['metadata']['name']}.log").open("ab") as output:
            self.processes[pod["metadata"]["name"]] = subprocess.Popen(
                words,
                env={**self.image, **given, **own},
                stdout=output,
                stderr=output,
                cwd=self.folder,
                start_new_session=True,
            )
        status |= {
            "phase": "Running",
            "conditions": [condition("PodScheduled")],
            "containerStatuses": [_container(pod, running={"startedAt": now()})],
        }

    def _num_pods_on(self, node: str) -> int:
        return sum(
            pod["spec"].get("nodeName") == node and pod["status"]["phase"] == "Running"
            for pod in self.objects["pods"].values()
        )

    def _among_others(self, service: str, words: list[str]) -> list[str]:
        """The command in a mount namespace where the names of the pods of a service are known."""
        hosts = self.folder / f"{service}.hosts"
        wanted = self.objects["services"][service]["spec"]["selector"].items()
        lines = [
            f"127.0.0.1 {name}-{index}.{service}"
            for name, job in self.objects["jobs"].items()
            if wanted <= job["spec"]["template"]["metadata"]["labels"].items()
            for index in range(job["spec"]["completions"])
        ]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
        script = f'mount --bind {hosts} /etc/hosts && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", script, "sh", *words]

    def _terminate(self, pod: str) -> None:
        """SIGTERM at once, SIGKILL after the grace period, once."""
        status = self.objects["pods"][pod]["status"]
        process = self.processes.get(pod)
        if process is None:
            status["phase"] = "Failed"
            return
        if process.poll() is None and "terminating" not in self.objects["pods"][pod]["metadata"]:
            self.objects["pods"][pod]["metadata"]["terminating"] = True
            with suppress(ProcessLookupError):
                process.terminate()
            grace_s = self.objects["pods"][pod]["spec"]["terminationGracePeriodSeconds"]
            timer = threading.Timer(grace_s, self._signal, (process, signal.SIGKILL))
            timer.daemon = True
            timer.start()

    def _signal(self, process: "subprocess.Popen[bytes]", number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    def _remove(self, job: dict[str, Any], *, kind: str) -> None:
        name = job["metadata"]["name"]
        del self.objects[kind][name]
        self.objects["workloads"].pop(name, None)
        for kind in ("secrets", "services"):
            self.objects[kind] = {
                key: made
                for key, made in self.objects[kind].items()
                if _owner(made) != job["metadata"]["uid"]
            }
        pods = self.objects["pods"].items()
        self.objects["pods"] = {key: pod for key, pod in pods if pod["metadata"]["owner"] != name}


def _container(pod: dict[str, Any], **state: dict[str, Any]) -> dict[str, Any]:
    """The status of the one container of a pod."""
    image = pod["spec"]["containers"][0]["image"]
    facts = {"name": "worker", "image": image, "imageID": "", "ready": "running" in state, "restartCount": 0}
    return {**facts, "state": state}


def _local_queue(name: str, why: str) -> dict[str, Any]:
    active = condition("Active", status="False" if why else "True", reason="ClusterQueue", message=why)
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": name},
        "status": {"conditions": [active]},
    }


def _group(name: str, version: str) -> dict[str, Any]:
    known = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [known], "preferredVersion": known}


def _lack(kind: str, body: dict[str, Any]) -> str:
    """What is wrong with an object; "" if nothing is."""
    if kind == "jobsets":
        return fake_job_sets.lacks(body)
    try:
        kubernetes_validate.validate(body, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error.message)
    return ""


def _reference(made: dict[str, Any]) -> dict[str, Any]:
    owner: dict[str, Any] = made["metadata"].get("ownerReferences", [{}])[0]
    return owner


def _owner(made: dict[str, Any]) -> str:
    return str(_reference(made).get("uid", ""))


def _holds(made: dict[str, Any], kind: str) -> bool:
    conditions = made["status"].get("conditions", ())
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def _ended(job: dict[str, Any]) -> bool:
    return any(_holds(job, kind) for kind in ("Complete", "Completed", "Failed"))


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client may hang up while it is answered."""


def _handler(cluster: FakeCluster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            named = not cluster.troubled_kind or f"/{cluster.troubled_kind}" in self.path
            how = cluster.trouble.pop(0) if cluster.trouble and named else cluster.disturb()
            if how == "hang":
                time.sleep(HANG_S)
            if cluster.is_away or how in ("cut before", "hang"):
                self.close_connection = True
                return
            if how in REFUSALS:
                self._send(REFUSALS[how].code, REFUSALS[how].body)
                return
            try:
                code, answer = 200, cluster.answer(self.command, self.path, body)
            except Refusal as refusal:
                code, answer = refusal.code, refusal.body
            if how == "hang after":
                time.sleep(HANG_S)
            if how in ("cut after", "hang after"):
                self.close_connection = True
                return
            with cluster.lock:
                text = json.dumps(answer).encode()
            self._send(code, text, part=0.5 if how == "half" else 1.0)

        def _send(self, code: int, answer: dict[str, Any] | bytes, *, part: float = 1.0) -> None:
            text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text[: int(part * len(text))])
            self.close_connection = part < 1

        do_GET = do_POST = do_DELETE = _serve

    return Handler
