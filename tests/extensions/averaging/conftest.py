"""A small data set."""

from tests.training.conftest import folder

__all__ = ["folder"]
