"""Digests of folders, of which only new and changed files are read."""

import os
import time
from pathlib import Path

import pytest

from daybreak.contract import records
from daybreak.storage import known_digests
from daybreak.storage.home import Home

LONG_AGO = 1_700_000_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a home, whose files were written long ago."""
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path / "home"))
    for name in ("a", "b"):
        path = tmp_path / "raw" / f"day={name}" / "part"
        path.parent.mkdir(parents=True)
        write(path, name * 100)
    return tmp_path / "raw"


def write(path: Path, text: str, *, at: float = LONG_AGO) -> None:
    """Write in place, with a time of change."""
    path.write_text(text)
    os.utime(path, (at, at))


def test_the_digest_is_that_of_dvc(folder: Path) -> None:
    assert (
        known_digests.digest(Home.here(), folder)
        == known_digests.digest(Home.here(), folder)
        == records.digest(folder)
    )


def test_only_files_that_changed_by_their_inode_or_time_are_read(folder: Path) -> None:
    before = known_digests.digest(Home.here(), folder)
    write(folder / "day=a/part", "x" * 100)  # in place, as nothing here does: it is not read again
    assert known_digests.digest(Home.here(), folder) == before
    write(folder / "day=a/part", "a" * 100)
    fresh = folder.parent / "fresh"
    write(fresh, "c" * 100)
    fresh.replace(folder / "day=b/part")
    assert known_digests.digest(Home.here(), folder) == records.digest(folder) != before


def test_a_link_in_another_folder_is_known(folder: Path, tmp_path: Path) -> None:
    before = known_digests.digest(Home.here(), folder)
    (tmp_path / "night").mkdir()
    for day in ("day=a", "day=b"):
        (tmp_path / "night" / day).mkdir()
        (tmp_path / "night" / day / "part").hardlink_to(folder / day / "part")
    write(folder / "day=a/part", "x" * 100)
    assert known_digests.digest(Home.here(), tmp_path / "night") == before


def test_a_file_that_was_just_written_is_read_again(folder: Path) -> None:
    path = folder / "day=a/part"
    write(path, "x" * 100, at=time.time())
    written = path.stat().st_mtime_ns
    known_digests.digest(Home.here(), folder)
    path.write_text("y" * 100)
    os.utime(path, ns=(written, written))  # within one tick of a coarse clock
    assert known_digests.digest(Home.here(), folder) == records.digest(folder)
