"""Tries on a team's MLflow server what nights write there, and takes all of it back.

The model and the experiment of the home, where they exist, get a tag that is removed again; so does a run,
which also gets a file. In the place of a model, an experiment or a run that does not exist yet, one of a name
that nobody uses is made and deleted; MLflow keeps deleted runs and experiments in its trash.
"""

import contextlib
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.contract import extras
from daybreak.contract.errors import JobError, PipelineError, ReleaseError, without_password
from daybreak.storage import artifact_files, mlflow_client
from daybreak.storage.artifact_files import RESTORE
from daybreak.storage.home import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

OLDEST = (3, 0)  # version of a server with which nights ran
NAME = "daybreak-check"  # of what is written, and removed


def answer(home: Home, model: str) -> str:
    """Returns a sentence on the MLflow server of the home, to which nights may write.

    Raises JobError where the server is too old, lacks something, or lets this account not write, and
    ReleaseError where it names a place of artifacts that is not the home's.
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
        is_there = _exists(lambda: client.get_registered_model(model))
        if is_there:  # which an account may write to that may make no other
            with _step(uri, f"the model {model}"):
                client.set_registered_model_tag(model, NAME, "")
                client.delete_registered_model_tag(model, NAME)
        name = mlflow_client.experiment_name(home)
        known = mlflow_client.active_experiment(home, client)
        with _run(home, client, uri, known) as run:
            artifacts = mlflow_client.locations(home).expect_own(str(run.info.artifact_uri))
            _try_artifacts(client, uri, artifacts)
            if not is_there:
                _try_registry(client, uri, run)
        if known is None:
            return f"{text}; the first night creates its experiment {name}"
        return f"{text}; its experiment {name} keeps artifacts in {without_password(artifacts)}"


def _version(uri: str) -> str:
    """Returns the version of a server; "" where it does not say."""
    from mlflow.utils import credentials, rest_utils

    if not uri.startswith(("http:", "https:")):
        return ""
    account = credentials.get_default_host_creds(uri)  # type: ignore[no-untyped-call]
    said = rest_utils.http_request(account, "/version", "GET", max_retries=0)  # type: ignore[no-untyped-call]
    return str(said.text).strip() if said.ok and re.match(r"\d+\.\d+", said.text) else ""


@contextlib.contextmanager
def _run(home: Home, client: "MlflowClient", uri: str, known: "Experiment | None") -> "Iterator[Run]":
    """Yields a run of the experiment after setting and removing a tag; a temporary one if there is none."""
    what = f"the experiment {known.name}" if known else "experiments"
    with _step(uri, what), contextlib.ExitStack() as taken_back:
        if known:
            number = known.experiment_id
        else:
            number = mlflow_client.make_experiment(home, client, f"{NAME}-{secrets.token_hex(4)}")
            taken_back.callback(client.delete_experiment, number)
        runs = client.search_runs([number], max_results=1)
        run = runs[0] if runs else client.create_run(number, run_name=NAME)
        if not runs:
            taken_back.callback(client.delete_run, run.info.run_id)
        client.set_tag(run.info.run_id, NAME, "")
        client.delete_tag(run.info.run_id, NAME)
        yield run


def _try_artifacts(client: "MlflowClient", uri: str, where: str) -> None:
    """Writes a file beside the artifacts of a run, fetches it as a version's, and deletes it.

    What MLflow's client writes, another fetches (`storage/artifact_files.py`), which may not know the place.
    """
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    with _step(uri, f"the artifacts in {without_password(where)}"), tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / NAME
        path.write_text(NAME)
        store: Any = get_artifact_repository(where, tracking_uri=client.tracking_uri)
        store.log_artifact(str(path), NAME)
        try:
            again = Path(scratch) / "again"
            artifact_files.fetch(f"{where}/{NAME}", {NAME: len(NAME)}, into=again, server=client.tracking_uri)
            if not (again / NAME).exists():
                raise JobError(
                    f"a file that was written to {without_password(where)} is not there when read; look "
                    f"whether MLflow and this machine mean the same place"
                )
        except ReleaseError as error:
            said = str(error).removesuffix(RESTORE)
            if said == str(error):  # it says what to do
                raise
            raise JobError(
                f"what MLflow writes to {without_password(where)} cannot be read from here ({said}); keep "
                f"artifacts where fsspec reads them, or have MLflow's server serve them (docs/mlflow.md)"
            ) from None
        finally:
            store.delete_artifacts(NAME)


def _try_registry(client: "MlflowClient", uri: str, run: "Run") -> None:
    """Makes a model with a version of the run, as a server may refuse other sources, and deletes both."""
    name = f"{NAME}-{secrets.token_hex(4)}"
    with _step(uri, "registered models"):
        client.create_registered_model(name)
        try:
            source, run_id = f"{run.info.artifact_uri}/model", run.info.run_id
            made = client.create_model_version(name, source, run_id=run_id, await_creation_for=0)
            client.set_registered_model_alias(name, NAME, made.version)
            client.set_model_version_tag(name, made.version, NAME, "")
            if client.get_model_version_by_alias(name, NAME).version != made.version:
                raise JobError(f"MLflow at {uri} does not keep aliases; nights need them")
        finally:
            client.delete_registered_model(name)


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
    except PipelineError:
        raise
    except Exception as error:  # of MLflow, of requests, or of the client of a bucket
        if mlflow_client.is_refused(error):
            raise JobError(
                f"this account may read MLflow at {uri}, but not write {what}; give it the permission EDIT "
                f"there, or set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to one that has it"
            ) from error
        if lacks := extras.missing(error):
            raise JobError(f"{what[0].upper()}{what[1:]} cannot be written to from here: {lacks}") from error
        message = without_password(" ".join(str(error).split()))[:200]
        raise JobError(
            f"MLflow at {uri} did not take {what} as a night writes them ({message}); see the table in "
            f"docs/mlflow.md for what was run"
        ) from error
