"""A night to train in, by nobody's MLflow."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training import nights


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[None]:
    with nights.surroundings():
        nights.lay_out(tmp_path)
        yield
