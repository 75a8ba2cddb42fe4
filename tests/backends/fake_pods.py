"""A Kubernetes API server on loopback for pods that somebody makes without a Job, as Airflow's executor does.

Beside what FakeCluster holds its requests to, it answers what a client of pods asks: list by labels and
phase, as objects or as their metadata alone; a watch, which streams what happens from a version on; patch;
deletion with its grace period; discovery. It refuses what the rules of a Role do not grant. A pod is a
process in a PID namespace of its own, so that all of it ends with its first process, as a container does.
"""

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil

from tests.backends.fake_cluster import FakeCluster, Refusal, condition, now

PODS = re.compile(r"^/api/v1/namespaces/(?P<namespace>[^/]+)/pods(?:/(?P<name>[^/]+))?$")
VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
DISCOVERY: dict[str, dict[str, Any]] = {
    "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
    "/apis": {"kind": "APIGroupList", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            {
                "name": "pods",
                "singularName": "pod",
                "kind": "Pod",
                "namespaced": True,
                "verbs": ["create", "delete", "get", "list", "patch", "watch"],
            }
        ],
    },
}
METADATA_ONLY = "as=PartialObjectMetadataList"


def selects(selector: str, labels: dict[str, str]) -> bool:
    """Whether a label selector holds, as the API reads it."""
    for term in re.findall(r"[^,(]+(?:\([^)]*\))?", selector):
        if match := re.fullmatch(r"(\S+) (in|notin) \(([^)]*)\)", term.strip()):
            key, how, values = match.groups()
            holds = (labels.get(key) in values.split(",")) == (how == "in")
        elif "!=" in term:
            key, _, value = term.partition("!=")
            holds = labels.get(key) != value
        else:
            key, equal, value = term.partition("=")
            holds = labels.get(key) == value if equal else key in labels
        if not holds:
            return False
    return True


def in_phase(selector: str, phase: str) -> bool:
    """Whether a field selector of phases holds."""
    match = re.fullmatch(r"(?:status\.phase(!?=)(\w+))?", selector)
    assert match, selector
    return not match[1] or (phase == match[2]) == (match[1] == "=")


