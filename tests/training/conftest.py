"""A small data set, and torch left as it was found."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.fakes import write_curve


@pytest.fixture(autouse=True)
def leave_torch_as_it_was() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)
    torch.set_deterministic_debug_mode("default")  # the better known call imports the compiler


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Arrays of a curve of 100 samples."""
    write_curve(tmp_path, num_samples=100)
    return tmp_path
