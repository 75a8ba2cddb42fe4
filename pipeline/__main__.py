# PYTHON_ARGCOMPLETE_OK
"""`python -m pipeline`: see pipeline/cli.py."""

import sys

try:
    from pipeline.cli import main

    sys.exit(main())
except KeyboardInterrupt:  # while it imports, which takes seconds
    sys.exit(130)
