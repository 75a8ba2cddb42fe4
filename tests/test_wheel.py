"""What `pip install` of a wheel brings: the package, its tables, dags/ and the examples, and `daybreak`."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_wheel_carries_dags_examples_and_the_command(tmp_path: Path) -> None:
    for name in ("pipeline", "dags"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    code = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        (entry,) = (name for name in names if name.endswith("entry_points.txt"))
        assert "daybreak = daybreak.__main__:main" in packed.read(entry).decode()
    assert {
        "daybreak/dags/retrain.py",
        "daybreak/machines/machines.csv",
        "daybreak/report/page.html",
        "daybreak/extensions/pages/board.html",
        "daybreak/extensions/pages/board.js",
    } <= names
    for example in ("fraud", "demand", "language"):
        folder = f"daybreak/examples/{example}"
        assert {
            f"{folder}/{example}.py",
            f"{folder}/test_{example}.py",
            f"{folder}/params.yaml",
            f"{folder}/data/expectations.yaml",
        } <= names
    assert "daybreak/examples/shop/test_shop.py" in names
    assert not any(name.startswith("tests/") for name in names)
