"""Computes digests of files that mostly stay, so that hashing does not grow with the window.

A digest stays valid while inode, size and time of change of the file are the same, as in DVC: links into
DVC's cache keep all three from night to night. `open` reads every byte that it restores
(daybreak/storage/snapshots.py), so a damaged disk is noticed there.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from daybreak.contract import records
from daybreak.storage.home import Home

log = logging.getLogger(__name__)

SETTLED_S = 2.0  # a file that has just been written may be written again within one tick of its clock
MOST_BYTES = 1 << 26  # of what is remembered; the oldest is forgotten first


def digest(home: Home, path: Path) -> str:
    """Returns `records.digest(path)`, and reads only files that are new or have changed."""
    with _of_files(home) as of_file:
        return records.digest(path, of_file=of_file)


def digests(home: Home, files: Iterable[Path]) -> dict[Path, str]:
    """Returns the digest of each file, and reads only those that are new or have changed."""
    with _of_files(home) as of_file:
        return {file: of_file(file) for file in files}


@contextmanager
def _of_files(home: Home) -> Iterator[Callable[[Path], str]]:
    """Yields the function that returns the digest of a file."""
    from diskcache import Cache

    folder = home.var / "digests"
    try:
        known = Cache(str(folder), size_limit=MOST_BYTES)
    except (OSError, sqlite3.Error) as error:  # as on a full disk: reading the files does as well
        log.warning("digests are not remembered in %s: %s", folder, error)
        yield records.digest
        return
    with known:

        def of_file(file: Path) -> str:
            stat = file.stat()
            identity = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
            remembered: str | None = known.get(identity)
            if remembered:
                return remembered
            digest_now = records.digest(file)
            if time.time() - stat.st_mtime > SETTLED_S:
                with suppress(OSError, sqlite3.Error):
                    known.set(identity, digest_now)
            return digest_now

        yield of_file
