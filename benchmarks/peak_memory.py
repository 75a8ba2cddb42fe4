"""Notes of each test how much memory it took at its peak: a plugin of pytest.

    python -m pytest -p benchmarks.peak_memory --junitxml=REPORT

What the process of the tests took more than before it, by Linux's own peak, and what all processes that it
started and that lived at once took, which are looked at each LOOK_S: their peaks, but of forks of another
their share, since they have most of their pages in common. Of those that a test before has left, such as a
server that several share, only what they took more counts.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

PROPERTY = "peak_bytes"
LOOK_S = 0.2
FORKED = 0x40  # PF_FORKNOEXEC of Linux: it runs no program of its own


class Peak:
    """The most that the processes below this one took, from its beginning on."""

    def __init__(self) -> None:
        below = [each.pid for each in psutil.Process().children(recursive=True)]
        for process in (os.getpid(), *below):
            with contextlib.suppress(OSError):
                Path(f"/proc/{process}/clear_refs").write_text("5")  # begins its peak anew
        self.others = {process: _taken(process) for process in below}
        self.before, self.most, self.ended = psutil.Process().memory_info().rss, 0, threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def end(self) -> int:
        """Returns the bytes at the peak, and ends."""
        self.ended.set()
        self.thread.join()
        return max(0, _peak(os.getpid()) - self.before) + self.most

    def _look(self) -> None:
        while True:
            below = [each.pid for each in psutil.Process().children(recursive=True)]
            more = sum(max(0, _taken(process) - self.others.get(process, 0)) for process in below)
            self.most = max(self.most, more)
            if self.ended.wait(LOOK_S):
                return


def _taken(process: int) -> int:
    with contextlib.suppress(OSError):
        flags = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[6]
        return _fact(process, "smaps_rollup", "Pss:") if int(flags) & FORKED else _peak(process)
    return 0


def _peak(process: int) -> int:
    return _fact(process, "status", "VmHWM:")


def _fact(process: int, file: str, name: str) -> int:
    """Returns the bytes that the kernel tells under a name; 0 where the process has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/{file}").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


PEAKS: dict[str, Peak] = {}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    PEAKS[item.nodeid] = Peak()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    finally:
        item.user_properties.append((PROPERTY, PEAKS.pop(item.nodeid).end()))
