"""Keeps journals and locks on this machine's disk.

A journal is a JSON document with the operation about to be done, so that a restarted process can go on where
a killed process stopped. A lock keeps other processes out meanwhile; the kernel releases the lock of a killed
process.
"""

import json
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from daybreak.contract.records import replace_text, sync

__all__ = ["Journal", "Timeout", "alone"]


def alone(path: Path, *, wait: bool = True) -> BaseFileLock:
    """Returns a lock, to be held by `with`, that one process at a time can hold.

    Without `wait`, entering it raises Timeout at once if another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path, timeout=-1 if wait else 0, preserve_lock_file=True)


class Journal:
    """A JSON document at a path; `empty` is its content before it was ever written."""

    def __init__(self, path: Path, *, empty: Any = None) -> None:
        self.path, self._empty = path, empty

    def alone(self) -> BaseFileLock:
        """Returns the lock of this journal."""
        return alone(self.path.with_suffix(".lock"))

    def read(self) -> Any:
        """Returns the document; ValueError if the file is not valid JSON."""
        return json.loads(self.path.read_text() if self.path.exists() else json.dumps(self._empty))

    def write(self, document: Any) -> None:
        """Writes the document; it is on the disk before this returns."""
        replace_text(self.path, json.dumps(document, indent=1) + "\n")

    def remove(self) -> None:
        """Removes the document for good, also where the power fails then; no error if it is missing."""
        if self.path.exists():
            self.path.unlink()
            sync(self.path.parent)
