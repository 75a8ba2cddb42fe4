"""Which versions does Vertex AI hold and serve? Its registry, an endpoint, and what is deployed to it.

Making a model, an endpoint or a deployment takes minutes, so a call here only begins it and returns the name
of its operation; whoever wants to know looks again. Names are ours as far as the service lets them be: the
model and the endpoint have one name for a home and a model of MLflow, and a deployment has the number of its
version, so that a request that is sent twice is refused the second time.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pipeline.backends.vertex.client import Calls, Denied, Patience
from pipeline.contract.backend import label

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import Endpoint, Model


@dataclass(frozen=True, kw_only=True)
class Operation:
    """How far something is that takes long; `code` is of google.rpc, 0 unless it failed."""

    name: str
    done: bool
    begun_at: datetime | None = None
    code: int = 0
    message: str = ""


class Deployments:
    """One model of ours with all its versions, and the endpoint that serves some of them."""

    def __init__(
        self, *, project: str, region: str, model: str, home: str, endpoint: str, patience: Patience
    ) -> None:
        self._calls = Calls(region=region, endpoint=endpoint, patience=patience)
        self._labels = {"daybreak": home, "model": label(model)}
        self._parent = f"projects/{project}/locations/{region}"
        plain = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:30]
        self._id = f"daybreak-{plain or 'model'}-{home}"
        self.model = f"{self._parent}/models/{self._id}"
        self.endpoint = f"{self._parent}/endpoints/{self._id}"

    def served(self) -> "Endpoint | None":
        """The endpoint as it is now; None where there is none. Raises Unanswered and Denied, as all here."""
        found: Endpoint | None = self._found(self._calls.endpoints.get_endpoint, name=self.endpoint)
        return found

    def version(self, number: int) -> "Model | None":
        """The version that has that number in MLflow; of two the older."""
        wanted = {"name": self.model, "filter": f'labels.version="{number}"', "page_size": 100}
        page = self._found(self._calls.models.list_model_versions, request=wanted)
        return min(page.models if page else (), key=lambda one: int(one.version_id), default=None)

    def upload(self, number: int, *, night: str, artifacts: str, container: Mapping[str, Any]) -> str:
        """Begin to register a version."""
        model = {
            "display_name": self._labels["model"],
            "labels": {**self._labels, "night": label(night), "version": str(number)},
            "artifact_uri": artifacts,
            "container_spec": container,
            "version_description": f"version {number} of night {night}",
        }
        request = {"parent": self._parent, "model": model}
        if self._found(self._calls.models.get_model, name=self.model):
            request["parent_model"] = self.model
        else:
            request["model_id"] = self._id
        return self._begun(self._calls.models.upload_model, request)

    def make_endpoint(self) -> str:
        """Begin to make the endpoint, which serves nothing at first."""
        endpoint = {"display_name": self._id, "labels": self._labels}
        request = {"parent": self._parent, "endpoint": endpoint, "endpoint_id": self._id}
        return self._begun(self._calls.endpoints.create_endpoint, request)

    def deploy(self, number: int, *, version: str, machine: Mapping[str, Any], account: str) -> str:
        """Begin to deploy a version; nobody meets it yet.

        No traffic split is sent: it would be set when the deployment is done, minutes later, whatever was
        promoted or rolled back in between.
        """
        deployed = {
            "id": str(number), "display_name": f"version {number}", "model": version,
            "dedicated_resources": machine, "service_account": account,
        }  # fmt: skip
        request = {"endpoint": self.endpoint, "deployed_model": deployed}
        return self._begun(self._calls.endpoints.deploy_model, request)

    def undeploy(self, number: int) -> str:
        """Begin to take a version down that has no traffic."""
        request = {"endpoint": self.endpoint, "deployed_model_id": str(number)}
        return self._begun(self._calls.endpoints.undeploy_model, request)

    def split(self, parts: Mapping[str, int]) -> None:
        """Set what part of the traffic each version gets; they add up to 100. Twice is as once."""
        request = {
            "endpoint": {"name": self.endpoint, "traffic_split": dict(parts)},
            "update_mask": {"paths": ["traffic_split"]},
        }
        self._calls.ask(self._calls.endpoints.update_endpoint, request=request)

    def operation(self, name: str) -> Operation | None:
        """How far it is; None where the service knows nothing of it (any more)."""
        found = self._found(self._calls.operations.get_operation, name=name)
        return None if found is None else _told(found)

    def going_on(self, parent: str) -> list[Operation]:
        """What is being done to the model or the endpoint and has not ended, oldest first."""
        page = self._found(self._calls.operations.list_operations, name=parent)
        found = [_told(one) for one in page] if page is not None else []
        return sorted((one for one in found if not one.done), key=lambda one: one.name)

    def _begun(self, call: Any, request: Mapping[str, Any]) -> str:
        """Ask once, as the reply may be lost; the name of the operation."""
        return str(self._calls.once(call, request=request).operation.name)

    def _found(self, call: Any, **request: Any) -> Any:
        """The answer; None where there is no such thing."""
        try:
            return self._calls.ask(call, **request)
        except Denied as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise


def _told(operation: Any) -> Operation:
    from google.cloud.aiplatform_v1.types import DeployModelOperationMetadata

    # All of them begin with the same field, so one kind reads the time of any.
    metadata = DeployModelOperationMetadata.deserialize(operation.metadata.value)
    return Operation(
        name=operation.name,
        done=operation.done,
        begun_at=metadata.generic_metadata.create_time,
        code=operation.error.code,
        message=" ".join(operation.error.message.split()).rstrip(".")[:300],
    )
