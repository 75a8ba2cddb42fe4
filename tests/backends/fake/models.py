"""ModelService: models, each with its versions."""

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from google.cloud.aiplatform_v1.types import DeleteOperationMetadata, Model, model_service
from google.protobuf import empty_pb2

from tests.backends.fake.faults import Refusal, filtered, missing, nonsense, page, refuse_bad_labels

if TYPE_CHECKING:
    from tests.backends.fake_vertex import FakeVertex


class Models:
    """ModelService. The name of a model may end in @VERSION; without, it is the newest one."""

    def __init__(self, home: "FakeVertex") -> None:
        self.home = home
        self.models: dict[str, list[Model]] = {}  # by name, without version; oldest version first

    def upload_model(self, request: Any) -> Any:
        self.home.known(request.parent)
        model = Model(request.model)
        refuse_bad_labels(model.labels)
        if not model.container_spec.image_uri:
            raise nonsense("container_spec.image_uri is required.")
        if request.parent_model:
            name = self._versions(request.parent_model)[0].name
        else:
            model_id = request.model_id or str(3_000_000 + len(self.models))
            if request.model_id and not re.fullmatch(r"[a-z_][a-z0-9_-]{0,62}", request.model_id):
                raise nonsense(f"Model id {request.model_id} is not valid.")
            name = f"{request.parent}/models/{model_id}"
            if name in self.models:
                raise Refusal(409, "ALREADY_EXISTS", f"Model {name} already exists.")

        def finish() -> Any:
            versions = self.models.setdefault(name, [])
            number = 1 + max((int(one.version_id) for one in versions), default=0)
            model.name, model.version_id = name, str(number)
            model.create_time = model.version_create_time = datetime.now(UTC)
            versions.append(model)
            return model_service.UploadModelResponse(model=name, model_version_id=model.version_id)

        return self.home.operations.begin(
            "upload_model", name, finish, model_service.UploadModelOperationMetadata()
        )

    def get_model(self, request: Any) -> Any:
        return self.named(request.name)

    def list_models(self, request: Any) -> Any:
        self.home.known(request.parent)
        wanted = filtered(request.filter)
        newest = [versions[-1] for name, versions in self.models.items() if versions]
        matching = [one for one in newest if one.name.startswith(request.parent + "/") and wanted(one)]
        models, token = page(matching, request)
        return model_service.ListModelsResponse(models=models, next_page_token=token)

    def list_model_versions(self, request: Any) -> Any:
        wanted = filtered(request.filter)
        models, token = page([one for one in self._versions(request.name) if wanted(one)], request)
        return model_service.ListModelVersionsResponse(models=models, next_page_token=token)

    def delete_model_version(self, request: Any) -> Any:
        model = self.named(request.name)
        if len(self.models[model.name]) == 1:
            raise Refusal(400, "FAILED_PRECONDITION", "The only version of a model; delete the model.")
        self._refuse_deployed(model)
        self.models[model.name].remove(model)
        return self._deleted("delete_model_version", model.name)

    def delete_model(self, request: Any) -> Any:
        for version in self._versions(request.name):
            self._refuse_deployed(version)
        del self.models[request.name]
        return self._deleted("delete_model", request.name)

    def named(self, name: str) -> Model:
        plain, _, version = name.partition("@")
        versions = self._versions(plain)
        matching = [one for one in versions if one.version_id == version] if version else versions[-1:]
        if not matching:
            raise missing("Model", name)
        return matching[0]

    def _versions(self, name: str) -> list[Model]:
        self.home.known(name)
        plain = name.partition("@")[0]
        if not self.models.get(plain):
            raise missing("Model", plain)
        return self.models[plain]

    def _deleted(self, method: str, name: str) -> Any:
        class Gone:  # begin() takes messages of the client's kind
            @staticmethod
            def pb(_: Any) -> Any:
                return empty_pb2.Empty()

        return self.home.operations.begin(method, name, Gone, DeleteOperationMetadata())

    def _refuse_deployed(self, model: Model) -> None:
        name = f"{model.name}@{model.version_id}"
        if any(name == one.model for one in self.home.endpoints.deployed()):
            raise Refusal(400, "FAILED_PRECONDITION", f"Model {name} is deployed.")
