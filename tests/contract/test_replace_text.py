"""A text is replaced whole or not at all, and for good once that is done, whenever the power fails."""

from pathlib import Path

import pytest

from pipeline.contract.records import replace_text
from pipeline.storage.journal import Journal
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
