"""A repository with a real ledger and a real MLflow, as tests of releases have it."""

from tests.toy.stages import home, release, released, settings

__all__ = ["home", "release", "released", "settings"]
