"""How are facts kept as they come? A file of JSON, one line each; a kill or a full disk may tear one.

A line is torn where it was cut: the next one begins on a line of its own, and readers leave torn ones out.
Lines are not synced, as they come too often: where the power fails, the last ones may be lost or torn.
"""

import errno
import json
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

TAIL_BYTES = 1 << 19  # some thousand lines


def add(path: Path, line: dict[str, Any]) -> None:
    """Add a line by one write; OSError where the disk takes none of it, or a part."""
    with path.open("a+b", buffering=0) as file:
        text = ("\n" if _torn(file.fileno()) else "") + json.dumps(line) + "\n"
        if file.write(text.encode()) != len(text.encode()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def append(path: Path, line: dict[str, Any]) -> bool:
    """The same, but a disk that is full is warned of, and no reason to stop: it gives False."""
    try:
        add(path, line)
    except OSError as error:
        log.warning("no line for %s: %s; going on", path, error)
        return False
    return True


def whole(path: Path) -> list[dict[str, Any]]:
    """All whole lines."""
    return list(_read(path.read_text(errors="replace").splitlines())) if path.exists() else []


def newest(path: Path) -> list[dict[str, Any]]:
    """The whole lines among the last `TAIL_BYTES`."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return list(_read(file.read().decode(errors="replace").splitlines()))


def after(path: Path, position: int) -> tuple[list[dict[str, Any]], int]:
    """The whole lines from a position in the file on, and the position behind them."""
    if not path.exists():
        return [], position
    with path.open("rb") as file:
        file.seek(position)
        found = file.read()
    ended = found[: found.rfind(b"\n") + 1]
    return list(_read(ended.decode(errors="replace").splitlines())), position + len(ended)


def _torn(handle: int) -> bool:
    """Whether the last line of a file that is not empty has no end."""
    size = os.fstat(handle).st_size
    return size > 0 and os.pread(handle, 1, size - 1) != b"\n"


def _read(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict):  # half of a line may be a number
            yield told
