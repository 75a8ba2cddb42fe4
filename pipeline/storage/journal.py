"""Journals and locks on this machine's disk.

A journal is a JSON document that says what is about to be done, so that a process which was killed on the way
can be followed by one that goes on. A lock keeps other processes out meanwhile; the kernel releases that of a
killed one.
"""

import json
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from pipeline.contract.records import replace_text

__all__ = ["Journal", "Timeout", "alone"]


def alone(path: Path, *, wait: bool = True) -> BaseFileLock:
    """Returns a lock, to be held by `with`, that one process at a time gets.

    Without `wait`, entering it raises Timeout at once where another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path, timeout=-1 if wait else 0, preserve_lock_file=True)


class Journal:
    """The document at a path; `empty` is what it says before it was ever written."""

    def __init__(self, path: Path, *, empty: Any = None) -> None:
        self.path, self._empty = path, empty

    def alone(self) -> BaseFileLock:
        """Returns the lock of this journal."""
        return alone(self.path.with_suffix(".lock"))

    def read(self) -> Any:
        """Returns what it says. ValueError where it is no JSON."""
        return json.loads(self.path.read_text() if self.path.exists() else json.dumps(self._empty))

    def write(self, document: Any) -> None:
        """Says this from now on; it is on the disk before this returns."""
        replace_text(self.path, json.dumps(document, indent=1) + "\n")

    def remove(self) -> None:
        """Ends it; no error where there is none."""
        self.path.unlink(missing_ok=True)
