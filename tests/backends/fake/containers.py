"""What is deployed: a container as a process, and PredictionService, which sends requests there."""

import json
import random
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.api import httpbody_pb2
from google.cloud.aiplatform_v1.types import DeployedModel, Model, prediction_service
from google.protobuf import json_format

from tests.backends.fake.faults import Refusal
from tests.backends.fake.operations import Failed
from tests.backends.fake.processes import end_all, family, free_port, start

if TYPE_CHECKING:
    from tests.backends.fake_vertex import FakeVertex


class Container:
    """A deployed model as a process, with what the service tells containers in the environment."""

    def __init__(self, model: Model, deployed: DeployedModel, endpoint: str, home: "FakeVertex") -> None:
        spec = model.container_spec
        self.deployed, self.port = deployed, free_port()
        self.health = spec.health_route or "/health"
        self.predict = spec.predict_route or "/predict"
        variables = {variable.name: variable.value for variable in spec.env}
        disk = home.folder / f"serving{self.port}"
        disk.mkdir()
        environment = {
            **home.image,
            **variables,
            "TMPDIR": str(disk),
            "AIP_MODE": "PREDICTION",
            "AIP_HTTP_PORT": str(self.port),
            "AIP_HEALTH_ROUTE": self.health,
            "AIP_PREDICT_ROUTE": self.predict,
            "AIP_STORAGE_URI": model.artifact_uri,
            "AIP_ENDPOINT_ID": endpoint.rpartition("/")[2],
            "AIP_DEPLOYED_MODEL_ID": deployed.id,
        }
        command = [sys.executable if word == "python" else word for word in [*spec.command, *spec.args]]
        self.log: Path = home.folder / f"deployed{deployed.id}.log"
        self.process = start(command, environment=environment, disk=disk, log=self.log)

    def ready(self) -> bool:
        """Whether it answers to the health check; Failed where it has ended."""
        if self.process.poll() is not None:
            last_line = self.log.read_text().strip().splitlines()[-1:]
            raise Failed(9, f"Model server exited unexpectedly: {' '.join(last_line)[:200]}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self.health}", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def ask(self, body: bytes) -> bytes:
        address = f"http://127.0.0.1:{self.port}{self.predict}"
        asked = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            raise Refusal(400, "FAILED_PRECONDITION", error.read().decode()[:500]) from None
        except OSError as error:
            raise Refusal(503, "UNAVAILABLE", str(error)) from None

    def end(self) -> None:
        end_all(family(self.process.pid))
        self.process.wait()


class Predictions:
    """PredictionService."""

    def __init__(self, home: "FakeVertex") -> None:
        self.home = home
        self.random = random.Random(0)

    def predict(self, request: Any) -> Any:
        container = self._drawn(request.endpoint)
        pb = type(request).pb(request)
        body: dict[str, Any] = {"instances": [json_format.MessageToDict(one) for one in pb.instances]}
        if pb.HasField("parameters"):
            body["parameters"] = json_format.MessageToDict(pb.parameters)
        answer = prediction_service.PredictResponse(
            deployed_model_id=container.deployed.id,
            model=container.deployed.model.partition("@")[0],
            model_version_id=container.deployed.model.partition("@")[2],
        )
        said = json.loads(container.ask(json.dumps(body).encode()))
        json_format.ParseDict({"predictions": said["predictions"]}, type(answer).pb(answer))
        return answer

    def raw_predict(self, request: Any) -> Any:
        container = self._drawn(request.endpoint)
        body = container.ask(request.http_body.data)
        return httpbody_pb2.HttpBody(content_type="application/json", data=body)

    def _drawn(self, name: str) -> Container:
        """A container by the traffic split, each request anew."""
        served = self.home.endpoints.named(name)
        split = dict(served.endpoint.traffic_split)
        if not split:
            raise Refusal(400, "FAILED_PRECONDITION", f"Endpoint {name} has no traffic split.")
        (drawn,) = self.random.choices(list(split), weights=list(split.values()))
        return served.containers[drawn]
