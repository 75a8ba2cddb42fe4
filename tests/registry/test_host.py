"""What the code of a version can do to the log of the process that asks it. Real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

VERSION = """
import fcntl, os

def tries():
    for ways in (
        lambda number: os.ftruncate(number, 0),
        lambda number: os.pwrite(number, b"forged", 0),
        lambda number: os.lseek(number, 0, os.SEEK_SET),
        lambda number: open(f"/proc/self/fd/{number}", "w").close(),
        lambda number: fcntl.fcntl(number, fcntl.F_SETFL, os.O_NONBLOCK),  # and no longer O_APPEND
        lambda number: fcntl.fcntl(number, fcntl.F_SETPIPE_SZ, 4096),
    ):
        for number in range(3):
            try:
                ways(number)
            except OSError:
                pass
    print("all is well")  # without a flush
    return {}

VERBS = {"tries": tries}
"""
PARENT = """
import fcntl, os, sys
from pathlib import Path
from daybreak.registry.host import CodeHost

def say(line):
    os.write(2, f"{line}".ljust(99).encode() + b"\\n")

script = Path(sys.argv[1])
before = fcntl.fcntl(2, fcntl.F_GETFL)
say("first")
with CodeHost(script, answer_s=300, reads=(script,)) as process:
    process.ask("tries")
assert fcntl.fcntl(2, fcntl.F_GETFL) == before
for number in range(100):
    say(number)
"""


@contextmanager
def file(folder: Path) -> Iterator[tuple[int, BinaryIO]]:
    """A log that is a file: to write to, and to read when all is written."""
    (folder / "log").touch()
    with (folder / "log").open("ab") as writes, (folder / "log").open("rb") as reads:
        yield writes.fileno(), reads


@contextmanager
def pipe(_: Path) -> Iterator[tuple[int, BinaryIO]]:
    """A log that goes to another process, which is late to read it."""
    reads, writes = os.pipe()
    with os.fdopen(reads, "rb") as reading:
        yield writes, reading


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="pipes of other systems have no such sizes")
@pytest.mark.parametrize("log", [file, pipe], ids=["file", "pipe"])
def test_the_code_of_a_version_adds_to_the_log_and_changes_no_line_of_another(log, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    script = tmp_path / "script.py"
    script.write_text(VERSION)
    with log(tmp_path) as (writes, reads):
        subprocess.run([sys.executable, "-c", PARENT, str(script)], stderr=writes, check=True, timeout=600)
        if log is pipe:
            os.close(writes)
        lines = [line.decode().strip() for line in reads]
    assert lines[0] == "first"
    assert "all is well" in lines[1:-100]
    assert lines[-100:] == [str(number) for number in range(100)]
