"""A home with promoted versions and a router in front of them, shared by a module's tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import make_repository
from tests.release.folders import PARAMS
from tests.serving.homes import add_version
from tests.serving.running import Running, running


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Path]:
    """A home whose version 1 was replaced by 2, which serves; 3 is registered."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_TRACKING_URI", "DAYBREAK_LOG", "DAYBREAK_TOKEN"):
            patch.delenv(name, raising=False)
        found = make_repository(tmp_path_factory.mktemp("serving") / "home", store=empty_store)
        patch.setenv("PIPELINE_HOME", str(found))
        patch.chdir(found)
        (found / "params.yaml").write_text(PARAMS)
        for number, weight in enumerate((1.0, 2.0, 3.0)):
            add_version(found, number, weight=weight, promoted=number < 2)
        yield found
        os.chdir(found)


@pytest.fixture(scope="module")
def router(home: Path) -> Iterator[Running]:
    """A router that serves version 2."""
    with running(home) as found:
        yield found
