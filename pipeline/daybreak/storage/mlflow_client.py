"""Opens MLflow for the stages, and turns a server that does not answer into one JobError.

MLflow is at `$MLFLOW_TRACKING_URI`, else at `register.tracking_uri` of the home's params.yaml, else in a
SQLite file under $DAYBREAK_HOME/var, with its artifacts beside it (`storage/artifacts.py`) or, for an
experiment that does not exist yet, in `$MLFLOW_ARTIFACTS_DESTINATION` (a folder, gs://...), which every copy
of the home shares.
A home that is a member of a fleet (`storage/homes.py`) keeps its versions where the home that leads does.
Each night has one MLflow run in the experiment `register.experiment`, by default `daybreak` or, for a member
of a fleet, its model. The run is found or created by its tags `night` and `home`: other homes may have nights
of the same name in the same experiment. A server that does not answer is tried again for some seconds; then
JobError is raised, and the stage can be run again.

Only `make setup` and the first night create the SQLite file (`create`). A session never does: an empty
registry in the place of a lost one would hide that the versions are gone.
"""

import configparser
import contextlib
import errno
import functools
import logging
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from daybreak.contract import params
from daybreak.contract.errors import JobError, sentence, without_password
from daybreak.contract.sections import RegisterParams
from daybreak.storage import address, checkout
from daybreak.storage.home import Home
from daybreak.storage.locations import SCHEME, Locations

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

log = logging.getLogger(__name__)

EXPERIMENT = "daybreak"
# Variables of a job, by which one on a machine without the home finds the run of its night.
OF_EXPERIMENT, OF_HOME = "DAYBREAK_EXPERIMENT", "DAYBREAK_HOME_TOKEN"
NUM_TRIES = 5
FIRST_WAIT_S = 0.5  # doubled after each try
QUICK_S = 3.0  # within which a server answers a quick look
_TAG = """
select alias.version, tag.value from registered_model_aliases alias left join model_version_tags tag
on tag.name = alias.name and tag.version = alias.version and tag.key = 'ledger'
where alias.name = :name and alias.alias = 'champion'
"""
SQLITE = b"SQLite format 3\0"  # begins each of its files
_DEFAULTS = {  # MLflow's own retries would take minutes; ours follow
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}


def tracking_uri(home: Home) -> str:
    """Returns the URI of the tracking store and the registry."""
    if given := os.environ.get("MLFLOW_TRACKING_URI"):
        return given
    if named := _registered(home).tracking_uri:
        return named
    member = checkout.membership(home.folder)
    if member and not member.own_registry:
        return tracking_uri(Home(Path(member.lead)))
    return f"sqlite:///{home.folder / 'var' / 'mlflow.db'}"


def _registered(home: Home) -> RegisterParams:
    """Returns the section `register` of the home; the default in a folder without a params.yaml."""
    if not (home.folder / params.FILE).exists():
        return RegisterParams()
    return home.last_params(home.folder).register_


def team_tags(home: Home) -> dict[str, str]:
    """Returns the tags that a team wants on each run and version."""
    return _registered(home).tags


def locations(home: Home) -> Locations:
    """Returns the locations of artifacts that are this home's own."""
    named = (os.environ.get("MLFLOW_ARTIFACTS_DESTINATION", ""), *_places(home))
    return Locations(
        server=tracking_uri(home), roots=(str(home.var / "artifacts"), *(root for root in named if root))
    )


def _places(home: Home) -> tuple[str, ...]:
    """Returns `register.artifacts` of a home; of a member also those of the lead whose MLflow it shares."""
    registered, member = _registered(home), checkout.membership(home.folder)
    if registered.tracking_uri or member is None or member.own_registry:
        return registered.artifacts
    return (*registered.artifacts, *_places(Home(Path(member.lead))))


def experiment_name(home: Home) -> str:
    """Returns the experiment of the nights of this home."""
    if given := os.environ.get(OF_EXPERIMENT):
        return given
    if named := _registered(home).experiment:
        return named
    member = checkout.membership(home.folder)
    return member.model if member and not member.own_registry else EXPERIMENT


