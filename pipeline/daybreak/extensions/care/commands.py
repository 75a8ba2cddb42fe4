"""Implements the commands `restore`, `audit`, `repair`, `drill` (daybreak/cli.py)."""

import json

from daybreak.check import print_checks
from daybreak.storage.home import Home


def restore(home: Home, *, commit: str = "", yes: bool = False, json_: bool = False) -> int:
    """Show what a lost ledger can be brought back from, and bring it back with --yes.

    Args:
        home: whose nights these are
        commit: the commit that it is to end with; the proposed one if left out
        yes: set the branch nights; else it is only shown
        json_: as JSON: a list of sentences, once all is done
    """
    from daybreak.extensions.care.restore import restore as restores

    lines: list[str] = []
    try:
        for line in restores(home, home.params.register_, commit=commit, yes=yes):
            lines.append(line)
            if not json_:
                print(line, flush=True)
    finally:  # what is known is shown, also where nothing can be brought back
        if json_:
            print(json.dumps(lines), flush=True)
    return 0


def audit(home: Home, *, deep: bool = False, json_: bool = False) -> int:
    """Check ledger, aliases, DVC objects and MLflow against each other.

    Args:
        home: whose nights these are
        deep: read every byte that is kept, too, which takes as long as the disk needs
        json_: as JSON: a list of checks, once all are done
    """
    from daybreak.extensions.care.audit import audit as checks

    return print_checks(checks(home, home.params, deep=deep), as_json=json_)


def repair(home: Home) -> int:
    """Put damaged bytes back from DVC's remote, another intact copy, or the source, where there is one."""
    from daybreak.extensions.care.repair import repair as repairs

    return print_checks(repairs(home, home.params))


def drill(home: Home, *, json_: bool = False) -> int:
    """Check that the version which a rollback would bring back could be restored.

    Args:
        home: whose nights these are
        json_: as JSON: a list of checks, once all are done
    """
    from daybreak.extensions.care.drill import drill as checks

    return print_checks(checks(home, home.params), as_json=json_)
