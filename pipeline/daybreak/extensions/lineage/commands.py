"""Implements the commands `why`, `who-used` (daybreak/cli.py)."""

import json
from dataclasses import asdict

from daybreak.contract.errors import NothingToDo
from daybreak.contract.formats import one_line
from daybreak.storage.home import Home


def why(home: Home, what: str, *, json_: bool = False) -> int:
    """Show why a night ended as it did, and the origin of its version, its verdict, and when it served.

    Args:
        home: whose nights these are
        what: a night's name or day, also of a night that runs, or the number of a version
        json_: as JSON: a list of names and texts
    """
    from daybreak.extensions.lineage import provenance

    shown = provenance.why(home, what)
    if json_:
        print(json.dumps([{"name": name, "text": text} for name, text in shown]))
        return 0
    for name, text in shown:
        print(f"{name:11} {one_line(text)}")
    return 0


def who_used(home: Home, what: str, *, json_: bool = False) -> int:
    """Show which nights and versions used a day or a digest.

    Args:
        home: whose nights these are
        what: a day as 2011-09-30, or the digest of data or of a model, or its first characters
        json_: as JSON: a list of nights
    """
    from daybreak.extensions.lineage import provenance

    uses = provenance.who_used(home, what)
    if not uses:
        raise NothingToDo(f"no night of the ledger used {what}")
    if json_:
        print(json.dumps([asdict(use) for use in uses], default=str))
        return 0
    for use in uses:
        version = f"version {use.version}{', serves' if use.serves else ''}" if use.version else "no version"
        print(f"{use.night}  {version}: {use.how}")
    return 0
