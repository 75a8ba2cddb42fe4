"""A journal of requests on a disk that loses what was not synced."""

from pathlib import Path

import pytest

from daybreak.contract.errors import DataError
from daybreak.storage.request_journal import Request, RequestJournal
from tests.disk import Disk


@pytest.fixture
def journal(tmp_path: Path) -> RequestJournal[Request]:
    return RequestJournal(tmp_path / "requests.json", Request)


def test_a_request_is_on_the_disk_before_it_is_made_and_its_handle_before_the_next(
    journal: RequestJournal[Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path, monkeypatch)
    for act in (
        lambda: journal.put(Request(name="a")),
        lambda: journal.change("a", handle="job-7"),
        lambda: journal.drop("a"),
    ):
        disk.left_by(act)
        assert disk.left() == {frozenset({("requests.json", journal.path.read_bytes())})}


def test_a_change_by_another_process_meanwhile_is_kept(journal: RequestJournal[Request]) -> None:
    other = RequestJournal(journal.path, Request)
    journal.put(Request(name="a"))
    other.put(Request(name="b", handle="job-8"))
    assert journal.change("a", handle="job-7") == Request(name="a", handle="job-7")
    assert [each.handle for each in other.read().values()] == ["job-7", "job-8"]


def test_a_request_that_is_unknown_is_not_changed(journal: RequestJournal[Request]) -> None:
    assert journal.change("a", handle="job-7") is None
    journal.drop("a")
    assert not journal.path.exists()


def test_a_request_that_is_not_valid_is_named_with_its_file(journal: RequestJournal[Request]) -> None:
    journal.write([{"name": "a", "speed": 3}])
    with pytest.raises(DataError, match=r"requests\.json is not a valid Request: speed"):
        journal.read()
