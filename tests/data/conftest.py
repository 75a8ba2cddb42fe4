"""A home for what brings in rows: erasures are looked up there."""

import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without nights, which `tmp_path` is."""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
