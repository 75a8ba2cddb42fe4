"""Implements the command `erase` (daybreak/cli.py)."""

import json

from daybreak.storage.home import Home


def erase(home: Home, *, unit: str, yes: bool = False, json_: bool = False) -> int:
    """Erase all rows of a person or an account everywhere, and name the versions that learned from them.

    Args:
        home: whose nights these are
        unit: as the rows have it in the column that the workload's table calls its unit
        yes: do it; without it, only what would go is shown
        json_: as JSON: a list of sentences, once all is done
    """
    from daybreak.extensions.erasure.erase import erase as erases
    from daybreak.report import publisher

    lines: list[str] = []
    try:
        for line in erases(home, unit, home.params, dry_run=not yes):
            lines.append(line)
            if not json_:
                print(f"{'' if yes else 'would erase: '}{line}", flush=True)
    finally:  # also where it failed half-way, what was erased is told
        if json_:
            print(json.dumps(lines), flush=True)
    if yes:
        publisher.write_now(home)  # the file has reasons and error texts, which may name the unit
    elif not json_:
        print("Nothing is changed; add --yes to do it.")
    return 0
