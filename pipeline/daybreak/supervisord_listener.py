"""Ends what a killed server leaves behind, the rest of its process group, before the server starts again.

`python -m daybreak.supervisord_listener NAME...` listens to supervisord (supervisord.conf). A worker of a
killed server would keep its port, and each new server would end because the port is in use.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Collection


def listen(names: Collection[str]) -> None:
    """Ends the process group of each program of these names that ends, for as long as supervisord runs."""
    from supervisor import childutils

    while True:
        _, payload = childutils.listener.wait()
        ended = childutils.get_headers(payload)
        if ended["processname"] in names:
            with contextlib.suppress(ProcessLookupError):  # no process is left
                os.killpg(int(ended["pid"]), signal.SIGKILL)
        childutils.listener.ok()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        listen(sys.argv[1:])
