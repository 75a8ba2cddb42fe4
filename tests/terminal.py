"""A terminal for what is shown on one alone."""

import os
import pty
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def terminal() -> Iterator[Callable[[], str]]:
    """Makes standard error a terminal, and gives a function that waits for what is written there next.

    No fixture does that: pytest puts its own standard error in place when it calls the test.
    """
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 80))
    with os.fdopen(follower, "w", buffering=1) as screen, mock.patch.object(sys, "stderr", screen):
        yield lambda: os.read(leader, 1 << 16).decode()
    os.close(leader)
