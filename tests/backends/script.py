"""Stands for the module of a job: `python -m tests.backends.script SCRIPT` becomes a shell that runs it."""

import os
import sys

if __name__ == "__main__":
    os.execvp("sh", ["sh", "-c", sys.argv[1]])
