"""Journals the release that a saga is making, so that a restarted process finishes it or takes it back."""

from daybreak.storage.home import Home
from daybreak.storage.journal import Journal


def journal(home: Home) -> Journal:
    """Returns the journal of all sagas of this home; its file is missing while no saga is under way."""
    return Journal(home.var / "release.json")
