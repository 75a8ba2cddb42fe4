"""A Vertex AI on loopback."""

from tests.backends.conftest import service

__all__ = ["service"]
