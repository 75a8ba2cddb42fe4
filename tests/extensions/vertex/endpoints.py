"""Versions in a real MLflow, and an endpoint on loopback that serves them."""

import time
from functools import partial
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from daybreak.backends.place import RetryPolicy
from daybreak.contract import records
from daybreak.contract.errors import NotYet
from daybreak.contract.record_types import Release
from daybreak.extensions.vertex.endpoint import Endpoint, OnVertex
from daybreak.registry import carried_code
from daybreak.storage import artifact_files
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import Log
from tests.backends import killed

QUICK = RetryPolicy(first_pause_s=0.02, give_up_s=0.5, settle_s=0.3)
ANSWERING = ("python", "-m", "tests.backends.fake.answering")
MODEL = "daybreak"


def arguments(service: Any, folder: Path, **changes: Any) -> dict[str, Any]:
    """What params.yaml says of the endpoint."""
    return {
        "project": "p",
        "image": "eu.example/daybreak:1",
        "bucket": str(folder / "bucket"),
        "endpoint": service.url,
        "command": ANSWERING,
        "retry": QUICK,
        **changes,
    }


def target(
    service: Any, folder: Path, client: MlflowClient, kept: Log | None = None, **changes: Any
) -> OnVertex:
    """Makes a target anew, as each call of a stage does: it knows only what is written down."""
    return Endpoint(**arguments(service, folder, **changes)).target(Home.here(), client, MODEL, kept)


def make_versions(client: MlflowClient, folder: Path, number: int) -> list[Release]:
    """Versions 1, 2, ... in MLflow, and the releases that make each of them follow the one before."""
    client.create_registered_model(MODEL)
    releases = []
    for version in range(1, number + 1):
        files = Home.here().var / "artifacts" / f"version{version}"
        model = files / "artifacts" / "model"
        model.mkdir(parents=True)
        (model / "model.json").write_text(f'{{"version": {version}}}')
        archive = files / carried_code.CODE / carried_code.ARCHIVE
        archive.parent.mkdir()
        carried_code.pack({"none.py": Path(__file__).with_name("__init__.py")}, archive)
        (files / "MLmodel").write_text("flavors: {}\n")
        digest, files_digest = records.digest(model), records.digest(files)
        tags = {"model_digest": digest}
        client.create_model_version(MODEL, files.as_uri(), tags=tags, await_creation_for=0)
        night = f"2026-01-{version:02d}"
        releases.append(
            Release(
                version=version,
                replaced=version - 1,
                model_digest=digest,
                files_digest=files_digest,
                files=artifact_files.sizes(files),
                night=night,
            )
        )
    return releases


def until_done(call: Any) -> list[str]:
    """Call until it is done; the sentences that it was not."""
    sentences: list[str] = []
    until = time.monotonic() + 300
    while time.monotonic() < until:
        try:
            call()
        except NotYet as sentence:
            sentences.append(str(sentence))
        else:
            return sentences
    raise AssertionError(sentences[-3:])


def asked(service: Any, target: OnVertex, *, times: int = 1) -> list[int]:
    """Versions that answer to so many requests."""
    return [int(asked_for(service.url, target, [{"user": "1"}])[0]) for _ in range(times)]


def asked_for(url: str, target: OnVertex, instances: list[dict[str, Any]]) -> list[Any]:
    """Predictions, by the client's own PredictionService."""
    from google.api_core.client_options import ClientOptions
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.aiplatform_v1.services.prediction_service import PredictionServiceClient

    options = ClientOptions(api_endpoint=url)
    client = PredictionServiceClient(
        credentials=AnonymousCredentials(), client_options=options, transport="rest"
    )
    answer = client.predict(endpoint=target.deployments.endpoint, instances=instances, timeout=30)
    return list(answer.predictions)


class Killed(BaseException):
    """Stands for SIGKILL: nobody catches it."""


PLACES = (
    "vertex/endpoint.py",
    "vertex/operation_journal.py",
    "storage/request_journal.py",
    "vertex/deployments.py",
    "vertex/client.py",
)


def _kill() -> None:
    raise Killed


# Killed when so many lines of what serves on Vertex AI have been run; counts them.
killed_at = partial(killed.killed_at, within=lambda path: path.endswith(PLACES), kill=_kill)
