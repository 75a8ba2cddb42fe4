"""Implements the command `champion` (daybreak/cli.py)."""

import json

from daybreak.contract.errors import NothingToDo
from daybreak.storage.home import Home


def champion(home: Home) -> int:
    """Show the version that serves, and how it came to, as JSON.

    Args:
        home: whose champion it is
    """
    from daybreak.extensions.downstream import payloads

    event = payloads.champion(home)
    if event is None:
        raise NothingToDo("no version serves yet; run a night")
    print(json.dumps(event))
    return 0
