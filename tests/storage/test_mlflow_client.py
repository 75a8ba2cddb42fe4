"""The store that MLflow keeps in a file is there as a whole or not at all."""

import base64
import json
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
from tests.bad_disks import read_only
from tests.loopback import Quiet, make_certificate, served

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


@pytest.mark.slow
def test_a_store_that_may_not_be_written_to_is_found_and_one_on_a_read_only_disk_is_read(
    tmp_path: Path,
) -> None:
    store = tmp_path / "mlflow.db"
    store.touch(mode=0o444)
    # Without capabilities root, too, may only do what the mode of a file says.
    words = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    code = f"from daybreak.storage import mlflow_client; mlflow_client._expect_to_open('sqlite:///{store}')"
    words += [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    refused = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert f"JobError: user {os.geteuid()} may not write {store}, " in refused.stderr
    store.chmod(0o644)
    with read_only(tmp_path):
        mlflow_client._expect_to_open(f"sqlite:///{store}")


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
@pytest.mark.usefixtures("repository")
def test_an_experiment_that_was_deleted_is_one_sentence() -> None:
    run = mlflow_client.run_of(Home.here(), "2025-01-10")
    with mlflow_client.session(Home.here()) as client:
        client.delete_experiment(client.get_run(run).info.experiment_id)
    with pytest.raises(JobError, match=r"the experiment daybreak of MLflow at sqlite.* is deleted; restore"):
        mlflow_client.run_of(Home.here(), "2025-01-10")


class Private(Quiet):
    """Answers those who log in as the file of MLflow's credentials says."""

    def do_GET(self) -> None:
        known = self.headers["Authorization"] == "Basic " + base64.b64encode(b"me:50% secret").decode()
        self.send_response(200 if known else 401)
        self.end_headers()
        version = {"version": "7", "tags": [{"key": "ledger", "value": "c0ffee"}]}
        self.wfile.write(json.dumps({"model_version": version}).encode())


def test_the_quick_look_trusts_and_logs_in_as_mlflow_s_clients_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TOKEN", "USERNAME", "PASSWORD", "SERVER_CERT_PATH", "INSECURE_TLS"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".mlflow").mkdir()
    (tmp_path / ".mlflow" / "credentials").write_text(
        "[mlflow]\nmlflow_tracking_username = me\nmlflow_tracking_password = 50%% secret\n"
    )
    certificate = make_certificate(tmp_path)
    with served(Private, certificate=certificate) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"https://{address}")
        assert mlflow_client.champion_tag(Home.here(), "daybreak") is None
        monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(certificate))
        assert mlflow_client.champion_tag(Home.here(), "daybreak") == (7, "c0ffee")


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
