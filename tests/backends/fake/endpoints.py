"""EndpointService: endpoints, what is deployed to them, and how traffic is split."""

import os
import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from google.cloud.aiplatform_v1.types import (
    DeleteOperationMetadata,
    DeployedModel,
    Endpoint,
    endpoint_service,
)
from google.protobuf import empty_pb2

from tests.backends.fake.containers import Container
from tests.backends.fake.faults import Refusal, filtered, missing, nonsense, page, refuse_bad_labels
from tests.backends.fake.operations import Failed

if TYPE_CHECKING:
    from tests.backends.fake_vertex import FakeVertex


@dataclass
class Served:
    """An endpoint, and the containers behind it by the ids of their deployments."""

    endpoint: Endpoint
    containers: dict[str, Container] = field(default_factory=dict)
    coming: set[str] = field(default_factory=set)
    going: set[str] = field(default_factory=set)


class Endpoints:
    """EndpointService."""

    def __init__(self, home: "FakeVertex") -> None:
        self.home = home
        self.served: dict[str, Served] = {}
        self.started: list[str] = []  # the model of each container that was ever begun

    def close(self) -> None:
        for served in self.served.values():
            for container in served.containers.values():
                container.end()

    def deployed(self) -> list[DeployedModel]:
        return [one for served in self.served.values() for one in served.endpoint.deployed_models]

    def create_endpoint(self, request: Any) -> Any:
        self.home.known(request.parent)
        endpoint = Endpoint(request.endpoint)
        refuse_bad_labels(endpoint.labels)
        endpoint_id = request.endpoint_id or str(5_000_000 + len(self.served))
        if not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?|[1-9][0-9]{0,9}", endpoint_id):
            raise nonsense(f"Endpoint id {endpoint_id} is not valid.")
        endpoint.name = f"{request.parent}/endpoints/{endpoint_id}"
        if endpoint.name in self.served:
            raise Refusal(409, "ALREADY_EXISTS", f"Endpoint {endpoint.name} already exists.")

        def finish() -> Any:
            endpoint.create_time = datetime.now(UTC)
            _stamp(endpoint)
            self.served.setdefault(endpoint.name, Served(endpoint))
            return endpoint

        metadata = endpoint_service.CreateEndpointOperationMetadata()
        return self.home.operations.begin("create_endpoint", endpoint.name, finish, metadata)

    def get_endpoint(self, request: Any) -> Any:
        return self.named(request.name).endpoint

    def list_endpoints(self, request: Any) -> Any:
        self.home.known(request.parent)
        wanted = filtered(request.filter)
        matching = [
            served.endpoint
            for name, served in self.served.items()
            if name.startswith(request.parent + "/") and wanted(served.endpoint)
        ]
        endpoints, token = page(matching, request)
        return endpoint_service.ListEndpointsResponse(endpoints=endpoints, next_page_token=token)

    def update_endpoint(self, request: Any) -> Any:
        endpoint, new = self.named(request.endpoint.name).endpoint, request.endpoint
        if new.etag and new.etag != endpoint.etag:
            raise Refusal(409, "ABORTED", "The etag is not that of the endpoint as it is now.")
        for path in request.update_mask.paths:
            if path == "traffic_split":
                self._split(endpoint, dict(new.traffic_split))
            elif path == "labels":
                refuse_bad_labels(new.labels)
                endpoint.labels = dict(new.labels)
            else:
                raise nonsense(f"{path} cannot be updated here.")
        _stamp(endpoint)
        return endpoint

    def deploy_model(self, request: Any) -> Any:
        served, deployed = self.named(request.endpoint), DeployedModel(request.deployed_model)
        model = self.home.models.named(deployed.model)
        deployed.model = f"{model.name}@{model.version_id}"
        deployed.id = deployed.id or str(6_000_000 + len(self.started))
        if not re.fullmatch(r"[0-9]{1,10}", deployed.id):
            raise nonsense(f"DeployedModel id {deployed.id} is not valid.")
        if deployed.id in served.coming | {one.id for one in served.endpoint.deployed_models}:
            raise Refusal(409, "ALREADY_EXISTS", f"DeployedModel {deployed.id} already exists.")
        if not deployed.dedicated_resources.machine_spec.machine_type:
            raise nonsense("dedicated_resources.machine_spec is required.")
        split = {deployed.id if key == "0" else key: part for key, part in request.traffic_split.items()}
        _refuse_bad_split(split)
        self.started.append(deployed.model)
        container = Container(model, deployed, served.endpoint.name, self.home)
        served.containers[deployed.id] = container
        served.coming.add(deployed.id)

        def finish() -> Any:
            try:
                if not container.ready():
                    return None
            except Failed:
                served.coming.discard(deployed.id)
                raise
            served.coming.discard(deployed.id)
            deployed.create_time = datetime.now(UTC)
            served.endpoint.deployed_models.append(deployed)
            if split:
                self._split(served.endpoint, split)
            _stamp(served.endpoint)
            return endpoint_service.DeployModelResponse(deployed_model=deployed)

        metadata = endpoint_service.DeployModelOperationMetadata()
        begun = self.home.operations.begin("deploy_model", served.endpoint.name, finish, metadata)
        if self.home.operations.works[begun.name].fails:
            container.end()
            served.coming.discard(deployed.id)
        return begun

    def undeploy_model(self, request: Any) -> Any:
        served, deployed_id = self.named(request.endpoint), request.deployed_model_id
        endpoint = served.endpoint
        if deployed_id not in {one.id for one in endpoint.deployed_models} or deployed_id in served.going:
            raise missing("DeployedModel", deployed_id)
        if request.traffic_split:
            self._split(endpoint, dict(request.traffic_split))
        if endpoint.traffic_split.get(deployed_id) and len(endpoint.deployed_models) > 1:
            raise Refusal(400, "FAILED_PRECONDITION", f"DeployedModel {deployed_id} has traffic.")
        served.going.add(deployed_id)

        def finish() -> Any:
            served.going.discard(deployed_id)
            left = [one for one in endpoint.deployed_models if one.id != deployed_id]
            endpoint.deployed_models = left
            if not left:
                endpoint.traffic_split = {}
            served.containers.pop(deployed_id).end()
            _stamp(endpoint)
            return endpoint_service.UndeployModelResponse()

        metadata = endpoint_service.UndeployModelOperationMetadata()
        return self.home.operations.begin("undeploy_model", endpoint.name, finish, metadata)

    def delete_endpoint(self, request: Any) -> Any:
        served = self.named(request.name)
        if served.endpoint.deployed_models:
            raise Refusal(400, "FAILED_PRECONDITION", "The endpoint has deployed models.")
        del self.served[request.name]

        class Gone:
            @staticmethod
            def pb(_: Any) -> Any:
                return empty_pb2.Empty()

        return self.home.operations.begin("delete_endpoint", request.name, Gone, DeleteOperationMetadata())

    def named(self, name: str) -> Served:
        self.home.known(name)
        if name not in self.served:
            raise missing("Endpoint", name)
        return self.served[name]

    def _split(self, endpoint: Endpoint, split: dict[str, int]) -> None:
        _refuse_bad_split(split)
        strangers = set(split) - {one.id for one in endpoint.deployed_models}
        if strangers:
            raise nonsense(f"The traffic split names {sorted(strangers)}, which are not deployed.")
        endpoint.traffic_split = split


def _refuse_bad_split(split: dict[str, int]) -> None:
    if split and (sum(split.values()) != 100 or min(split.values()) < 0):
        raise nonsense(f"The traffic split {split} does not add up to 100.")


def _stamp(endpoint: Endpoint) -> None:
    endpoint.update_time = datetime.now(UTC)
    endpoint.etag = f"{time.monotonic_ns():x}-{os.getpid()}"
