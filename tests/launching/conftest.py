"""A night to train in, by nobody's MLflow."""

from pathlib import Path

import pytest

from tests.training import nights


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    nights.lay_out(tmp_path)
