"""Implements the commands `restore`, `audit`, `repair`, `drill` (daybreak/cli.py)."""

from daybreak.check import shown
from daybreak.contract import params
from daybreak.storage import checkout


def restore(*, commit: str = "", yes: bool = False) -> int:
    """Show what a lost ledger can be brought back from, and bring it back with --yes.

    Args:
        commit: the commit that it is to end with; the proposed one if left out
        yes: set the branch nights; else it is only shown
    """
    from daybreak.extensions.care.restore import restore as restores

    for line in restores(params.load(checkout.home()), commit=commit, yes=yes):
        print(line, flush=True)
    return 0


def audit(*, deep: bool = False, json_: bool = False) -> int:
    """Check ledger, aliases, DVC objects and MLflow against each other.

    Args:
        deep: read every byte that is kept, too, which takes as long as the disk needs
        json_: as JSON: a list of checks, once all are done
    """
    from daybreak.extensions.care.audit import audit as checks

    return shown(checks(params.load(checkout.home()), deep=deep), as_json=json_)


def repair() -> int:
    """Put damaged bytes back from DVC's remote, another intact copy, or the source, where there is one."""
    from daybreak.extensions.care.repair import repair as repairs

    return shown(repairs(params.load(checkout.home())))


def drill(*, json_: bool = False) -> int:
    """Check that the version which a rollback would bring back could be restored.

    Args:
        json_: as JSON: a list of checks, once all are done
    """
    from daybreak.extensions.care.drill import drill as checks

    return shown(checks(params.load(checkout.home())), as_json=json_)
