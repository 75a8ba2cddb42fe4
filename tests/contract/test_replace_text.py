"""A text is replaced whole or not at all, and for good once that is done, whenever the power fails."""

import os
import signal
from pathlib import Path
from typing import BinaryIO

import pytest

from daybreak.contract import records
from daybreak.contract.records import replace_text
from daybreak.storage.journal import Journal
from tests.disk import Disk, Tree


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def contents(trees: set[Tree], name: str = "plan.json") -> set[bytes | None]:
    """What a reader finds under that name; None where it is missing."""
    return {dict(tree).get(name) for tree in trees}


def test_a_reader_finds_the_old_text_or_the_new_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "plan.json").write_text("old")
    disk = Disk(folder, monkeypatch)
    left = disk.left_by(lambda: replace_text(folder / "plan.json", "new"))
    assert contents(left) == {b"old", b"new"}


def test_what_was_written_stays_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "plan.json").write_text("old")
    disk = Disk(folder, monkeypatch)
    replace_text(folder / "plan.json", "new")
    assert contents(disk.left()) == {b"new"}


def test_a_first_text_is_missing_or_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(folder, monkeypatch)
    left = disk.left_by(lambda: replace_text(folder / "plan.json", "new"))
    assert contents(left) == {None, b"new"}
    assert contents(disk.left()) == {b"new"}


def test_a_journal_that_was_written_is_on_the_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(folder, monkeypatch)
    Journal(folder / "release.json").write({"kind": "promote"})
    assert contents(disk.left(), "release.json") == {b'{\n "kind": "promote"\n}\n'}


def test_a_text_that_was_not_synced_may_be_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other tests rest on: a plain write and rename is seen to leave nothing of either text."""
    (folder / "plan.json").write_text("old")
    disk = Disk(folder, monkeypatch)
    (folder / "fresh").write_text("new")
    (folder / "fresh").replace(folder / "plan.json")
    assert contents(disk.left()) == {b"old", b""}


def test_the_next_call_removes_what_a_killed_one_left(folder: Path) -> None:
    (folder / ".plan.json.bak").touch()
    pid = os.fork()
    if not pid:
        records.replace_file(folder / "plan.json", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert len(list(folder.glob(".plan.json.*.tmp"))) == 1
    replace_text(folder / "plan.json", "new")
    assert sorted(path.name for path in folder.iterdir()) == [".plan.json.bak", "plan.json"]


def test_of_two_calls_at_once_none_loses_its_text(folder: Path) -> None:
    """The second call ends meanwhile, and takes the first call's file for a leftover of a killed call."""
    texts = []

    def write(file: BinaryIO) -> None:
        file.write(b"mine")
        if not texts:
            texts.append("another's")
            replace_text(folder / "plan.json", texts[0])

    records.replace_file(folder / "plan.json", write)
    assert [path.name for path in folder.iterdir()] == ["plan.json"]
    assert (folder / "plan.json").read_text() == "mine"
