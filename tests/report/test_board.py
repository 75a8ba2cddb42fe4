import re
from dataclasses import replace

from nights import sixty, whole
from rich.console import Console

from pipeline.ledger import Entry
from pipeline.report.board import board, status_table


def printed(history: list[Entry]) -> str:
    console = Console(width=160)
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
        subject="rollback to version 10",
        release=replace(entry.release, champion=10, replaced=12),
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


def test_the_name_of_a_night_is_no_markup() -> None:
    entry = whole()
    entry = replace(entry, night=replace(entry.night, id="[red]x[/red]"))
    assert "[red]x[/red]" in printed([entry])