def environment(home: Home) -> dict[str, str]:
    """Returns the variables of a job whose live metrics go to the run of its night."""
    given = ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID")
    return {
        "MLFLOW_TRACKING_URI": tracking_uri(home),
        OF_EXPERIMENT: experiment_name(home),
        OF_HOME: _token(home),
        **{name: os.environ[name] for name in given if name in os.environ},
    }


def _token(home: Home) -> str:
    return os.environ.get(OF_HOME) or address.look(home.folder).token


@contextlib.contextmanager
def session(home: Home) -> Iterator["MlflowClient"]:
    """Yields a client once MLflow answers; raises JobError if MLflow does not answer or stops answering.

    Other errors meanwhile, such as a full disk, are raised unchanged.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    import mlflow

    from daybreak.storage import artifacts

    uri = tracking_uri(home)
    expect_file(home)
    artifacts.register()
    given = "MLFLOW_TRACKING_URI" in os.environ
    mlflow.set_tracking_uri(uri)  # artifacts are resolved by the global URI
    if not given:  # MLflow sets it too, and the next home of this process would be taken for this one
        os.environ.pop("MLFLOW_TRACKING_URI", None)
    client = _answering(uri)
    try:
        yield client
    except _faults() as error:
        if is_refused(error):
            raise _refusal(uri) from error
        if _is_of_files(error) or not _is_unreachable(error):
            raise
        raise _no_answer(uri, error, "in the middle of the stage") from error


def create(home: Home) -> str:
    """Creates the SQLite file of MLflow where that is missing; returns what `reachable` does."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    with contextlib.suppress(OSError):  # the session reports it
        _make_file(tracking_uri(home))
    return reachable(home)


def is_missing(home: Home) -> bool:
    """Returns whether MLflow is to be in a SQLite file that does not exist."""
    path = _file(tracking_uri(home))
    return path is not None and not path.exists()


def expect_file(home: Home) -> None:
    """Raises JobError where MLflow is to be in a SQLite file that is missing, or of another kind."""
    path = _file(tracking_uri(home))
    if path is None or path.is_dir():  # SQLite says by itself that it cannot open a folder
        return
    if not path.exists():
        raise JobError(
            f"{path}, the database of MLflow, is missing; bring it back from a backup (make setup, or the "
            f"first night, creates one in a new home)"
        )
    with path.open("rb") as file:
        if (begins := file.read(len(SQLITE))) != SQLITE:
            raise JobError(
                f"{path}, the database of MLflow, is not a SQLite file ({path.stat().st_size:,} bytes that "
                f"begin with {begins!r}); bring it back from a backup"
            )


def champion_tag(home: Home, name: str) -> tuple[int, str] | None:
    """Returns the version that alias `champion` of the model is on, and its tag `ledger`, "" without one.

    A quick look without importing MLflow: into the SQLite file, or by one request to the server. None where
    there is no such alias, or no answer at once.
    """
    uri = tracking_uri(home)
    # The last three are of an answer that is not MLflow's, as a login page's.
    no_answer = (OSError, ValueError, sqlite3.Error, configparser.Error, KeyError, TypeError, AttributeError)
    with contextlib.suppress(*no_answer):
        if path := _file(uri):
            return _tag_in_file(path, name)
        if uri.startswith(("http:", "https:")):
            return _tag_at_server(uri, name)
    return None


def _tag_in_file(path: Path, name: str) -> tuple[int, str] | None:
    with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as database:
        row = database.execute(_TAG, {"name": name}).fetchone()
    return (int(row[0]), str(row[1] or "")) if row else None


def _tag_at_server(uri: str, name: str) -> tuple[int, str] | None:
    import requests

    account = _account()
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    asked = {"name": name, "alias": "champion"}
    answer = requests.get(
        f"{uri.rstrip('/')}/api/2.0/mlflow/registered-models/alias",
        params=asked,
        headers={"Authorization": f"Bearer {token}"} if token and not all(account) else {},
        timeout=QUICK_S,
        auth=account if all(account) else None,
        verify=os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH")
        or os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() not in ("true", "1"),
        cert=os.environ.get("MLFLOW_TRACKING_CLIENT_CERT_PATH"),
    )
    if not answer.ok:
        return None
    version = answer.json()["model_version"]
    tags = {tag["key"]: tag["value"] for tag in version.get("tags", [])}
    return int(version["version"]), str(tags.get("ledger", ""))


