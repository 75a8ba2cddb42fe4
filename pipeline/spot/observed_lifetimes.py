"""How long did each spot machine of a job live, and was it preempted? From what the job left behind.

A machine lived from its first sign of life (the start of a worker) to its last (a heartbeat); one that was
not found lost when it was looked at (it had done its work, failed, or was left) had lived at least so long.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

Line = Mapping[str, Any]  # of a file of JSON lines


def lives(
    submissions: Sequence[Line], *, starts: Sequence[Line], heartbeats: Sequence[Line], losses: Sequence[Line]
) -> tuple[tuple[float, bool], ...]:
    """Seconds lived and whether preempted, of each spot machine that began to work."""
    signs = [_seconds(line["time"]) for line in (*starts, *heartbeats)]
    lost = [_seconds(line["time"]) for line in losses]
    asked = [line for line in submissions if not line.get("left")]
    ends = [*(_seconds(line["time"]) for line in asked[1:]), float("inf")]
    found = []
    for line, end in zip(asked, ends, strict=False):  # nothing was asked for: nothing lived
        begin = _seconds(line["time"])
        own = [each for each in signs if begin <= each < end]
        if line.get("strategy") == "spot" and own:
            found.append((round(max(own) - min(own), 3), any(begin < each <= end for each in lost)))
    return tuple(found)


def start_s(submissions: Sequence[Line], starts: Iterable[Line]) -> float | None:
    """Seconds from the first submission to the first worker; None where either is not told."""
    first = next(iter(starts), None)
    if not submissions or first is None:
        return None
    return round(max(0.0, _seconds(first["time"]) - _seconds(submissions[0]["time"])), 3)


def _seconds(time: float | str) -> float:
    return datetime.fromisoformat(time).timestamp() if isinstance(time, str) else float(time)
