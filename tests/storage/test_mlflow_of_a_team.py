"""Nights on an MLflow server that a team already has, of this version or an older one."""

import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from daybreak import check
from daybreak.contract import params
from daybreak.contract.errors import JobError, ParamsError
from daybreak.contract.sections import RegisterParams
from daybreak.registry import aliases
from daybreak.rollout import rollback
from daybreak.storage import mlflow_client, mlflow_writes
from daybreak.storage.home import Home
from tests.loopback import Quiet, served
from tests.package_registry import uv
from tests.storage.mlflow_servers import LOGIN, log_in, mlflow_served
from tests.toy import nights
from tests.toy.stages import Release_, home, release

__all__ = ["home", "release"]

ADMIN = ("admin", "the administrator")
GUEST = ("guest", "may only read it")
SERVERS = {"3.0.1": "2025-06-30", "3.8.1": "2026-01-10"}  # until when packages beside it are of
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class TeamServer:
    """A server of MLflow with a login, and who may write there."""

    url: str
    version: str
    artifacts: str

    def let_read(self, name: str, password: str) -> None:
        """Makes an account that may read alone."""
        made = requests.post(
            f"{self.url}/api/2.0/mlflow/users/create",
            json={"username": name, "password": password},
            auth=ADMIN,
            timeout=300,
        )
        made.raise_for_status()


def installed(version: str, folder: Path) -> str:
    """The Python of a new environment with a version of MLflow, and the packages of its time."""
    until = f"--exclude-newer={SERVERS[version]}"
    into = f"--python={folder}/bin/python"
    uv("venv", "--quiet", "--python=3.11", str(folder))
    uv("pip", "install", "--quiet", into, until, f"mlflow=={version}", "flask-wtf")
    return str(folder / "bin/python")


ROWS = [
    pytest.param(("", False), id="3.17.2 served"),
    pytest.param(("", True), id="3.17.2 direct", marks=pytest.mark.matrix),
    *(
        pytest.param((version, direct), id=f"{version} {way}", marks=pytest.mark.matrix)
        for version in SERVERS
        for way, direct in (("served", False), ("direct", True))
    ),
]


@pytest.fixture(scope="module", params=ROWS)
def team(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamServer]:
    """An MLflow with a login: of this environment or of an older version, with artifacts served or direct."""
    pytest.importorskip("flask_wtf", reason="MLflow's login needs Daybreak's extra `login`")
    version, direct = request.param
    folder = tmp_path_factory.mktemp("team")
    python = installed(version, folder / "venv") if version else sys.executable
    with mlflow_served(folder, login=LOGIN, admin=ADMIN, direct=direct, python=python) as url:
        artifacts = (folder / "artifacts").as_uri() if direct else "mlflow-artifacts:/"
        yield TeamServer(url, version or "3.17.2", artifacts)


