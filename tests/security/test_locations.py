"""Whoever writes to MLflow sends nobody's account elsewhere, and has no other folder read or deleted."""

import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from daybreak.contract import records
from daybreak.contract.errors import ReleaseError
from daybreak.contract.record_types import Version
from daybreak.contract.sections import Params
from daybreak.extensions.care import repair
from daybreak.extensions.erasure import version_rows
from daybreak.registry import carried_code, team_model
from daybreak.report import publisher
from daybreak.rollout import prune, rot
from daybreak.storage import mlflow_client
from daybreak.storage.home import Home
from daybreak.storage.locations import Locations
from tests.toy.nights import files_of_version
from tests.toy.stages import Released

SERVER = "https://mlflow.example.org/team"
OF_SERVER = Locations(server=SERVER, roots=("/home/ann/var/artifacts", "s3://team/mlflow"))
OF_FILE = Locations(server="sqlite:////home/ann/var/mlflow.db", roots=("file:///mnt/artifacts",))
OWN = [
    (OF_SERVER, "mlflow-artifacts:/4/run/artifacts/model"),
    (OF_SERVER, "mlflow-artifacts://mlflow.example.org/4/run/artifacts/model"),
    (OF_SERVER, "mlflow-artifacts://MLflow.Example.org:443/4/run/artifacts/model"),
    (Locations(server="https://mlflow.example.org:443", roots=()), "mlflow-artifacts://mlflow.example.org/4"),
    (OF_SERVER, f"{SERVER}/api/2.0/mlflow-artifacts/artifacts/4/run/artifacts/model"),
    (OF_SERVER, "https://mlflow.example.org:443/team/api/2.0/mlflow-artifacts/artifacts/4"),
    (OF_SERVER, "s3://team/mlflow/4/run/artifacts/model"),
    (OF_SERVER, "/home/ann/var/artifacts/4"),
    (OF_FILE, "mlflow-artifacts:/4/run/artifacts/model"),
    (OF_FILE, "file:///home/ann/var/artifacts/4%20%23"),
    (OF_FILE, "/mnt/artifacts/4"),
]
FOREIGN = [
    (OF_SERVER, "mlflow-artifacts://evil.example/4/run"),
    (OF_SERVER, "mlflow-artifacts://mlflow.example.org@evil.example/4"),
    (OF_SERVER, "mlflow-artifacts://mlflow.example.org:8080/4"),
    (OF_SERVER, "mlflow-artifacts://mlflow.example.org:80/4"),
    (OF_SERVER, "mlflow-artifacts://mlflow.example.org:x/4"),
    (OF_SERVER, "mlflow-artifacts://ann@mlflow.example.org/4"),
    (OF_SERVER, "mlflow-artifacts:/4/../5"),
    (OF_SERVER, "mlflow-artifacts:/4/%2e%2e/5"),
    (OF_SERVER, "mlflow-artifacts:/4/%252e%252e/5"),
    (OF_SERVER, "mlflow-artifacts:/4?x=1"),
    (OF_SERVER, "https://evil.example/team/api/2.0/mlflow-artifacts/artifacts/4"),
    (OF_SERVER, "http://mlflow.example.org/team/api/2.0/mlflow-artifacts/artifacts/4"),
    (OF_SERVER, "https://mlflow.example.org/elsewhere"),
    (OF_SERVER, "https://mlflow.example.org@evil.example/team/api/2.0/mlflow-artifacts/artifacts/4"),
    (OF_SERVER, "s3://team/mlflow-of-others/4"),
    (OF_SERVER, "s3://team/mlflow/../4"),
    (OF_SERVER, "s3://evil/mlflow/4"),
    (OF_SERVER, "gs://team/mlflow/4"),
    (OF_SERVER, "sftp://evil.example/mlflow"),
    (OF_SERVER, "models:/m-1"),
    (OF_SERVER, "runs:/1/model"),
    (OF_SERVER, "/home/ann/var/artifacts/../../.ssh"),
    (OF_SERVER, "file:///home/ann/.ssh"),
    (OF_SERVER, ""),
    (OF_FILE, "mlflow-artifacts://evil.example/4"),
    (OF_FILE, "mlflow-artifacts:/../mlflow.db"),
    (OF_FILE, "mlflow-artifacts:/%2e%2e/mlflow.db"),
    (OF_FILE, "file://evil.example/mnt/artifacts/4"),
    (OF_FILE, "/home/ann/var/artifacts-of-others"),
    (OF_FILE, "http://127.0.0.1/api/2.0/mlflow-artifacts/artifacts/4"),
]


@pytest.mark.parametrize(("known", "location"), OWN)
def test_a_place_of_the_server_of_the_home_or_that_a_person_named_is_used(
    known: Locations, location: str
) -> None:
    assert known.expect_own(location) == location


@pytest.mark.parametrize(("known", "location"), FOREIGN)
def test_any_other_place_is_refused_in_a_sentence(known: Locations, location: str) -> None:
    with pytest.raises(ReleaseError, match=r"which is at none of the places of this home \(.*register.artif"):
        known.expect_own(location)