def _account() -> tuple[str, str]:
    """Returns name and password as MLflow's clients find them: in the environment, or in a file of theirs."""
    file = configparser.ConfigParser()
    file.read(os.path.expanduser("~/.mlflow/credentials"))  # noqa: PTH111 - a user without a home is no error
    name, password = (
        os.environ.get(key.upper()) or file.get("mlflow", key, fallback="") or ""
        for key in ("mlflow_tracking_username", "mlflow_tracking_password")
    )
    return name, password


def is_file(home: Home) -> bool:
    """Returns whether MLflow is in a SQLite file, with neither a server nor accounts."""
    return _file(tracking_uri(home)) is not None


def reachable(home: Home) -> str:
    """Returns a sentence that says where MLflow answers; JobError if it does not."""
    with session(home) as client:
        return f"{without_password(client.tracking_uri)} answers"


def run_of(home: Home, night_id: str) -> str:
    """Returns the MLflow run of the night, for its metrics, created if it does not exist yet."""
    with session(home) as client:
        return str(_run(home, client, night_id).info.run_id)


def find_or_make_run(home: Home, client: "MlflowClient", night_id: str) -> str:
    """Returns the run of the night as `run_of` does; ReleaseError where its artifacts are not the home's."""
    return own_run(home, client, str(_run(home, client, night_id).info.run_id))


def own_run(home: Home, client: "MlflowClient", run_id: str) -> str:
    """Returns a run to whose artifacts something is to be written; ReleaseError where they are elsewhere."""
    locations(home).expect_own(str(client.get_run(run_id).info.artifact_uri))
    return run_id


def _run(home: Home, client: "MlflowClient", night_id: str) -> "Run":
    """Returns the run of the night; of two created at once, all get the older."""
    experiment = find_or_make_experiment(home, client)
    own = {"night": night_id, "home": _token(home)}
    runs = _runs(client, experiment, own)
    if not runs:
        tags = {**team_tags(home), **own, "mlflow.runName": night_id}
        client.create_run(experiment, tags=tags, run_name=night_id)
        runs = _runs(client, experiment, own)
    return runs[0]


def _runs(client: "MlflowClient", experiment: str, tags: Mapping[str, str]) -> "list[Run]":
    order = ["attributes.start_time ASC", "attributes.run_id ASC"]
    query = " and ".join(f"tags.{key} = '{value}'" for key, value in tags.items())
    return list(client.search_runs([experiment], query, order_by=order, max_results=10))


def find_or_make_experiment(home: Home, client: "MlflowClient") -> str:
    """Returns the experiment of the nights of this home, created if it does not exist yet."""
    from mlflow.exceptions import MlflowException

    experiment = active_experiment(home, client)
    if experiment is None:
        try:
            return make_experiment(home, client, experiment_name(home))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            experiment = active_experiment(home, client)
    assert experiment is not None
    return str(experiment.experiment_id)


def active_experiment(home: Home, client: "MlflowClient") -> "Experiment | None":
    """Returns the experiment of the nights of this home, None before there is one; JobError if deleted."""
    name = experiment_name(home)
    experiment = client.get_experiment_by_name(name)
    if experiment and experiment.lifecycle_stage != "active":
        raise JobError(
            f"the experiment {name} of MLflow at {without_password(client.tracking_uri)} is deleted; restore "
            f"it there, or name another as register.experiment"
        )
    return experiment


def make_experiment(home: Home, client: "MlflowClient", name: str) -> str:
    """Creates an experiment whose artifacts lie with the home's, and returns its number."""
    kind = {"mlflow.experimentKind": "custom_model_development"}  # else its pages are of prompts
    return str(client.create_experiment(name, artifact_location=_artifacts(home), tags=kind))


def _artifacts(home: Home) -> str | None:
    """Returns where the artifacts are, for MLflow to keep; None for a server, which has its own setting."""
    uri = tracking_uri(home)
    if uri.startswith(("http:", "https:")):
        return None
    if elsewhere := os.environ.get("MLFLOW_ARTIFACTS_DESTINATION"):
        return elsewhere
    if _file(uri):
        return f"{SCHEME}:/"
    return (home.var / "artifacts").as_uri()


