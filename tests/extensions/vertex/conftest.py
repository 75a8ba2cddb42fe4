"""A Vertex AI and a registry of images on loopback."""

from tests.backends.conftest import registry, service

__all__ = ["registry", "service"]
