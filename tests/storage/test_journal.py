"""A journal on a disk that loses what was not synced."""

from pathlib import Path

import pytest

from daybreak.storage.journal import Journal
from tests.disk import Disk


def test_a_journal_that_was_removed_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "move.json")
    journal.write({"to": 3})
    disk = Disk(tmp_path, monkeypatch)
    journal.remove()
    assert disk.left() == {frozenset()}
    journal.remove()
    assert journal.read() is None
