"""A repository with a real ledger and a real MLflow, as the chain of a night's release needs it."""

from tests.toy.stages import home, release, released, settings

__all__ = ["home", "release", "released", "settings"]
