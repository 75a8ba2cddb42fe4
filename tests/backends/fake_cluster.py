"""A Kubernetes API server on loopback, for the kinds that a night needs; its pods are real processes.

Requests are held against the published schemas (package kubernetes-validate), names are unique, label
selectors select, a Job's controller does what the documentation of Indexed Jobs says: pods by index, failure
policy, deadline, suspension. A pod that no node fits stays unschedulable, a container that dies tells its
exit code. Pods of several see each other by their names: each process has an /etc/hosts of its own.
"""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

VERSION = "1.34"
PATHS = re.compile(
    r"^/(?:api/v1|apis/(?P<group>batch|authorization\.k8s\.io)/v1)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?$"
)
QUEUE = "kueue.x-k8s.io/queue-name"
OF_A_JOB = "batch.kubernetes.io/job-name"
TICK_S = 0.05


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, *, reason: str = "", message: str = "", status: str = "True") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now()}


class Refusal(Exception):
    """An answer that is not what was asked for."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code, self.body = code, {
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason,
            "code": code, "metadata": {},
        }  # fmt: skip


class FakeCluster:
    """The server, its objects, and what may go wrong."""

    def __init__(self, folder: Path, *, image: dict[str, str]) -> None:
        self.folder, self.image = folder, image
        self.objects: dict[str, dict[str, dict[str, Any]]] = {
            kind: {} for kind in ("jobs", "pods", "services", "secrets", "nodes")
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.calls: list[str] = []
        self.trouble: list[str] = []  # for the calls to come: "refuse", "cut before", "cut after", "busy", ""
        self.troubled_kind = ""
        self.is_away = False
        self.quota: int | None = None  # Jobs at most
        self.forbidden: set[str] = set()
        self.lock = threading.RLock()
        self._over = threading.Event()
        self._uid = 0
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {"token": "t"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
        }))  # fmt: skip

    def __enter__(self) -> "FakeCluster":
        self._threads = [threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}),
                         threading.Thread(target=self._control)]  # fmt: skip
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

    def add_node(self, name: str, *, labels: dict[str, str], taints: tuple[str, ...] = ()) -> None:
        spec = {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]}
        self.objects["nodes"][name] = {
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
            "status": {},
        }

    def live(self) -> list[dict[str, Any]]:
        """Jobs that have not ended."""
        with self.lock:
            return [job for job in self.objects["jobs"].values() if not _ended(job)]

    def pods_of(self, job: str) -> list[dict[str, Any]]:
        with self.lock:
            return [p for p in self.objects["pods"].values() if p["metadata"]["labels"][OF_A_JOB] == job]

    def disrupt(self, job: str, *, reason: str = "PreemptionByScheduler") -> None:
        """Take the pods of a Job away, as a scheduler, an eviction or a drained node does."""
        with self.lock:
            for pod in self.pods_of(job):
                message = "it makes room for a pod of higher priority"
                pod["status"]["conditions"].append(
                    condition("DisruptionTarget", reason=reason, message=message)
                )
                self._terminate(pod["metadata"]["name"])

    def lose_node(self, job: str) -> None:
        """The node of a Job's pods is gone, and they with it."""
        with self.lock:
            for pod in self.pods_of(job):
                name = pod["metadata"]["name"]
                self._signal(self.processes[name], signal.SIGKILL)
                pod["status"]["conditions"].append(condition("DisruptionTarget", reason="DeletionByPodGC"))

    def run_out_of_memory(self, job: str) -> None:
        """The kernel kills the container of a pod, and the kubelet says why."""
        with self.lock:
            pod = self.pods_of(job)[0]
            pod["metadata"]["annotations"]["oom"] = "true"
            self._signal(self.processes[pod["metadata"]["name"]], signal.SIGKILL)

    def admit(self, job: str) -> None:
        """What Kueue does with a Job that has its turn."""
        with self.lock:
            made = self.objects["jobs"][job]
            made["spec"]["suspend"] = False
            made["status"]["conditions"] = [condition("Suspended", status="False")]

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

    def answer(self, method: str, url: str, body: Any) -> dict[str, Any]:
        """What the API answers; Refusal with its status."""
        parts = urlsplit(url)
        match = PATHS.match(parts.path)
        if match is None:
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
                return self._create(kind, body, namespace=match["namespace"])
            if method == "DELETE":
                return self._delete(kind, name, body or query)
            if name:
                return self._get(kind, name)
            return {"kind": "List", "apiVersion": "v1", "metadata": {},
                    "items": self._select(kind, query.get("labelSelector", ""))}  # fmt: skip

    def _get(self, kind: str, name: str) -> dict[str, Any]:
        if name not in self.objects[kind]:
            raise Refusal(404, "NotFound", f'{kind} "{name}" not found')
        return self.objects[kind][name]

    def _select(self, kind: str, selector: str) -> list[dict[str, Any]]:
        wanted = dict(term.split("=") for term in selector.split(",") if term)
        return [
            made for made in self.objects[kind].values()
            if wanted.items() <= made["metadata"].get("labels", {}).items()
        ]  # fmt: skip

    def _create(self, kind: str, body: dict[str, Any], *, namespace: str) -> dict[str, Any]:
        try:
            kubernetes_validate.validate(body, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            raise Refusal(422, "Invalid", f"{kind} is invalid: {error.message}") from None
        for key, value in body["metadata"].get("labels", {}).items():
            if not re.fullmatch(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", value):
                raise Refusal(422, "Invalid", f"label {key}: invalid value {value!r}")
        name = body["metadata"]["name"]
        if not re.fullmatch(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", name):
            raise Refusal(422, "Invalid", f"name {name!r} is no DNS label")
        if name in self.objects[kind]:
            raise Refusal(409, "AlreadyExists", f'{kind} "{name}" already exists')
        if kind == "jobs" and self.quota is not None and len(self.live()) >= self.quota:
            raise Refusal(
                403, "Forbidden", f'jobs "{name}" is forbidden: exceeded quota: team, used: {self.quota}'
            )
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
        self.objects[kind][name] = made
        return made

    def _delete(self, kind: str, name: str, options: dict[str, Any]) -> dict[str, Any]:
        made = self._get(kind, name)
        assert kind == "jobs"
        assert options["propagationPolicy"] == "Foreground"
        made["metadata"]["deletionTimestamp"] = now()
        for pod in self.pods_of(name):
            self._terminate(pod["metadata"]["name"])
        return made

    # What controllers, scheduler and kubelets do

    def _control(self) -> None:
        while not self._over.wait(TICK_S):
            with self.lock:
                for job in list(self.objects["jobs"].values()):
                    self._reconcile(job)

    def _reconcile(self, job: dict[str, Any]) -> None:
        name = job["metadata"]["name"]
        self._look_at(name)
        pods = self.pods_of(name)
        over = all(pod["status"]["phase"] in ("Succeeded", "Failed", "Pending") for pod in pods)
        if job["metadata"].get("deletionTimestamp"):
            if over:
                self._remove(job)
            return
        if _ended(job) or job["spec"].get("suspend"):
            return
        job["status"].setdefault("startTime", now())
        if len(pods) < job["spec"]["completions"]:
            for index in range(job["spec"]["completions"]):
                self._pod(job, index)
            return
        phases = [pod["status"]["phase"] for pod in pods]
        started = datetime.fromisoformat(job["status"]["startTime"].replace("Z", "+00:00"))
        late = (datetime.now(UTC) - started).total_seconds() > job["spec"]["activeDeadlineSeconds"] + 1
        if all(phase == "Succeeded" for phase in phases):
            job["status"] |= {"completionTime": now(), "conditions": [condition("Complete")]}
        elif late or "Failed" in phases:
            for pod in pods:
                self._terminate(pod["metadata"]["name"])
            if over:
                reason = "DeadlineExceeded" if late else "PodFailurePolicy"
                message = "Job was active longer than specified deadline" if late else self._why(pods)
                job["status"]["conditions"] = [condition("Failed", reason=reason, message=message)]

    def _why(self, pods: list[dict[str, Any]]) -> str:
        failed = next(pod for pod in pods if pod["status"]["phase"] == "Failed")
        code = failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        return f"Container worker for pod team/{failed['metadata']['name']} failed with exit code {code}"

    def _pod(self, job: dict[str, Any], index: int) -> None:
        name = f"{job['metadata']['name']}-{index}"
        if name in self.objects["pods"]:
            return
        labels = {**job["spec"]["template"]["metadata"].get("labels", {}), OF_A_JOB: job["metadata"]["name"]}
        self.objects["pods"][name] = {
            "metadata": {"name": name, "labels": labels, "annotations": {}, "creationTimestamp": now(),
                         "index": index, "owner": job["metadata"]["name"]},
            "spec": json.loads(json.dumps(job["spec"]["template"]["spec"])),
            "status": {"phase": "Pending", "conditions": []},
        }  # fmt: skip

    def _look_at(self, job: str) -> None:
        for pod in self.pods_of(job):
            name, status = pod["metadata"]["name"], pod["status"]
            process = self.processes.get(name)
            if process is None and status["phase"] == "Pending":
                self._start(pod)
            elif process is not None and status["phase"] == "Running" and process.poll() is not None:
                self._signal(process, signal.SIGKILL)  # a container ends with its first process
                code = process.returncode if process.returncode >= 0 else 128 - process.returncode
                reason = (
                    "OOMKilled"
                    if "oom" in pod["metadata"]["annotations"]
                    else "Error"
                    if code
                    else "Completed"
                )
                begun = status["containerStatuses"][0]["state"]["running"]["startedAt"]
                ended = {"exitCode": code, "reason": reason, "startedAt": begun, "finishedAt": now()}
                status |= {
                    "phase": "Failed" if code else "Succeeded",
                    "containerStatuses": [{"name": "worker", "state": {"terminated": ended}}],
                }

    def _start(self, pod: dict[str, Any]) -> None:
        spec, status = pod["spec"], pod["status"]
        tolerated = {each["key"] for each in spec["tolerations"]}
        fits = [
            node for node in self.objects["nodes"].values()
            if spec["nodeSelector"].items() <= node["metadata"]["labels"].items()
            and {taint["key"] for taint in node["spec"]["taints"]} <= tolerated
        ]  # fmt: skip
        if not fits:
            if not status["conditions"]:
                message = (
                    f"0/{len(self.objects['nodes'])} nodes are available: none matches the node selector."
                )
                status["conditions"] = [
                    condition("PodScheduled", reason="Unschedulable", message=message, status="False")
                ]
            return
        container = spec["containers"][0]
        secret = self.objects["secrets"].get(container["envFrom"][0]["secretRef"]["name"])
        waiting = ""
        if "missing" in container["image"]:
            waiting = "ImagePullBackOff"
        elif secret is None:
            waiting = "CreateContainerConfigError"
        if waiting or secret is None:
            message = f"Back-off pulling image {container['image']}"
            status["containerStatuses"] = [
                {"name": "worker", "state": {"waiting": {"reason": waiting, "message": message}}}
            ]
            return
        given = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
        own = {"JOB_COMPLETION_INDEX": str(pod["metadata"]["index"])}
        words = [sys.executable, *container["command"][1:], *container["args"]]
        if spec["subdomain"] in self.objects["services"]:
            words = self._among_others(spec["subdomain"], words)
        with (self.folder / f"{pod['metadata']['name']}.log").open("ab") as output:
            self.processes[pod["metadata"]["name"]] = subprocess.Popen(
                words, env={**self.image, **given, **own}, stdout=output, stderr=output, cwd=self.folder,
                start_new_session=True,
            )  # fmt: skip
        status |= {
            "phase": "Running", "conditions": [condition("PodScheduled")],
            "containerStatuses": [{"name": "worker", "state": {"running": {"startedAt": now()}}}],
        }  # fmt: skip

    def _among_others(self, job: str, words: list[str]) -> list[str]:
        """The command in a mount namespace where the pods' names are known."""
        hosts = self.folder / f"{job}.hosts"
        count = self.objects["jobs"][job]["spec"]["completions"]
        lines = [f"127.0.0.1 {job}-{index}.{job}" for index in range(count)]
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

    def _remove(self, job: dict[str, Any]) -> None:
        name = job["metadata"]["name"]
        del self.objects["jobs"][name]
        for kind in ("secrets", "services"):
            self.objects[kind] = {
                key: made for key, made in self.objects[kind].items()
                if made["metadata"]["ownerReferences"][0]["uid"] != job["metadata"]["uid"]
            }  # fmt: skip
        for pod in self.pods_of(name):
            del self.objects["pods"][pod["metadata"]["name"]]


def _ended(job: dict[str, Any]) -> bool:
    conditions = job["status"].get("conditions", ())
    return any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)


def _handler(cluster: FakeCluster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            named = not cluster.troubled_kind or f"/{cluster.troubled_kind}" in self.path
            how = cluster.trouble.pop(0) if cluster.trouble and named else ""
            if cluster.is_away or how == "cut before":
                self.close_connection = True
                return
            if how in ("refuse", "busy"):
                code = 429 if how == "busy" else 503
                self._send(code, Refusal(code, "TooManyRequests", "try again later").body)
                return
            try:
                code, answer = 200, cluster.answer(self.command, self.path, body)
            except Refusal as refusal:
                code, answer = refusal.code, refusal.body
            if how == "cut after":
                self.close_connection = True
                return
            with cluster.lock:
                self._send(code, answer)

        def _send(self, code: int, answer: dict[str, Any]) -> None:
            text = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = _serve

    return Handler
