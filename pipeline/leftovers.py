"""What does a killed server leave behind? The rest of its process group, ended before it starts again.

`python -m pipeline.leftovers NAME...` listens to supervisord (supervisord.conf). A worker of a server that
was killed would keep the port, and each new server would end for want of it.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Collection


def listen(names: Collection[str]) -> None:
    """End the process group of each program of these names that ends, for as long as supervisord asks."""
    from supervisor import childutils

    while True:
        _, payload = childutils.listener.wait()
        ended = childutils.get_headers(payload)
        if ended["processname"] in names:
            with contextlib.suppress(ProcessLookupError):  # nothing is left
                os.killpg(int(ended["pid"]), signal.SIGKILL)
        childutils.listener.ok()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        listen(sys.argv[1:])
