# PYTHON_ARGCOMPLETE_OK
"""The command `daybreak`: see daybreak/cli.py."""

import sys

from daybreak.contract import code_path


def main() -> None:
    """Runs the command line, by the Daybreak of the current folder where that has its own."""
    try:
        code_path.run_own()
        from daybreak.cli import main as run

        sys.exit(run())
    except KeyboardInterrupt:  # while it imports, which takes seconds
        sys.exit(130)


if __name__ == "__main__":
    main()
