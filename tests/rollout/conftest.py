"""A repository with a real ledger and a real MLflow, as the chain of a night's release needs it."""

from tests.toy.stages import home, home_of_two, release, released, settings

__all__ = ["home", "home_of_two", "release", "released", "settings"]