class PodCluster(FakeCluster):
    """The server, its pods, and the permissions of accounts."""

    namespace = "daybreak"

    def __init__(self, folder: Path, *, image: dict[str, str], rules: list[dict[str, Any]]) -> None:
        self.granted = {verb for rule in rules if "pods" in rule["resources"] for verb in rule["verbs"]}
        self.used: set[str] = set()
        self.made: list[dict[str, Any]] = []  # all pods that ever were, as they were made
        self.ended: dict[str, int] = {}  # exit statuses of containers by pod
        self._version = 0
        self._happened: list[tuple[int, str, dict[str, str], dict[str, Any]]] = []
        folder.mkdir(exist_ok=True)
        super().__init__(folder, image=image)
        self._news = threading.Condition(self.lock)

    def running(self, task: str) -> list[str]:
        """Names of the pods of a task that run."""
        with self.lock:
            return [
                name
                for name, pod in self.objects["pods"].items()
                if pod["status"]["phase"] == "Running" and pod["metadata"]["annotations"]["task_id"] == task
            ]

    def worker_of(self, name: str) -> str:
        """Which scheduler a pod belongs to."""
        return str(self.objects["pods"][name]["metadata"]["labels"]["airflow-worker"])

    def log_of(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def kill_pod(self, name: str) -> None:
        """All processes of a pod get SIGKILL."""
        self.processes[name].kill()

    def evict(self, name: str) -> None:
        """A pod is told to end, and deleted, as where its node is drained."""
        with self.lock:
            self._do("delete", name, {}, {}, self.namespace)

    # The API

    def handler(self) -> type[BaseHTTPRequestHandler]:
        cluster = self

        class Handler(super().handler()):  # type: ignore[misc]
            def _serve(self) -> None:
                if not cluster.serve(self):
                    super()._serve()

            do_GET = do_POST = do_PATCH = do_DELETE = _serve

        return Handler

    def serve(self, request: BaseHTTPRequestHandler) -> bool:
        """Whether a request was about pods, and is answered."""
        parts = urlsplit(request.path)
        if parts.path.rstrip("/") in DISCOVERY:
            self._reply(request, 200, DISCOVERY[parts.path.rstrip("/")])
            return True
        if not (match := PODS.match(parts.path)):
            return False
        length = int(request.headers.get("Content-Length") or 0)
        body = json.loads(request.rfile.read(length)) if length else {}
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        name = match["name"] or ""
        watches = query.get("watch", "").lower() == "true"
        verb = VERBS.get(request.command) or ("watch" if watches else "get" if name else "list")
        try:
            self.used.add(verb)
            if verb not in self.granted:
                raise Refusal(403, "Forbidden", f"pods is forbidden: User cannot {verb} resource")
            if verb == "watch":
                self._stream(request, query)
                return True
            with self.lock:
                answer = deepcopy(self._do(verb, name, body, query, match["namespace"]))
        except Refusal as refusal:
            self._reply(request, refusal.code, refusal.body)
            return True
        if METADATA_ONLY in request.headers.get("Accept", ""):
            answer["kind"] = "PartialObjectMetadataList"
            answer["items"] = [
                {"kind": "PartialObjectMetadata", "metadata": each["metadata"]} for each in answer["items"]
            ]
        self._reply(request, 200, answer)
        return True

    def _do(self, verb: str, name: str, body: Any, query: dict[str, str], namespace: str) -> dict[str, Any]:
        if verb == "create":
            made = self._create("pods", body, namespace=namespace)
            made["status"] = {"phase": "Pending", "conditions": []}
            self.made.append(deepcopy(made))
            self._note("ADDED", made)
            return made
        if verb == "list":
            metadata = {"resourceVersion": str(self._version)}
            return {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": self._listed(query)}
        pod = self._get("pods", name)
        if verb == "patch":
            assert set(body) == {"metadata"}
            before = dict(pod["metadata"]["labels"])
            for key, values in body["metadata"].items():
                pod["metadata"].setdefault(key, {}).update(values)
            self._note("MODIFIED", pod, before=before)
        elif verb == "delete" and "deletionTimestamp" not in pod["metadata"]:
            grace_s = pod["spec"]["terminationGracePeriodSeconds"]
            pod["metadata"] |= {"deletionTimestamp": now(), "deletionGracePeriodSeconds": grace_s}
            self._note("MODIFIED", pod)
            self._stop(pod)
        return pod

    def _listed(self, query: dict[str, str]) -> list[dict[str, Any]]:
        return [
            pod
            for pod in self.objects["pods"].values()
            if selects(query.get("labelSelector", ""), pod["metadata"]["labels"])
            and in_phase(query.get("fieldSelector", ""), pod["status"]["phase"])
        ]

    def _note(self, kind: str, pod: dict[str, Any], *, before: dict[str, str] | None = None) -> None:
        """Gives a pod its new version, and tells whoever watches."""
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        labels = pod["metadata"]["labels"] if before is None else before
        self._happened.append((self._version, kind, dict(labels), deepcopy(pod)))
        self._news.notify_all()

    def _stream(self, request: BaseHTTPRequestHandler, query: dict[str, str]) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        request.close_connection = True
        with suppress(OSError):
            for event in self._events(query):
                line = json.dumps(event).encode() + b"\n"
                request.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            request.wfile.write(b"0\r\n\r\n")

    def _events(self, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        """Yields the events of a watch: first all pods if it begins at no version, then changes.

        A pod whose labels change so that it is no longer selected is reported as deleted.
        """
        selector, since = query.get("labelSelector", ""), int(query.get("resourceVersion") or 0)
        until = time.monotonic() + float(query["timeoutSeconds"])
        with self.lock:
            events: list[dict[str, Any]] = []
            if not since:
                events = [{"type": "ADDED", "object": deepcopy(pod)} for pod in self._listed(query)]
                since = self._version
        yield from events
        while time.monotonic() < until and not self._over.is_set():
            with self._news:
                self._news.wait(0.5)
                happened = [each for each in self._happened if each[0] > since]
            for version, kind, before, pod in happened:
                since = version
                was, now_selected = selects(selector, before), selects(selector, pod["metadata"]["labels"])
                if was or now_selected:
                    changed = "ADDED" if not was else "DELETED" if not now_selected else kind
                    yield {"type": changed, "object": pod}

    def _reply(self, request: BaseHTTPRequestHandler, code: int, answer: dict[str, Any]) -> None:
        text = json.dumps(answer).encode()
        request.send_response(code)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        request.wfile.write(text)

    # What the kubelet does

    def _control(self) -> None:
        while not self._over.wait(0.05):
            with self.lock:
                for pod in list(self.objects["pods"].values()):
                    self._look_after(pod)

    def _look_after(self, pod: dict[str, Any]) -> None:
        name, status = pod["metadata"]["name"], pod["status"]
        process = self.processes.get(name)
        if process is None and "deletionTimestamp" not in pod["metadata"]:
            self._run(pod)
            return
        if process is not None and process.poll() is not None and status["phase"] == "Running":
            code = process.returncode if process.returncode >= 0 else 128 - process.returncode
            self.ended[name] = code
            ended = {"exitCode": code, "reason": "Error" if code else "Completed"}
            self._tell_state(pod, "Failed" if code else "Succeeded", terminated=ended)
        if "deletionTimestamp" in pod["metadata"] and status["phase"] != "Running":
            del self.objects["pods"][name]
            self._note("DELETED", pod)

    def _run(self, pod: dict[str, Any]) -> None:
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        words = [*container["command"], *container["args"]]
        if words[:2] == ["tini", "--"]:
            words = words[2:]  # its work is that of the namespace's first process here
        own = {each["name"]: each["value"] for each in container["env"]}
        with (self.folder / f"{name}.log").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                ["unshare", "--pid", "--mount-proc", "--kill-child", "--fork", *words],
                env={**self.image, **own},
                stdout=output,
                stderr=output,
                cwd=self.image["DAYBREAK_HOME"],
                start_new_session=True,
            )
        pod["status"]["conditions"] = [condition("PodScheduled")]
        self._tell_state(pod, "Running", running={"startedAt": now()})

    def _tell_state(self, pod: dict[str, Any], phase: str, **state: dict[str, Any]) -> None:
        container = pod["spec"]["containers"][0]
        facts = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "restartCount": 0,
            "ready": "running" in state,
            "state": state,
        }
        pod["status"] |= {"phase": phase, "containerStatuses": [facts]}
        self._note("MODIFIED", pod)

    def _stop(self, pod: dict[str, Any]) -> None:
        """SIGTERM to the first process of the pod at once, SIGKILL to all after its grace period."""
        process = self.processes.get(pod["metadata"]["name"])
        if process is None or process.poll() is not None:
            return
        with suppress(psutil.Error):
            for first in psutil.Process(process.pid).children():
                first.send_signal(signal.SIGTERM)
        timer = threading.Timer(pod["spec"]["terminationGracePeriodSeconds"], process.kill)
        timer.daemon = True
        timer.start()
