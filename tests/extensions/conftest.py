"""Torch left as it was found, since several extensions train."""

from tests.training.conftest import leave_torch_as_it_was

__all__ = ["leave_torch_as_it_was"]