def test_a_link_out_of_the_folder_of_artifacts_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / "4").symlink_to(tmp_path)
    with pytest.raises(ReleaseError, match="at none of the places"):
        Locations(server=SERVER, roots=(str(tmp_path / "artifacts"),)).expect_own(
            str(tmp_path / "artifacts" / "4")
        )


class Listener:
    """A port on loopback, and whether anybody connected to it."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"

    def was_asked(self) -> bool:
        try:
            self.socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """A listener that clients of S3 take for their service."""
    listener = Listener()
    with closing(listener.socket):
        for name in ("AWS_ENDPOINT_URL", "MLFLOW_S3_ENDPOINT_URL"):
            monkeypatch.setenv(name, f"http://{listener.address}")
        for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
            monkeypatch.setenv(name, "canary")
        yield listener


def point(home: Path, number: int, location: str) -> None:
    """Writes a location of a version to MLflow's database."""
    with closing(sqlite3.connect(home / "var" / "mlflow.db")) as database, database:
        database.execute(
            "UPDATE model_versions SET source = ?, storage_location = ? WHERE version = ?",
            (location, location, number),
        )


def said_by(use: Callable[[Any], object], client: Any) -> str:
    """What is said by who refuses, or goes on to the next version."""
    try:
        return str(use(client))
    except ReleaseError as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")
def test_no_stage_asks_a_place_that_only_mlflow_names(
    home: Path, released: Released, settings: Params, listener: Listener, tmp_path: Path
) -> None:
    released(0.2, 1.0)
    known = [records.read(Version, night / records.RUN) for night in sorted((home / "nights").iterdir())]
    victim = tmp_path / "victim"
    (victim / known[0].run_id / "artifacts" / "model").mkdir(parents=True)
    (victim / known[0].run_id / "artifacts" / "model" / "thesis").write_text("of years")
    other = files_of_version(home, 2).relative_to(home / "var" / "artifacts")
    run = f"{known[0].run_id}/artifacts/model"
    locations = [
        f"mlflow-artifacts://{listener.address}/{run}",
        f"http://{listener.address}/api/2.0/mlflow-artifacts/artifacts/{run}",
        f"https://{listener.address}/{run}",
        f"s3://bucket/{run}",
        f"sftp://{listener.address}/{run}",
        f"{victim.as_uri()}/{run}",
        f"mlflow-artifacts:/../../../../victim/{run}",
    ]
    uses: list[Callable[[Any], object]] = [
        lambda _: carried_code.fetch(Home.here(), "models:/daybreak/1", known[0], into=tmp_path / "into"),
        lambda _: prune._models(Home.here(), "daybreak", known[:1], dry_run=False),
        lambda client: list(version_rows.changed(Home.here(), client, "daybreak", column="c", unit="u")),
        lambda _: list(repair._versions(Home.here(), settings)),
    ]
    with mlflow_client.session(Home.here()) as client:
        for location in locations:
            point(home, 1, location)
            for use in uses:
                assert "at none of the places of this home" in said_by(use, client)
            (damaged,) = rot.in_versions(Home.here(), settings)
            assert "at none of the places of this home" in damaged.where
            if "artifacts:/" in location or location.startswith("http"):  # a login, or a file of the home
                with pytest.raises(ReleaseError, match=r"which is not at sqlite:///|at none of|is not to be"):
                    team_model.find(Home.here(), "models:/daybreak/1", ())
        point(home, 1, f"mlflow-artifacts:/{other}")  # of the champion: its digest is another
        for use in uses[1:]:
            assert f"is not of the run {known[0].run_id} that the ledger" in said_by(use, client)
    assert not listener.was_asked()
    assert (victim / known[0].run_id / "artifacts" / "model" / "thesis").exists()
    assert (files_of_version(home, 2) / "MLmodel").exists()


@pytest.mark.slow
def test_a_night_writes_to_no_place_that_only_an_experiment_names(home: Path, listener: Listener) -> None:
    with mlflow_client.session(Home.here()) as client:
        client.create_experiment("daybreak", f"mlflow-artifacts://{listener.address}/")
        with pytest.raises(ReleaseError, match="at none of the places of this home"):
            mlflow_client.find_or_make_run(Home.here(), client, "2025-01-10")
    assert not listener.was_asked()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")
def test_a_report_goes_to_no_place_that_a_run_was_moved_to(
    home: Path, released: Released, listener: Listener
) -> None:
    released(1.0)
    with closing(sqlite3.connect(home / "var" / "mlflow.db")) as database, database:
        database.execute("UPDATE runs SET artifact_uri = ?", (f"mlflow-artifacts://{listener.address}/1",))
    with pytest.raises(ReleaseError, match="at none of the places of this home"):
        publisher._show_report(Home.here(), Path())
    with pytest.raises(ReleaseError, match="at none of the places of this home"):
        publisher._show_release(Home.here(), Path())
    assert not listener.was_asked()
