"""Holds SIGTERM back until the end of an update, so that a worker can save before it ends.

Before training there is nothing to save: the signal ends the process as usual, even one that waits for
another worker to connect and could not check for it. From `listen` on the signal is held back, whatever the
worker is doing: compiling the first update, a long update, a checkpoint, the export. torchrun sends it to all
processes of a worker's session; it would kill the workload's data loaders or compilers, and so the update
that is to be saved. So these are started with the signal blocked, which a process inherits from the thread
that starts it.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

BLOCKED = {signal.SIGTERM}
PR_SET_PDEATHSIG = 1  # of prctl(2): the signal that a process gets when its parent dies


class Termination:
    """Whether this process was told to end."""

    def __init__(self) -> None:
        self._received = False

    def listen(self) -> None:
        """Holds the signal back from now on; call it from the main thread."""
        # Any thread that does not block the signal delivers it to this handler.
        signal.signal(signal.SIGTERM, self._record)
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)

    def __call__(self) -> bool:
        """Returns whether the signal has come; a microsecond, as it runs at each update."""
        return self._received or signal.SIGTERM in signal.sigpending()

    def _record(self, *_: object) -> None:
        self._received = True


@contextmanager
def sigterm_blocked() -> Iterator[None]:
    """Blocks SIGTERM for processes started inside; a signal that came meanwhile ends this one afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent(parent: int = 0) -> None:
    """Has the kernel end this process with the one that started it.

    A fork names its `parent`, and ends now if that has already ended.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent and os.getppid() != parent:
            os._exit(1)