def _answering(uri: str) -> "MlflowClient":
    from mlflow import MlflowClient
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

    attempts = Retrying(
        retry=retry_if_exception(_is_unreachable),
        stop=stop_after_attempt(NUM_TRIES),
        wait=wait_exponential(multiplier=FIRST_WAIT_S),
        before_sleep=lambda state: log.warning(
            "MLflow at %s does not answer; retrying", without_password(uri)
        ),
        reraise=True,
    )

    def ask() -> "MlflowClient":
        _expect_to_open(uri)
        client = MlflowClient(uri)
        client.search_experiments(max_results=1)
        return client

    try:
        return attempts(ask)
    except _faults() as error:
        if is_refused(error):
            raise _refusal(uri) from error
        if not _is_unreachable(error):
            raise
        raise _no_answer(uri, error, f"after {NUM_TRIES} tries") from error


def _file(uri: str) -> Path | None:
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def _expect_to_open(uri: str) -> None:
    """Raises OSError if the file cannot be opened, which MLflow would only report after two minutes.

    Raises JobError, as no retry helps, where this user may not write to it. On a disk that is mounted
    read-only, to be read is enough: a router writes nothing there.
    """
    path = _file(uri)
    if path is None:
        return
    try:
        path.open("r+b").close()
    except PermissionError as error:
        raise JobError(sentence(error)) from error
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        path.open("rb").close()


def _make_file(uri: str) -> None:
    """Creates the SQLite file whole or not at all, since MLflow cannot complete a file that is half made."""
    path = _file(uri)
    if path is None or path.exists():
        return
    from mlflow import MlflowClient

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".mlflow-") as folder:
        fresh = Path(folder) / path.name
        MlflowClient(f"sqlite:///{fresh}").search_experiments(max_results=1)
        with contextlib.suppress(FileExistsError):  # another process was faster
            path.hardlink_to(fresh)


@functools.cache
def _faults() -> tuple[type[BaseException], ...]:
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import DatabaseError

    return MlflowException, DatabaseError, OSError


def _is_unreachable(error: Any) -> bool:
    """Whether the connection failed, rather than the request."""
    if not isinstance(error, _faults()) or is_refused(error):
        return False
    message = str(error)
    refused = getattr(error, "error_code", "") == "TEMPORARILY_UNAVAILABLE" or "API request to" in message
    is_request = hasattr(error, "error_code")
    return refused if is_request else True


def is_of_server(error: BaseException) -> bool:
    """Returns whether the server did not answer MLflow's client, or refuses the account."""
    import requests
    from mlflow.exceptions import MlflowException

    if isinstance(error, requests.HTTPError):  # of a server that keeps artifacts
        return is_refused(error)
    return isinstance(error, MlflowException) and (_is_unreachable(error) or is_refused(error))


def _is_of_files(error: BaseException) -> bool:
    """Whether it is the system's, but of no connection: MLflow's client opens none but by requests."""
    import requests

    return isinstance(error, OSError) and not isinstance(
        error, ConnectionError | TimeoutError | requests.RequestException
    )


def is_refused(error: BaseException) -> bool:
    """Whether MLflow has a login, and this account may not do that, or there is none."""
    if getattr(error, "error_code", "") == "PERMISSION_DENIED":
        return True
    return re.search("failed with error code 40[13]|40[13] Client Error", str(error)) is not None


def _refusal(uri: str) -> JobError:
    return JobError(
        f"MLflow at {without_password(uri)} has a login and refuses this account; "
        f"set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, to one that "
        f"may do this"
    )


def _no_answer(uri: str, error: BaseException, when: str) -> JobError:
    shown = uri.rpartition("@")[2]  # without the password
    message = " ".join(str(error).split()).replace(uri, shown)[:200]
    return JobError(
        f"MLflow at {shown} does not answer {when}: {message}; "
        f"start it (make up), or fix register.tracking_uri or MLFLOW_TRACKING_URI, then run the stage again"
    )
