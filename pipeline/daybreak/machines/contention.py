"""Measures how much other processes slowed this one, so that times that they spoiled are not taken for long.

    with contention.measured() as seen:
        ...
    seen.share   # 0.4: for 40 % of its time, this process waited for a core that others used

The kernel counts, for each thread, the time that it waited for a core (`run_delay` of schedstat). Threads of
one process wait for each other too, so that counts only as far as other processes used the cores at all.

Loads and steps are timed by the clock, and judged by this share, rather than by their CPU time: a load waits
for storage, and the threads of a step spin while they wait for each other. Only what one thread can measure,
as the ceilings (daybreak/profiling/roofline.py), is taken from CPU time.
"""

import contextlib
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from daybreak.machines import this_machine

MOST = 0.1  # share above which times are disturbed
TASKS = Path("/proc/self/task")


@dataclass(kw_only=True)
class Contention:
    """Share of the time in which this process waited for a core that others used; set at the end."""

    share: float = 0.0

    @property
    def is_high(self) -> bool:
        """Whether what was timed meanwhile is disturbed."""
        return self.share > MOST


@dataclass(frozen=True, kw_only=True)
class _Clocks:
    """Seconds so far: of the clock, that this process ran, that it waited, and that all processes ran."""

    wall_s: float
    own_s: float
    waited_s: float | None
    all_s: float


@contextlib.contextmanager
def measured() -> Iterator[Contention]:
    """Measures the contention of the block."""
    seen, before = Contention(), _clocks()
    try:
        yield seen
    finally:
        seen.share = _share(before, _clocks(), num_cores=this_machine.num_cores())


def _share(before: _Clocks, after: _Clocks, *, num_cores: int) -> float:
    wall_s, own_s = after.wall_s - before.wall_s, after.own_s - before.own_s
    others = max(0.0, after.all_s - before.all_s - own_s) / max(wall_s * num_cores, 1e-9)
    if before.waited_s is None or after.waited_s is None:
        return min(others, 1.0)
    waited_s = max(0.0, after.waited_s - before.waited_s)
    return min(others, waited_s / max(waited_s + own_s, 1e-9), 1.0)


def _clocks() -> _Clocks:
    times = psutil.cpu_times()
    idle_s = times.idle + getattr(times, "iowait", 0.0)
    guest_s = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # is part of user and nice
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return _Clocks(
        wall_s=time.perf_counter(),
        own_s=sum(one.ru_utime + one.ru_stime for one in used),
        waited_s=waited_s(),
        all_s=sum(times) - idle_s - guest_s,
    )


def waited_s() -> float | None:
    """Returns the seconds that the threads of this process waited for a core; None without schedstat."""
    waited_ns = 0
    for task in TASKS.glob("*/schedstat"):
        with contextlib.suppress(OSError):  # a thread that has ended
            waited_ns += int(task.read_text().split()[1])
    return waited_ns / 1e9 or None
