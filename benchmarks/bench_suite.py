"""`make test` and `make test-all` in a fresh clone, and the fast tests alone: everything not marked slow.

QUICK=1 runs the fast tests only.
"""

import os
import subprocess
import sys
import time

from benchmarks import frame

COMMANDS = {"fast part s": [sys.executable, "-m", "pytest", "-n", "2", "-m", "not (slow or gpu or matrix)"]}
if not frame.QUICK:
    COMMANDS |= {"quick tier s": ["make", "test"], "whole s": ["make", "test-all"]}
TARGETS = {"fast part s": ("<=", 60.0), "quick tier s": ("<=", 10 * 60.0), "whole s": ("<=", 25 * 60.0)}


def main() -> None:
    """Run them in a clone with this environment, and hold them against the targets."""
    figures = {}
    with frame.home() as home:
        frame.lend_environment(home)
        environment = os.environ | {"DAYBREAK_DATA": str(frame.DATA)}
        for name, command in COMMANDS.items():
            began = time.monotonic()
            subprocess.run(command, cwd=home, env=environment, check=True)
            figures[name] = time.monotonic() - began
    frame.finish("suite", figures, {name: TARGETS[name] for name in figures})


if __name__ == "__main__":
    main()
