"""Reads how long each spot machine of a job lived, and whether it was preempted, from the job's files.

A machine lived from its first sign of life (the start of a worker) to its last (a heartbeat). The lifetime of
a machine that was not lost to a preemption (it had done its work, failed, or was released) is censored. A job
that goes on without a machine that it lost tells of that by a heartbeat of fewer devices: there the first of
its machines ended, and what the others lived after that is left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from daybreak.machines.startup import num_devices

Line = Mapping[str, Any]  # of a file of JSON lines


def lifetimes(
    submissions: Sequence[Line], *, starts: Sequence[Line], heartbeats: Sequence[Line], losses: Sequence[Line]
) -> tuple[tuple[float, bool], ...]:
    """Returns for each spot machine that began to work its seconds lived and whether it was preempted."""
    signs = [_seconds(line["time"]) for line in (*starts, *heartbeats)]
    lost = [_seconds(line["time"]) for line in losses]
    submitted = [line for line in submissions if not line.get("left")]
    ends = [*(_seconds(line["time"]) for line in submitted[1:]), float("inf")]
    observed: list[tuple[float, bool]] = []
    for line, end in zip(submitted, ends, strict=False):  # without a submission no machine lived
        begin = _seconds(line["time"])
        own = [each for each in signs if begin <= each < end]
        if line.get("strategy") != "spot" or not own:
            continue
        fewer = _fewer_at([each for each in heartbeats if begin <= _seconds(each["time"]) < end])
        if fewer is not None:
            observed.append((round(fewer - min(own), 3), True))
        else:
            observed.append((round(max(own) - min(own), 3), any(begin < each <= end for each in lost)))
    return tuple(observed)


def _fewer_at(heartbeats: Sequence[Line]) -> float | None:
    """Returns the seconds of the first heartbeat that has fewer devices than the one before; None without."""
    for before, after in pairwise(each for each in heartbeats if each.get("device")):
        if num_devices(after["device"]) < num_devices(before["device"]):
            return _seconds(after["time"])
    return None


def start_s(submissions: Sequence[Line], starts: Iterable[Line]) -> float | None:
    """Returns the seconds from the first submission to the first worker; None if either is not recorded."""
    first = next(iter(starts), None)
    if not submissions or first is None:
        return None
    return round(max(0.0, _seconds(first["time"]) - _seconds(submissions[0]["time"])), 3)


def _seconds(time: float | str) -> float:
    return datetime.fromisoformat(time).timestamp() if isinstance(time, str) else float(time)
