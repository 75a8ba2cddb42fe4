"""Asks a cluster, in plain values, for Jobs, JobSets, pods, events, nodes and Workloads.

A method is a call or two; cluster_connection.py says what an answer means.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from daybreak.backends.place import Refused
from daybreak.extensions.kubernetes.cluster_connection import RAW, ClusterConnection
from daybreak.extensions.kubernetes.manifest import JOBSET, JOBSET_VERSION

KUEUE = "kueue.x-k8s.io"  # a group of the API
JOBSET_VERBS = ("create", "list", "delete")  # what a night needs of JobSets
JOB_UID = f"{KUEUE}/job-uid"  # label of a Workload


class ClusterApi:
    """One namespace of a cluster."""

    def __init__(self, *, namespace: str, context: str = "") -> None:
        """Keeps the names; `context` as of ClusterConnection."""
        self.namespace, self._cluster = namespace, ClusterConnection(context)

    def jobs(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Returns the Jobs with these labels, oldest first."""
        call = self._cluster.api("BatchV1Api").list_namespaced_job
        jobs = self._listed(call, label_selector=_selector(labels))
        return sorted(jobs, key=lambda job: (job["metadata"]["creationTimestamp"], job["metadata"]["name"]))

    def job_sets(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Returns the JobSets with these labels; nothing where the cluster does not have that kind."""
        call = self._of_job_sets("list")
        answer = self._cluster.answer(lambda: call(label_selector=_selector(labels), **RAW), unless=404)
        return list(answer.get("items", ()))

    def pods(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Returns the pods with these labels."""
        call = self._cluster.api("CoreV1Api").list_namespaced_pod
        return self._listed(call, label_selector=_selector(labels))

    def events(self, uid: str) -> list[dict[str, Any]]:
        """Returns what happened to the object of that uid; nothing where this account may not list events."""
        call = self._cluster.api("CoreV1Api").list_namespaced_event
        try:
            return self._listed(call, field_selector=f"involvedObject.uid={uid}")
        except Refused:
            return []

    def workload(self, uid: str) -> dict[str, Any] | None:
        """Returns what Kueue has of the Job or JobSet of that uid.

        None where Kueue has no Workload yet, or this account may not list Workloads.
        """
        try:
            workloads = self._kueue("workloads", label_selector=f"{JOB_UID}={uid}").get("items", ())
        except Refused:
            return None
        return next(iter(workloads), None)

    def local_queue(self, name: str) -> dict[str, Any] | None:
        """Returns the LocalQueue of that name; None where there is none, or no Kueue."""
        queues: Sequence[dict[str, Any]] = self._kueue("localqueues").get("items", ())
        return next((queue for queue in queues if queue["metadata"]["name"] == name), None)

    def _kueue(self, plural: str, **arguments: str) -> dict[str, Any]:
        """Returns a list of Kueue's in its newest version; an empty one where the cluster has no Kueue."""
        version = next(iter(self._cluster.versions.get(KUEUE, ())), "")
        if not version:
            return {}
        call = self._cluster.api("CustomObjectsApi").list_namespaced_custom_object
        return self._cluster.answer(
            lambda: call(KUEUE, version, self.namespace, plural, **RAW, **arguments), unless=404
        )

    def nodes(self) -> list[dict[str, Any]]:
        """Returns the nodes of the cluster."""
        call = self._cluster.api("CoreV1Api").list_node
        return list(self._cluster.answer(lambda: call(**RAW))["items"])

    @cached_property
    def serves_job_sets(self) -> bool:
        """Returns whether the cluster has JobSets."""
        return JOBSET_VERSION in self._cluster.versions.get(JOBSET, ())

    @cached_property
    def makes_job_sets(self) -> bool:
        """Returns whether this account has all it needs to run jobs as JobSets."""
        try:
            return self.serves_job_sets and all(
                self.may(verb, "jobsets", group=JOBSET) for verb in JOBSET_VERBS
            )
        except Refused:
            return False

    def create(self, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
        """Creates an object and returns it; None if an object of that kind and name exists."""
        call = self._creation(manifest["kind"])
        return self._cluster.answer(lambda: call(body=dict(manifest), **RAW), unless=409) or None

    def try_out(self, manifest: Mapping[str, Any]) -> None:
        """Asks whether an object would be created, by all that the cluster checks; Refused says why not."""
        call = self._creation(manifest["kind"])
        self._cluster.answer(lambda: call(body=dict(manifest), dry_run="All", **RAW))

    def delete_job(self, name: str) -> None:
        """Deletes a Job with its pods; no error if it is gone."""
        call = self._cluster.api("BatchV1Api").delete_namespaced_job
        self._delete(partial(call, namespace=self.namespace), name)

    def delete_job_set(self, name: str) -> None:
        """Deletes a JobSet with all Jobs and pods; no error if there is none."""
        self._delete(self._of_job_sets("delete"), name)

    def _delete(self, call: Callable[..., Any], name: str) -> None:
        self._cluster.answer(lambda: call(name=name, propagation_policy="Foreground", **RAW), unless=404)

    def may(self, verb: str, resource: str, *, group: str = "") -> bool:
        """Returns whether this account may do that in the namespace."""
        asked = {
            "spec": {
                "resourceAttributes": {
                    "namespace": self.namespace,
                    "verb": verb,
                    "resource": resource,
                    "group": group,
                }
            }
        }
        call = self._cluster.api("AuthorizationV1Api").create_self_subject_access_review
        return bool(self._cluster.answer(lambda: call(asked, **RAW))["status"]["allowed"])

    def _listed(self, call: Callable[..., Any], **arguments: str) -> list[dict[str, Any]]:
        answer = self._cluster.answer(lambda: call(self.namespace, **RAW, **arguments))
        listed: list[dict[str, Any]] = answer["items"]
        return listed

    def _creation(self, kind: str) -> Callable[..., Any]:
        """Returns the call that creates an object of that kind."""
        if kind == "JobSet":
            return self._of_job_sets("create")
        api = self._cluster.api("BatchV1Api" if kind == "Job" else "CoreV1Api")
        return partial(getattr(api, f"create_namespaced_{kind.lower()}"), namespace=self.namespace)

    def _of_job_sets(self, verb: str) -> Callable[..., Any]:
        return partial(
            getattr(self._cluster.api("CustomObjectsApi"), f"{verb}_namespaced_custom_object"),
            group=JOBSET,
            version=JOBSET_VERSION,
            namespace=self.namespace,
            plural="jobsets",
        )


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())
