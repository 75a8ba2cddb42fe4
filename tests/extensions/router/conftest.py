"""A home with promoted versions and a router in front of them, shared by tests."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from mlflow import MlflowClient

from daybreak.storage import mlflow_client
from daybreak.storage.home import Home
from daybreak.storage.traffic_row import Traffic
from tests.conftest import make_repository
from tests.extensions.router.homes import add_version
from tests.extensions.router.running import Running, running, until
from tests.storage.conftest import log
from tests.toy.nights import PARAMS

__all__ = ["home", "home_of_all", "live_in", "log", "router"]


@pytest.fixture(scope="session")
def home_of_all(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A home whose version 1 was replaced by 2, which serves; 3 is registered."""
    made = make_repository(tmp_path_factory.mktemp("serving") / "home", store=empty_store)
    (made / "params.yaml").write_text(PARAMS)
    with pytest.MonkeyPatch.context() as patch:
        live_in(made, patch)
        for number, weight in enumerate((1.0, 2.0, 3.0)):
            add_version(made, number, weight=weight, promoted=number < 2)
    return made


@pytest.fixture
def home(home_of_all: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home, as the current folder."""
    live_in(home_of_all, monkeypatch)
    return home_of_all


@pytest.fixture(scope="module")
def router(home_of_all: Path) -> Iterator[Running]:
    """A router that serves version 2, as the ledger says, and not what somebody moved MLflow's alias to."""
    with pytest.MonkeyPatch.context() as patch:
        live_in(home_of_all, patch)
        client = MlflowClient(
            mlflow_client.tracking_uri(Home.here())
        )  # its default is where the test before was
        alias = partial(client.set_registered_model_alias, "daybreak", "champion")
        alias("1")
        with running(home_of_all, ready=False) as serving:
            serving.log.traffic.change(lambda now: Traffic(revision=now.revision))
            until(lambda: serving.get("health").status_code == 200)
            yield serving
            serving.log.traffic.change(lambda now: Traffic(revision=now.revision))  # others share it
        alias("2")


def live_in(home: Path, patch: pytest.MonkeyPatch) -> None:
    """Make it the home, and the current folder."""
    for name in ("DAYBREAK_LOG", "DAYBREAK_TOKEN"):
        patch.delenv(name, raising=False)
    patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'var' / 'mlflow.db'}")
    patch.setenv("DAYBREAK_HOME", str(home))
    patch.chdir(home)
