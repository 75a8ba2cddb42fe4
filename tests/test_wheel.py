"""What `pip install` of a wheel brings: the package, its tables, dags/ and the examples, and `daybreak`."""

import zipfile
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_wheel_carries_dags_examples_and_the_command(wheel: Path) -> None:
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
