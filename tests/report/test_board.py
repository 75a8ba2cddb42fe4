import re
from dataclasses import replace
from datetime import UTC, datetime

from rich.console import Console

from pipeline.report import outcome
from pipeline.report.board import board, status_table
from pipeline.storage.ledger import Entry
from tests.report.nights import sixty, whole


def printed(history: list[Entry], *, width: int = 160) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(status_table(history))
    return capture.get()


def rolled_back() -> Entry:
    entry = whole(12)
    assert entry.release
    assert entry.verdict
    return replace(
        entry,
        rollback=True,
        closed_at=datetime(2026, 11, 22, 14, 3, tzinfo=UTC),
        subject="rollback to version 10",
        release=replace(entry.release, version=10, replaced=12),
        verdict=replace(entry.verdict, action="reject", reason="complaints of customers"),
    )


def test_the_board_has_a_row_for_every_night() -> None:
    html = board(sixty())
    assert len(re.findall(r'<th scope="row"', html)) == 60
    assert "60 nights, 48&nbsp;promoted, 3&nbsp;failed; version 60 serves." in html
    assert "://" not in html
    assert len(html.encode()) < 500_000


def test_the_board_of_no_nights_says_how_to_get_one() -> None:
    assert "No nights yet." in board([])


def test_a_rollback_is_on_the_board_with_its_reason() -> None:
    html = board([rolled_back(), *sixty()[:2]])
    assert "rolled back" in html
    assert "complaints of customers" in html
    assert "2 nights" in html
    assert "2026-11-22" in html
    assert "14:03 UTC" in html


def test_what_people_typed_is_escaped() -> None:
    entry = whole()
    assert entry.verdict
    entry = replace(entry, verdict=replace(entry.verdict, reason='"><script>'))
    assert "<script" not in board([entry])


def test_the_status_has_the_columns_that_were_promised() -> None:
    text = printed([whole()])
    heads = ("day", "night", "verdict", "champion", "hours against deadline", "dollars", "bound")
    positions = [text.index(head) for head in heads]
    assert positions == sorted(positions)
    assert re.search(r"2011-11-08 +2011-11-08 +promoted +12 +0\.02\d of 18 +\$0\.\d\d +compute", text)


def test_a_failed_night_is_in_the_status_with_its_gaps() -> None:
    failed = next(entry for entry in sixty() if entry.training is None)
    assert re.search(r"failed +\d+ +– of 18 +– +–", printed([failed]))


def test_a_rollback_is_in_the_status_with_its_own_time_and_nothing_of_the_night_it_goes_back_to() -> None:
    lines = printed([rolled_back(), whole(12)]).splitlines()
    assert lines[1].split() == ["2026-11-22", "14:03", "rolled", "back", "10"]
    assert "promoted" in lines[2]


def test_the_status_keeps_its_verdicts_in_a_narrow_terminal() -> None:
    entry = whole()
    name = "manual__2026-11-21T20-26-01.192720-00-00"
    long = replace(entry, night=replace(entry.night, id=name))
    text = printed([long, rolled_back(), *sixty()[:30]], width=80)
    assert "verdict" in text
    for word in ("promoted", "rolled back", "rejected"):
        assert word in text
    assert re.search(r"2011-11-08 +manual__\S*… +promoted +12 ", text)
    assert max(map(len, text.splitlines())) <= 80


def test_the_page_of_a_night_says_that_it_was_rolled_back_since() -> None:
    told = outcome.since([rolled_back(), whole(12)])
    assert told == "Since 2026-11-22 14:03 UTC, version 10 serves again: complaints of customers."
    assert outcome.since([whole(12)]) == ""


def test_the_name_of_a_night_is_no_markup() -> None:
    entry = whole()
    entry = replace(entry, night=replace(entry.night, id="[red]x[/red]"))
    assert "[red]x[/red]" in printed([entry])
