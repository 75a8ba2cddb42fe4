"""Tries on a team's MLflow server what nights write there, and takes all of it back.

A model of a name that nobody uses gets a version, an alias and a tag, and is deleted. The model and the
experiment of the home, where they exist, get a tag that is removed again; so does a run, which also gets a
file. A run is made for that only in an experiment that has none; MLflow keeps deleted runs in its trash.
"""

import contextlib
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.contract.errors import JobError, without_password
from daybreak.storage import mlflow_client
from daybreak.storage.home import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient

OLDEST = (3, 0)  # version of a server with which nights ran
NAME = "daybreak-check"  # of what is written, and removed


def answer(home: Home, model: str) -> str:
    """Returns a sentence on what answers at the home's MLflow, where nights may write what they write.

    Raises JobError where the server is too old, lacks something, or lets this account not write.
    """
    with mlflow_client.session(home) as client:
        uri = without_password(client.tracking_uri)
        text = f"{uri} answers"
        if version := _version(client.tracking_uri):
            text = f"MLflow {version} at {uri} answers"
            if tuple(map(int, version.split(".")[:2])) < OLDEST:
                raise JobError(
                    f"{text}, and the oldest with which nights ran is {'.'.join(map(str, OLDEST))}; "
                    f"update the server"
                )
        _try_registry(client, uri)
        if _exists(lambda: client.get_registered_model(model)):
            with _step(uri, f"the model {model}"):
                client.set_registered_model_tag(model, NAME, "")
                client.delete_registered_model_tag(model, NAME)
        name = mlflow_client.experiment_name(home)
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            return f"{text}; the first night creates its experiment {name}"
        if experiment.lifecycle_stage != "active":
            raise JobError(
                f"{text}, but its experiment {name} is deleted; restore it there, or name another as "
                f"register.experiment"
            )
        artifacts = _try_run(client, uri, experiment, name)
        return f"{text}; its experiment {name} keeps artifacts in {without_password(artifacts)}"


def _version(uri: str) -> str:
    """Returns the version of a server; "" where it does not say."""
    from mlflow.utils import credentials, rest_utils

    if not uri.startswith(("http:", "https:")):
        return ""
    account = credentials.get_default_host_creds(uri)  # type: ignore[no-untyped-call]
    said = rest_utils.http_request(account, "/version", "GET", max_retries=0)  # type: ignore[no-untyped-call]
    return str(said.text).strip() if said.ok and re.match(r"\d+\.\d+", said.text) else ""


def _try_registry(client: "MlflowClient", uri: str) -> None:
    """Makes a model with a version, and deletes both."""
    name = f"{NAME}-{secrets.token_hex(4)}"
    with _step(uri, "registered models"):
        client.create_registered_model(name)
        try:
            source = "s3://daybreak-check/none"  # which MLflow keeps, and does not read
            made = client.create_model_version(name, source, await_creation_for=0)
            client.set_registered_model_alias(name, NAME, made.version)
            client.set_model_version_tag(name, made.version, NAME, "")
            if client.get_model_version_by_alias(name, NAME).version != made.version:
                raise JobError(f"MLflow at {uri} does not keep aliases; nights need them")
        finally:
            client.delete_registered_model(name)


def _try_run(client: "MlflowClient", uri: str, experiment: Any, name: str) -> str:
    """Writes to a run of the experiment, and takes it back; returns where artifacts are kept."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    with _step(uri, f"the experiment {name}"):
        runs = client.search_runs([experiment.experiment_id], max_results=1)
        run = runs[0] if runs else client.create_run(experiment.experiment_id, run_name=NAME)
        try:
            client.set_tag(run.info.run_id, NAME, "")
            client.delete_tag(run.info.run_id, NAME)
        finally:
            if not runs:
                client.delete_run(run.info.run_id)
    where = str(run.info.artifact_uri)
    with _step(uri, f"the artifacts in {without_password(where)}"), tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / NAME
        path.write_text(NAME)
        store: Any = get_artifact_repository(where, tracking_uri=client.tracking_uri)
        store.log_artifact(str(path), NAME)
        store.delete_artifacts(NAME)
    return where


def _exists(ask: Callable[[], Any]) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        ask()
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return False
    return True


@contextlib.contextmanager
def _step(uri: str, what: str) -> Iterator[None]:
    """Turns an error of what is tried meanwhile into one sentence."""
    try:
        yield
    except JobError:
        raise
    except Exception as error:  # of MLflow, of requests, or of the client of a bucket
        if mlflow_client.is_refused(error):
            raise JobError(
                f"this account may read MLflow at {uri}, but not write {what}; give it the permission EDIT "
                f"there, or set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to one that has it"
            ) from error
        message = without_password(" ".join(str(error).split()))[:200]
        raise JobError(
            f"MLflow at {uri} did not take {what} as a night writes them ({message}); see the table in "
            f"docs/mlflow.md for what was run"
        ) from error
