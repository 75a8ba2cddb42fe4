"""The store that MLflow keeps in a file is there as a whole or not at all."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from daybreak.contract.errors import JobError
from daybreak.storage import mlflow_client
from daybreak.storage.home import Home
from tests.loopback import Quiet, served

MAKE = [
    sys.executable,
    "-c",
    "from daybreak.storage import home, mlflow_client; print(mlflow_client.create(home.Home.here()))",
]


@pytest.mark.slow
def test_a_store_whose_making_was_killed_is_made_anew(tmp_path: Path) -> None:
    environment = {**os.environ, "DAYBREAK_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("MLFLOW_TRACKING_URI", None)
    store = tmp_path / "var" / "mlflow.db"
    first = subprocess.Popen(MAKE, env=environment, cwd=tmp_path)
    while not [path for path in tmp_path.glob("var/.mlflow-*/*.db") if path.stat().st_size]:
        assert first.poll() is None, "it ended before it was seen to work"
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not store.exists()
    again = subprocess.run(MAKE, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert again.stdout == f"sqlite:///{store} answers\n"


def test_a_store_behind_a_server_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mlflow_client._make_file("http://me:secret@127.0.0.1:9")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["removed", "emptied", "overwritten", "torn"])
def test_a_lost_database_is_one_sentence_and_is_not_created_again(repository: Path, lost: str) -> None:
    store = repository / "var" / "mlflow.db"
    content = store.read_bytes()
    store.unlink()
    if lost == "overwritten":
        store.write_bytes(b"no database at all" * 1000)
    elif lost == "torn":
        store.write_bytes(content[: len(content) // 2])
    elif lost == "emptied":
        store.touch()
    before = store.read_bytes() if store.exists() else None
    with (
        pytest.raises(JobError, match=r"mlflow[.]db.*; ") as refused,
        mlflow_client.session(Home.here()) as client,
    ):
        client.search_registered_models()
    assert "\n" not in str(refused.value)
    assert (store.read_bytes() if store.exists() else None) == before


@pytest.mark.slow
def test_a_file_of_ours_that_fails_is_not_taken_for_mlflow_and_a_lost_connection_is(repository: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"scores[.]npy"), mlflow_client.session(Home.here()):
        Path("scores.npy").read_bytes()
    stopped = pytest.raises(JobError, match="does not answer in the middle of the stage")
    for error in (ConnectionResetError("reset by peer"), requests.ReadTimeout("too slow")):
        with stopped, mlflow_client.session(Home.here()):
            raise error
    with stopped, mlflow_client.session(Home.here()) as client:
        (repository / "var" / "mlflow.db").write_bytes(b"overwritten" * 1000)
        client.search_registered_models()


class OtherJson(Quiet):
    """Answers with 200 and JSON that is not MLflow's, as a proxy with a login does."""

    body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)


@pytest.mark.parametrize(
    "body", [b'{"login": "please"}', b"[1]", b'{"model_version": "1"}', b"null", b"<html>"]
)
def test_a_server_that_answers_with_other_json_has_no_champion(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OtherJson, "body", body)
    with served(OtherJson) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{address}")
        assert mlflow_client.champion_tag(Home.here(), "daybreak") is None


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::sqlalchemy.exc.SADeprecationWarning"
)  # MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
@pytest.mark.usefixtures("repository")
def test_a_night_has_one_run_however_often_it_is_asked_for() -> None:
    assert (
        mlflow_client.run_of(Home.here(), "2025-01-10")
        == mlflow_client.run_of(Home.here(), "2025-01-10")
        != mlflow_client.run_of(Home.here(), "2025-01-11")
    )


@pytest.mark.slow
def test_an_mlflow_that_does_not_answer_is_one_sentence_without_the_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mlflow_client, "FIRST_WAIT_S", 0.01)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    with pytest.raises(JobError, match=r"MLflow at 127.0.0.1:9 does not answer after 5 tries: .*; start it"):
        mlflow_client.reachable(Home.here())
    with pytest.raises(JobError) as refusal:
        mlflow_client.run_of(Home.here(), "x")
    assert "secret" not in str(refusal.value)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::sqlalchemy.exc.SADeprecationWarning"
)  # MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
def test_a_database_that_cannot_be_opened_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mlflow_client, "FIRST_WAIT_S", 0.01)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}")
    with pytest.raises(JobError, match=r"does not answer after 5 tries: .*directory"):
        mlflow_client.reachable(Home.here())
