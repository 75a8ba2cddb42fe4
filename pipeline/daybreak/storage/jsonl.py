"""Appends facts to files of JSON lines, of which a kill or a full disk may tear one.

The line after a torn one begins on a line of its own, and readers leave torn lines out.
Most lines are not synced, as they come too often: where the power fails, the last ones may be lost or torn.
"""

import errno
import json
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from daybreak.contract.records import sync

log = logging.getLogger(__name__)

TAIL_BYTES = 1 << 19  # some thousand lines


def add(path: Path, *lines: dict[str, Any], synced: bool = False) -> None:
    """Appends lines by one write; OSError if the disk takes only a part of them, or nothing.

    With `synced`, they are on the disk before this returns.
    """
    with path.open("a+b", buffering=0) as file:
        text = ("\n" if _torn(file.fileno()) else "") + "".join(json.dumps(line) + "\n" for line in lines)
        if file.write(text.encode()) != len(text.encode()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    if synced:
        sync(path)
        sync(path.parent)


def append(path: Path, line: dict[str, Any]) -> bool:
    """Appends a line; if that fails, as on a full disk, logs a warning and returns False."""
    try:
        add(path, line)
    except OSError as error:
        log.warning("no line for %s: %s; going on", path, error)
        return False
    return True


def whole(path: Path) -> list[dict[str, Any]]:
    """Returns all whole lines."""
    return list(_read(path.read_text(errors="replace").splitlines())) if path.exists() else []


def newest(path: Path) -> list[dict[str, Any]]:
    """Returns the whole lines among the last `TAIL_BYTES`."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return list(_read(file.read().decode(errors="replace").splitlines()))


def after(path: Path, position: int) -> tuple[list[dict[str, Any]], int]:
    """Returns the whole lines from a position in the file on, and the position after them."""
    if not path.exists():
        return [], position
    with path.open("rb") as file:
        file.seek(position)
        rest = file.read()
    ended = rest[: rest.rfind(b"\n") + 1]
    return list(_read(ended.decode(errors="replace").splitlines())), position + len(ended)


def _torn(handle: int) -> bool:
    """Whether the last line of a file that is not empty has no end."""
    size = os.fstat(handle).st_size
    return size > 0 and os.pread(handle, 1, size - 1) != b"\n"


def _read(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            fact = json.loads(line)
        except (ValueError, RecursionError):  # the latter of brackets without end
            continue
        if isinstance(fact, dict):  # half of a line may be a number
            yield fact
