"""A Kubernetes and a registry of images on loopback."""

from tests.backends.conftest import kubernetes, registry

__all__ = ["kubernetes", "registry"]
