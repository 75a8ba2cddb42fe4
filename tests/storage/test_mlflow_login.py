"""MLflow behind its login, as compose.yaml starts it: who may write, who may read, who may do nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from mlflow.exceptions import MlflowException

from daybreak.contract.errors import JobError
from daybreak.storage import mlflow_client, mlflow_reader
from daybreak.storage.home import Home
from tests.storage.mlflow_servers import log_in, mlflow_served
from tests.test_compose import COMPOSE

ADMIN = ("admin", "-".join(("canary", "5150", "registry")))
READER = "only to read it"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an MLflow with the login of compose.yaml."""
    pytest.importorskip("flask_wtf", reason="MLflow's login needs Daybreak's extra `login`")
    settings = COMPOSE["configs"]["mlflow_login"]["content"]
    with mlflow_served(tmp_path_factory.mktemp("registry"), login=settings, admin=ADMIN) as url:
        yield url


@pytest.mark.slow
def test_who_holds_the_password_writes_and_a_router_only_reads(
    registry: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry)
    search = f"{registry}/api/2.0/mlflow/experiments/search?max_results=1"
    assert requests.get(search, timeout=300).status_code == 401
    log_in(monkeypatch, registry, ADMIN[0], "password1234")
    with pytest.raises(
        JobError, match="has a login and refuses this account; set MLFLOW_TRACKING_U"
    ) as refused:
        mlflow_client.run_of(Home.here(), "2026-11-24")
    assert "password1234" not in str(refused.value)

    log_in(monkeypatch, registry, *ADMIN)
    run = mlflow_client.run_of(Home.here(), "2026-11-24")
    (tmp_path / "facts.json").write_text("{}")
    with mlflow_client.session(Home.here()) as client:
        client.log_artifact(run, str(tmp_path / "facts.json"))
        client.create_registered_model("daybreak")
        client.create_model_version("daybreak", f"runs:/{run}/facts.json", run)
        assert ADMIN[1] not in str(client.get_run(run).to_dictionary())
        assert mlflow_client.champion_tag(Home.here(), "daybreak") is None
        client.set_registered_model_alias("daybreak", "champion", "1")
        assert mlflow_client.champion_tag(Home.here(), "daybreak") == (1, "")
        client.set_model_version_tag("daybreak", "1", "ledger", "c0ffee")
        assert mlflow_client.champion_tag(Home.here(), "daybreak") == (1, "c0ffee")

    for password in ("another one before", READER):  # it is there the second time
        mlflow_reader.make_reader(registry, admin=ADMIN, password=password)
    log_in(monkeypatch, registry, mlflow_reader.NAME, READER)
    with mlflow_client.session(Home.here()) as client:
        assert client.get_model_version("daybreak", "1").run_id == run
        assert Path(client.download_artifacts(run, "facts.json", str(tmp_path))).read_text() == "{}"
        for write in (
            lambda: client.set_registered_model_alias("daybreak", "champion", "1"),
            lambda: client.set_model_version_tag("daybreak", "1", "model_digest", "forged"),
            lambda: client.log_artifact(run, str(tmp_path / "facts.json")),
            lambda: client.set_tag(run, "night", "another"),
        ):
            with pytest.raises((MlflowException, requests.HTTPError), match=r"Permission denied|403"):
                write()
    with pytest.raises(JobError, match="refuses the account reader"):
        mlflow_reader.make_reader(registry, admin=(mlflow_reader.NAME, READER), password="mine alone now")
    said = "".join(capfd.readouterr()) + caplog.text
    assert ADMIN[1] not in said
    assert READER not in said
