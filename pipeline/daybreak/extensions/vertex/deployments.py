"""Registers and deploys versions on Vertex AI: model registry, endpoint, and deployments.

Making a model, an endpoint or a deployment takes minutes, so a call here only starts it and returns the name
of its operation, which the caller polls. We choose names where the service allows it: the model and the
endpoint have one name per home and MLflow model, and a deployment has the number of its version, so that
a request that is sent twice is refused the second time.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from daybreak.backends.place import RetryPolicy
from daybreak.contract.backend import label
from daybreak.extensions.vertex.client import Client, Denied

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import Endpoint, Model


@dataclass(frozen=True, kw_only=True)
class Operation:
    """State of a long-running operation; `code` is of google.rpc, 0 unless it failed."""

    name: str
    done: bool
    begun_at: datetime | None = None
    code: int = 0
    message: str = ""


class Deployments:
    """A model with all its versions, and the endpoint that serves some of them.

    Every method raises Unreachable and Denied, as `Client` does.
    """

    def __init__(
        self, *, project: str, region: str, model: str, home: str, endpoint: str, retry: RetryPolicy
    ) -> None:
        self._client = Client(region=region, endpoint=endpoint, retry=retry)
        self._labels = {"daybreak": home, "model": label(model)}
        self._parent = f"projects/{project}/locations/{region}"
        plain = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:30]
        self._id = f"daybreak-{plain or 'model'}-{home}"
        self.model = f"{self._parent}/models/{self._id}"
        self.endpoint = f"{self._parent}/endpoints/{self._id}"

    def served(self) -> "Endpoint | None":
        """Returns the endpoint as it is now; None if it does not exist."""
        endpoint: Endpoint | None = self._get(self._client.endpoints.get_endpoint, name=self.endpoint)
        return endpoint

    def version(self, number: int) -> "Model | None":
        """Returns the version that has that number in MLflow; of two the older."""
        wanted = {"name": self.model, "filter": f'labels.version="{number}"', "page_size": 100}
        page = self._get(self._client.models.list_model_versions, request=wanted)
        return min(page.models if page else (), key=lambda each: int(each.version_id), default=None)

    def upload(self, number: int, *, night: str, artifacts: str, container: Mapping[str, Any]) -> str:
        """Starts to register a version, and returns the name of the operation."""
        model = {
            "display_name": self._labels["model"],
            "labels": {**self._labels, "night": label(night), "version": str(number)},
            "artifact_uri": artifacts,
            "container_spec": container,
            "version_description": f"version {number} of night {night}",
        }
        request = {"parent": self._parent, "model": model}
        if self._get(self._client.models.get_model, name=self.model):
            request["parent_model"] = self.model
        else:
            request["model_id"] = self._id
        return self._start(self._client.models.upload_model, request)

    def make_endpoint(self) -> str:
        """Starts to make the endpoint, which serves nothing at first; returns the name of the operation."""
        endpoint = {"display_name": self._id, "labels": self._labels}
        request = {"parent": self._parent, "endpoint": endpoint, "endpoint_id": self._id}
        return self._start(self._client.endpoints.create_endpoint, request)

    def deploy(self, number: int, *, version: str, machine: Mapping[str, Any], account: str) -> str:
        """Starts to deploy a version, without traffic; returns the name of the operation.

        No traffic split is sent: the service would set it when the deployment is done, minutes later,
        whatever was promoted or rolled back in between.
        """
        deployed = {
            "id": str(number),
            "display_name": f"version {number}",
            "model": version,
            "dedicated_resources": machine,
            "service_account": account,
        }
        request = {"endpoint": self.endpoint, "deployed_model": deployed}
        return self._start(self._client.endpoints.deploy_model, request)

    def undeploy(self, number: int) -> str:
        """Starts to undeploy a version that has no traffic; returns the name of the operation."""
        request = {"endpoint": self.endpoint, "deployed_model_id": str(number)}
        return self._start(self._client.endpoints.undeploy_model, request)

    def split(self, parts: Mapping[str, int]) -> None:
        """Sets the percentage of the traffic that each version gets; they add up to 100. It is idempotent."""
        request = {
            "endpoint": {"name": self.endpoint, "traffic_split": dict(parts)},
            "update_mask": {"paths": ["traffic_split"]},
        }
        self._client.ask(self._client.endpoints.update_endpoint, request=request)

    def operation(self, name: str) -> Operation | None:
        """Returns the state of an operation; None if the service does not know it (any more)."""
        operation = self._get(self._client.operations.get_operation, name=name)
        return None if operation is None else _operation(operation)

    def going_on(self, parent: str) -> list[Operation]:
        """Returns the operations on the model or the endpoint that have not ended, oldest first."""
        page = self._get(self._client.operations.list_operations, name=parent)
        operations = [_operation(each) for each in page] if page is not None else []
        return sorted((each for each in operations if not each.done), key=lambda each: each.name)

    def _start(self, call: Any, request: Mapping[str, Any]) -> str:
        """Makes the call once, as its reply may be lost, and returns the name of the operation."""
        return str(self._client.once(call, request=request).operation.name)

    def _get(self, call: Any, **request: Any) -> Any:
        """Returns the answer; None if what the call names does not exist."""
        try:
            return self._client.ask(call, **request)
        except Denied as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise


def _operation(operation: Any) -> Operation:
    from google.cloud.aiplatform_v1.types import DeployModelOperationMetadata

    # The metadata of all kinds start with the same field, so one kind reads the time of any.
    metadata = DeployModelOperationMetadata.deserialize(operation.metadata.value)
    return Operation(
        name=operation.name,
        done=operation.done,
        begun_at=metadata.generic_metadata.create_time,
        code=operation.error.code,
        message=" ".join(operation.error.message.split()).rstrip(".")[:300],
    )
