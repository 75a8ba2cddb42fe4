"""Fixtures that several extensions use: torch's settings restored, and a repository with releases."""

from tests.toy.stages import home, home_of_two, release, released, settings
from tests.training.conftest import leave_torch_as_it_was

__all__ = ["home", "home_of_two", "leave_torch_as_it_was", "release", "released", "settings"]
