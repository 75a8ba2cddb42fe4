"""Reference values of sequential tests, from four public packages."""

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest


@functools.cache
def reference() -> dict[str, Any]:
    """The values by package; skips where the file is missing."""
    data = Path(os.environ.get("DAYBREAK_DATA", Path(__file__).parents[3] / "shared" / "data"))
    path = data / "experiments" / "reference_sequential_tests.json"
    if not path.exists():
        pytest.skip(f"{path} is missing; set DAYBREAK_DATA to the folder that holds experiments/")
    values: dict[str, Any] = json.loads(path.read_text())
    return values
