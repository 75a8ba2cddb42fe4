"""Lines of facts: one that was torn by a kill or a full disk costs itself alone."""

import json
import resource
import tempfile
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.storage import jsonl
from tests.disk import Disk


@pytest.mark.parametrize("half", ["{", '{"number": 2', '{"number": 2}', "12"])
def test_what_comes_after_a_torn_line_is_a_line_of_its_own(tmp_path, half):
    path = tmp_path / "facts.jsonl"
    jsonl.add(path, {"number": 1})
    with path.open("a") as file:
        file.write(half)
    jsonl.add(path, {"number": 3})
    last = [{"number": 2}] if half.endswith("}") else []
    assert jsonl.whole(path) == jsonl.newest(path) == [{"number": 1}, *last, {"number": 3}]


def test_a_synced_line_is_on_the_disk(tmp_path, monkeypatch):
    disk = Disk(tmp_path, monkeypatch)
    jsonl.add(tmp_path / "facts.jsonl", {"number": 1}, synced=True)
    assert disk.left() == {frozenset({("facts.jsonl", b'{"number": 1}\n')})}


def test_a_disk_that_takes_half_of_a_line_is_told_of_and_what_comes_later_is_kept(tmp_path):
    path = tmp_path / "facts.jsonl"
    jsonl.add(path, {"number": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, hard))
    try:
        with pytest.raises(OSError, match="No space left"):
            jsonl.add(path, {"number": 2})
        assert not jsonl.append(path, {"number": 3})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert jsonl.append(path, {"number": 4})
    assert jsonl.whole(path) == [{"number": 1}, {"number": 4}]


def test_who_follows_a_file_gets_each_line_once_when_it_has_ended(tmp_path):
    path = tmp_path / "facts.jsonl"
    assert jsonl.after(path, 0) == ([], 0)
    jsonl.add(path, {"number": 1})
    with path.open("a") as file:
        file.write('{"number"')
    lines, position = jsonl.after(path, 0)
    assert lines == [{"number": 1}]
    with path.open("a") as file:
        file.write(": 2}\n")
    lines, position = jsonl.after(path, position)
    assert lines == [{"number": 2}]
    jsonl.add(path, {"number": 3})
    assert jsonl.after(path, position) == ([{"number": 3}], path.stat().st_size)


def test_of_a_long_file_only_the_newest_lines_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "TAIL_BYTES", 40)
    path = tmp_path / "facts.jsonl"
    for number in range(100):
        jsonl.add(path, {"number": number})
    assert jsonl.newest(path) == [{"number": 98}, {"number": 99}]


FACTS = st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5)), max_size=5)


@settings(max_examples=30)
@given(FACTS, st.integers(0, 200), st.integers(0, 20))
def test_wherever_a_file_was_cut_or_zeroed_its_whole_lines_and_later_ones_are_kept(facts, lost, zeros):
    """Where the power fails, the end of a file may be missing, or there and full of zeros."""
    lines = [f"{json.dumps(fact)}\n" for fact in facts]
    kept = "".join(lines).encode()
    kept = kept[: max(0, len(kept) - lost)]
    ends = accumulate(map(len, lines))
    whole = [
        fact
        for fact, end in zip(facts, ends, strict=True)
        if end <= len(kept) or (end == len(kept) + 1 and not zeros)  # all but its end is there
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "facts.jsonl"
        path.write_bytes(kept + bytes(zeros))
        assert jsonl.whole(path) == whole
        jsonl.add(path, {"later": 1})
        assert jsonl.whole(path) == jsonl.newest(path) == [*whole, {"later": 1}]
