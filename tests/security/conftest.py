"""A repository with a real ledger and a real MLflow, as tests of releases have it."""

from tests.release.conftest import home, release, told

__all__ = ["home", "release", "told"]