@pytest.fixture
def named(home: Path, team: TeamServer, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home whose params name the team's server, and experiment, model and tags as the team has them."""
    log_in(monkeypatch, team.url, *ADMIN)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    name = f"churn-{home.parent.name}"
    register = f"tracking_uri: {team.url}, name: {name}, experiment: Of {name}, tags: {{team: crm}}"
    if not team.artifacts.startswith("mlflow-artifacts:"):
        register += f", artifacts: ['{team.artifacts}']"
    monkeypatch.setattr(nights, "PARAMS", f"{nights.PARAMS}register: {{{register}}}\n")
    (home / "params.yaml").write_text(nights.PARAMS)
    return Home(home)


def everything(client: Any) -> tuple[Any, ...]:
    """What a server has of models, experiments and runs that are not in its trash."""
    experiments = client.search_experiments()
    runs = client.search_runs([one.experiment_id for one in experiments])
    files = [
        (run.info.run_id, *(file.path for file in client.list_artifacts(run.info.run_id))) for run in runs
    ]
    models = [(one.name, one.tags, one.aliases) for one in client.search_registered_models()]
    return sorted(one.name for one in experiments), [run.data.tags for run in runs], files, models


def test_nights_release_and_roll_back_and_check_takes_back_what_it_tries_to_write(
    named: Home, team: TeamServer, release: Release_, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = named.params.register_.name
    with mlflow_client.session(named) as client:
        before = everything(client)
        found = check._registry(named, named.params)
        said = (
            f"MLflow {team.version} at {team.url} answers; the first night creates its experiment Of {name}"
        )
        assert found.text.startswith(said)
        assert everything(client) == before

        for number in range(2):
            release(number, 1.0)
        os.chdir(named.folder)
        assert rollback.rollback(named, named.params.register_, reason="a test").version == 1
        assert aliases.alias(client, name) == 1
        version = client.get_model_version(name, "2")
        assert version.tags["team"] == "crm"
        run = client.get_run(version.run_id)
        assert (run.data.tags["team"], run.data.tags["night"]) == ("crm", "2025-01-11")
        assert run.info.artifact_uri.startswith(team.artifacts)
        assert mlflow_client.champion_tag(named, name)

        before = everything(client)
        found = check._registry(named, named.params)
        assert f"its experiment Of {name} keeps artifacts in {team.artifacts}" in found.text
        assert everything(client) == before
    assert not (named.folder / "var" / "artifacts").exists()

    team.let_read(*GUEST)
    log_in(monkeypatch, "", *GUEST)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    found = check._registry(named, named.params)
    refusal = f"this account may read MLflow at {team.url}, but not write the model {name}; give it the per"
    assert (found.ok, found.text.partition("mission")[0]) == (False, refusal)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "not that one")
    assert "has a login and refuses this account" in check._registry(named, named.params).text


def test_check_names_a_place_of_artifacts_that_no_person_named(named: Home) -> None:
    name = named.params.register_.experiment
    with mlflow_client.session(named) as client:
        client.create_experiment(name, artifact_location="s3://elsewhere/mlflow")
    found = check._registry(named, named.params)
    assert not found.ok
    assert found.text.startswith("MLflow names s3://elsewhere/mlflow/")
    assert "which is at none of the places of this home" in found.text
    assert found.text.endswith("or name the place, if it is yours, in register.artifacts")


def test_the_environment_wins_over_params_and_params_take_no_password(home: Path) -> None:
    with (home / "params.yaml").open("a") as file:
        file.write("register: {tracking_uri: http://127.0.0.1:1}")
    assert mlflow_client.tracking_uri(Home(home)) == "http://127.0.0.1:1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:2")
        assert mlflow_client.tracking_uri(Home(home)) == "http://127.0.0.1:2"
    with pytest.raises(ParamsError, match=r"register.tracking_uri is 'http://me:secret@host', but"):
        params.override(home, ["register.tracking_uri=http://me:secret@host"])
    with pytest.raises(ParamsError, match=r"tracking_uri has a password or token, and params.yaml is in"):
        params.override(home, ["register.tracking_uri=https://host/?token=abc"])
    with pytest.raises(ParamsError, match=r"the tag ledger is Daybreak's or MLflow's own; choose another"):
        params.override(home, ["register.tags={ledger: x}"])


@given(st.text(st.sampled_from("aé1_-./: ?,\n"), max_size=4) | st.sampled_from(["a" * 250, "a" * 251]))
def test_a_tag_that_mlflow_refuses_is_refused_in_params(name: str) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.utils.validation import _validate_model_version_tag

    tag = functools.partial(RegisterParams, tags={name: "x"})
    try:
        _validate_model_version_tag(name, "x")
    except MlflowException:
        with pytest.raises(ValueError, match="MLflow takes no tag"):
            tag()
    else:
        assert name.endswith("\n") or tag().tags == {name: "x"}  # whose $ lets a line end


class OldServer(Quiet):
    """Answers as an MLflow of before registered models had aliases."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"2.2.2" if self.path == "/version" else b"{}")

    do_POST = do_GET


def test_a_server_that_is_too_old_is_one_sentence(home: Path) -> None:
    with served(OldServer) as address:
        with (home / "params.yaml").open("a") as file:
            file.write(f"register: {{tracking_uri: http://{address}}}")
        found = check._registry(Home(home), Home(home).params)
    assert found.text == (
        f"MLflow 2.2.2 at http://{address} answers, and the oldest with which nights ran is 3.0; update the "
        f"server"
    )


def test_check_reads_what_it_writes_as_the_files_of_a_version_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient
    from mlflow.store.artifact import artifact_repository_registry as known
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    folder = str(tmp_path / "artifacts")
    repositories = known._artifact_repository_registry._registry
    monkeypatch.setitem(repositories, "elsewhere", lambda uri, **_: LocalArtifactRepository(folder))
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow_writes._try_artifacts(client, "u", folder)
    with pytest.raises(
        JobError, match=r"what MLflow writes to elsewhere://x cannot be read from here .*; keep"
    ):
        mlflow_writes._try_artifacts(client, "u", "elsewhere://x")
    assert not [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]
