"""Remembers the largest micro-batch that fits this machine's memory, for the next job.

One file per machine and model, `$DAYBREAK_HOME/var/passes/DIGEST.json`, is valid as long as the machine's
measured ceilings; after that the whole batch is tried again. Outside of any home nothing is kept.
"""

import json
import time
from pathlib import Path
from typing import Any

from daybreak.contract import records
from daybreak.machines import this_machine
from daybreak.storage.home import Home


def remember(home: Home | None, workload: str, arguments: dict[str, Any], *, micro_batch_size: int) -> None:
    """Records the largest micro-batch that memory sufficed for."""
    facts = _facts(workload, arguments)
    if path := _path(home, facts):
        records.replace_text(
            path, json.dumps({**facts, "micro_batch_size": micro_batch_size}, indent=2) + "\n"
        )


def at_most(home: Home | None, workload: str, arguments: dict[str, Any], *, micro_batch_size: int) -> int:
    """Returns the given size, or a smaller one that was recorded for this machine and model."""
    path = _path(home, _facts(workload, arguments))
    try:
        if path is None or time.time() - path.stat().st_mtime > this_machine.KEPT.total_seconds():
            return micro_batch_size
        kept = int(json.loads(path.read_text())["micro_batch_size"])
    except (OSError, ValueError, KeyError):
        return micro_batch_size
    return min(kept, micro_batch_size)


def _facts(workload: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"machine": this_machine.fingerprint(), "workload": workload, "arguments": arguments}


def _path(home: Home | None, facts: dict[str, Any]) -> Path | None:
    return home.var / "passes" / f"{this_machine.facts_digest(facts)}.json" if home else None
