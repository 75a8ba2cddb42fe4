"""A log of what routers answered."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from daybreak.storage.traffic_log import Log, open_log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A log of its own."""
    opened = open_log(f"sqlite:///{tmp_path / 'var' / 'serving.db'}")
    yield opened
    opened.close()
