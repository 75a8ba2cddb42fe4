"""Was this worker told to end? SIGTERM: asked for between updates, and nothing else of the worker hears it.

Before training there is nothing to save: the signal ends the process as it does any, also one that waits
for another to connect, and could not ask. From `listen` on it is kept, whatever is being done: compiling the
first update, a long one, a checkpoint, the export. torchrun sends it to all processes of a worker's session,
and data loaders or compilers that the workload started would die of it, and with them the update that is to
be saved. So they are started with the signal blocked, which a process has from the thread that starts it.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

TOLD = {signal.SIGTERM}


class Notice:
    """Tells whether this process was told to end."""

    def __init__(self) -> None:
        self._kept = False

    def listen(self) -> None:
        """From now on the signal is kept; for the main thread."""
        signal.signal(signal.SIGTERM, self._keep)  # reaches us by any thread that does not block it
        signal.pthread_sigmask(signal.SIG_BLOCK, TOLD)

    def __call__(self) -> bool:
        """Whether it has come; asked at each update, so it takes a microsecond."""
        return self._kept or signal.SIGTERM in signal.sigpending()

    def _keep(self, *_: object) -> None:
        self._kept = True


@contextmanager
def unheard() -> Iterator[None]:
    """Processes that are started here do not hear the signal; if it has come, it ends this one afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TOLD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
