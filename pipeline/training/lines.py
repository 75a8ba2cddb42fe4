"""How are facts kept as they come? A file of JSON, one line each, which a kill can only cut at its end."""

import json
import logging
import os
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

TAIL_BYTES = 1 << 19  # some thousand lines


def add(path: Path, line: dict[str, Any]) -> None:
    """Add a line by one write."""
    with path.open("ab", buffering=0) as file:
        file.write((json.dumps(line) + "\n").encode())


def append(path: Path, line: dict[str, Any]) -> None:
    """The same, but a disk that is full is warned of, and no reason to stop."""
    try:
        add(path, line)
    except OSError as error:
        log.warning("no line for %s: %s; going on", path, error)


def whole(path: Path) -> list[dict[str, Any]]:
    """All whole lines; the last may be half written."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def newest(path: Path) -> list[dict[str, Any]]:
    """The whole lines among the last `TAIL_BYTES`."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        cut = file.tell() > 0
        text = file.read().decode(errors="replace")
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [json.loads(line) for line in lines[cut:]]
