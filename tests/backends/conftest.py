"""A Vertex AI on loopback, made once; each test gets it empty."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.backends.fake_vertex import FakeVertex

ROOT = Path(__file__).parents[2]
# What stands in the environment of every container, as an image would have it.
IMAGE = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["FakeVertex"]:
    """The service, and a home of its own for the nights."""
    assert sys.platform == "linux"
    from tests.backends.fake_vertex import FakeVertex

    monkeypatch.setenv("GOOGLE_API_USE_CLIENT_CERTIFICATE", "false")
    monkeypatch.setenv("GOOGLE_API_USE_MTLS_ENDPOINT", "never")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("PIPELINE_HOME", str(tmp_path / "home"))
    with FakeVertex(image=IMAGE) as made:
        yield made
