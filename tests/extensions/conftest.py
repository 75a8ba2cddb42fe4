"""Torch left as it was found, and a repository for the chain of a night's release, as several need them."""

from tests.toy.stages import home, home_of_two, release, settings
from tests.training.conftest import leave_torch_as_it_was

__all__ = ["home", "home_of_two", "leave_torch_as_it_was", "release", "settings"]
