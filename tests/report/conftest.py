"""A repository with a real ledger and a real MLflow, as the chain of a night's release needs it."""

from tests.toy.stages import home, release, settings

__all__ = ["home", "release", "settings"]
