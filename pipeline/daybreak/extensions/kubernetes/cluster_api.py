"""Talks to a cluster by the official client, in plain values: Jobs, JobSets, pods, events, nodes, Workloads.

The only decision here is the meaning of an answer: the cluster is out of reach, has an object of that name
already, or refuses.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from daybreak.backends.place import Refused, Unreachable
from daybreak.extensions.kubernetes.manifest import JOBSET, JOBSET_VERSION

AWAY = "the cluster does not answer"
KUEUE = "kueue.x-k8s.io"  # a group of the API
JOBSET_VERBS = ("create", "list", "delete")  # what a night needs of JobSets
JOB_UID = f"{KUEUE}/job-uid"  # label of a Workload
CALL_S = (5.0, 30.0)  # to connect, and for the answer
RAW: dict[str, Any] = {"_request_timeout": CALL_S, "_preload_content": False}
BUSY = frozenset((408, 409, 429, 500, 502, 503, 504))  # HTTP statuses that another try may not get


class ClusterApi:
    """One namespace of a cluster."""

    def __init__(self, *, namespace: str, context: str = "") -> None:
        """Keeps the names; `context` is of the kubeconfig; if empty, the pod's own or the current."""
        self.namespace, self._context = namespace, context

    def jobs(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Returns the Jobs with these labels, oldest first."""
        jobs = self._listed(self._batch.list_namespaced_job, label_selector=_selector(labels))
        return sorted(jobs, key=lambda job: (job["metadata"]["creationTimestamp"], job["metadata"]["name"]))

    def job_sets(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Returns the JobSets with these labels; nothing where the cluster does not have that kind."""
        call = self._of_job_sets("list")
        answer = self._whole(lambda: call(label_selector=_selector(labels), **RAW), unless=404)
        return list(answer.get("items", ()))

    def pods(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Returns the pods with these labels."""
        return self._listed(self._core.list_namespaced_pod, label_selector=_selector(labels))

    def events(self, uid: str) -> list[dict[str, Any]]:
        """Returns what happened to the object of that uid; nothing where this account may not list events."""
        try:
            return self._listed(self._core.list_namespaced_event, field_selector=f"involvedObject.uid={uid}")
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
        version = next(iter(self._versions.get(KUEUE, ())), "")
        if not version:
            return {}
        call = self._custom.list_namespaced_custom_object
        return self._whole(
            lambda: call(KUEUE, version, self.namespace, plural, **RAW, **arguments), unless=404
        )

    def nodes(self) -> list[dict[str, Any]]:
        """Returns the nodes of the cluster."""
        return list(self._whole(lambda: self._core.list_node(**RAW))["items"])

    @cached_property
    def serves_job_sets(self) -> bool:
        """Returns whether the cluster has JobSets."""
        return JOBSET_VERSION in self._versions.get(JOBSET, ())

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
        return self._whole(lambda: call(body=dict(manifest), **RAW), unless=409) or None

    def try_out(self, manifest: Mapping[str, Any]) -> None:
        """Asks whether an object would be created, by all that the cluster checks; Refused says why not."""
        call = self._creation(manifest["kind"])
        self._whole(lambda: call(body=dict(manifest), dry_run="All", **RAW))

    def delete_job(self, name: str) -> None:
        """Deletes a Job with its pods; no error if it is gone."""
        self._delete(partial(self._batch.delete_namespaced_job, namespace=self.namespace), name)

    def delete_job_set(self, name: str) -> None:
        """Deletes a JobSet with all Jobs and pods; no error if there is none."""
        self._delete(self._of_job_sets("delete"), name)

    def _delete(self, call: Callable[..., Any], name: str) -> None:
        self._whole(lambda: call(name=name, propagation_policy="Foreground", **RAW), unless=404)

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
        call = self._authorization.create_self_subject_access_review
        return bool(self._whole(lambda: call(asked, **RAW))["status"]["allowed"])

    @cached_property
    def _client(self) -> Any:
        from kubernetes import client, config
        from kubernetes.config.config_exception import ConfigException

        try:
            if not self._context:
                try:
                    config.load_incluster_config()
                    return client.ApiClient()
                except ConfigException:
                    pass
            return config.new_client_from_config(
                config_file=os.environ.get("KUBECONFIG"), context=self._context or None
            )
        except (ConfigException, OSError) as error:
            raise Unreachable(f"{AWAY}: no kubeconfig leads to it: {error}") from None

    @cached_property
    def _batch(self) -> Any:
        from kubernetes import client

        return client.BatchV1Api(self._client)

    @cached_property
    def _core(self) -> Any:
        from kubernetes import client

        return client.CoreV1Api(self._client)

    @cached_property
    def _custom(self) -> Any:
        from kubernetes import client

        return client.CustomObjectsApi(self._client)

    @cached_property
    def _versions(self) -> dict[str, list[str]]:
        """The versions of each group of the API that the cluster has, the one that it prefers first."""
        from kubernetes import client

        call = client.ApisApi(self._client).get_api_versions
        groups: Sequence[dict[str, Any]] = self._whole(lambda: call(**RAW))["groups"]
        return {
            str(group["name"]): [
                str(each["version"]) for each in (group["preferredVersion"], *group["versions"])
            ]
            for group in groups
        }

    @cached_property
    def _authorization(self) -> Any:
        from kubernetes import client

        return client.AuthorizationV1Api(self._client)

    def _listed(self, call: Callable[..., Any], **arguments: str) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self._whole(lambda: call(self.namespace, **RAW, **arguments))["items"]
        return listed

    def _creation(self, kind: str) -> Callable[..., Any]:
        """Returns the call that creates an object of that kind."""
        if kind == "JobSet":
            return self._of_job_sets("create")
        api = self._batch if kind == "Job" else self._core
        return partial(getattr(api, f"create_namespaced_{kind.lower()}"), namespace=self.namespace)

    def _of_job_sets(self, verb: str) -> Callable[..., Any]:
        return partial(
            getattr(self._custom, f"{verb}_namespaced_custom_object"),
            group=JOBSET,
            version=JOBSET_VERSION,
            namespace=self.namespace,
            plural="jobsets",
        )

    def _whole(self, call: Callable[[], Any], *, unless: int = 0) -> dict[str, Any]:
        """Returns the JSON of the answer; an empty one at the HTTP status `unless`.

        The client's own classes are not used, since they refuse fields of a newer or older cluster.
        """
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            answer: dict[str, Any] = json.loads(call().data)
            return answer
        except json.JSONDecodeError:
            raise Unreachable(f"{AWAY}: its reply ends in the middle") from None
        except ApiException as error:
            if error.status == unless and _reason(error) != "Conflict":
                return {}
            if not error.status or error.status in BUSY:
                raise Unreachable(f"{AWAY}: {_said(error)}") from None
            raise Refused(_said(error)) from None
        except (HTTPError, OSError) as error:
            raise Unreachable(f"{AWAY}: {' '.join(str(error).split())[:200]}") from None


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _reason(error: Any) -> str:
    """Returns the word of the API's status object: 409 is AlreadyExists, or Conflict of two that write."""
    try:
        return str(json.loads(error.body)["reason"])
    except (ValueError, TypeError, KeyError):
        return ""


def _said(error: Any) -> str:
    """Returns the sentence of the API's status object, or what HTTP has."""
    try:
        return str(json.loads(error.body)["message"])[:300]
    except (ValueError, TypeError, KeyError):
        return f"HTTP status {error.status} {error.reason}"
