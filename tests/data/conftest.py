"""A home for what brings in rows, as erasures are looked up there; copies of nights that a module shares."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without nights, which `tmp_path` is."""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))


@pytest.fixture
def enter_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Path]:
    """Makes a copy of a folder the current folder, and returns the copy."""

    def enter(folder: Path) -> Path:
        copy = shutil.copytree(folder, tmp_path / "night")
        monkeypatch.chdir(copy)
        return copy

    return enter
