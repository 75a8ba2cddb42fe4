"""A Vertex AI on loopback, to profile on."""

from tests.backends.conftest import service

__all__ = ["service"]
