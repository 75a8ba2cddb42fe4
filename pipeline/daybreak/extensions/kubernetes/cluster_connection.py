"""Connects to a cluster by the official client: the APIs of each group, and what an answer means.

A cluster is out of reach, has an object of that name already, or refuses.
"""

import json
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from daybreak.backends.place import Refused, Unreachable

AWAY = "the cluster does not answer"
CALL_S = (5.0, 30.0)  # to connect, and for the answer
RAW: dict[str, Any] = {"_request_timeout": CALL_S, "_preload_content": False}
BUSY = frozenset((408, 409, 429, 500, 502, 503, 504))  # HTTP statuses that another try may not get


class ClusterConnection:
    """A cluster, as the kubeconfig or the pod's own account reach it."""

    def __init__(self, context: str = "") -> None:
        """Keeps the name; `context` is of the kubeconfig; if empty, the pod's own or the current."""
        self._context = context

    def api(self, name: str) -> Any:
        """Returns the client's API of that class, such as `BatchV1Api`."""
        from kubernetes import client

        return getattr(client, name)(self._client)

    @cached_property
    def versions(self) -> dict[str, list[str]]:
        """The versions of each group of the API that the cluster has, the one that it prefers first."""
        call = self.api("ApisApi").get_api_versions
        groups: Sequence[dict[str, Any]] = self.answer(lambda: call(**RAW))["groups"]
        return {
            str(group["name"]): [
                str(each["version"]) for each in (group["preferredVersion"], *group["versions"])
            ]
            for group in groups
        }

    def answer(self, call: Callable[[], Any], *, unless: int = 0) -> dict[str, Any]:
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
