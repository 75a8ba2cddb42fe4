"""Folders of nights to train in, by nobody's MLflow."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.backends.conftest import service
from tests.training import nights

__all__ = ["folder", "folder_in_memory", "service"]

MEMORY = Path("/dev/shm")  # thousands of small files, each brought to disk


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[None]:
    with nights.surroundings():
        nights.lay_out(tmp_path)
        yield


@pytest.fixture
def folder_in_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty night's folder, as the current one, for nights of the simulated cloud."""
    with TemporaryDirectory(dir=MEMORY if MEMORY.exists() else None) as folder:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
        Path("data/work/jobs").mkdir(parents=True)
        yield Path(folder)
