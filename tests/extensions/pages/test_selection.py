"""What a board shows of the nights: filtered, searched, sorted, by pages."""

from dataclasses import replace
from datetime import UTC, date, datetime

from hypothesis import given
from hypothesis import strategies as st

from daybreak.extensions.pages.selection import PER_PAGE, Query, query_of, select
from daybreak.report.night_rows import row_of
from tests.report.histories import nights

ROWS = [("shop", row_of(entry)) for entry in nights(60, last=date(2026, 11, 24))][::-1]
BOTH = [*ROWS, *(("fraud", row) for _, row in ROWS[:5])]


def test_nights_are_found_by_model_outcome_and_words_of_their_reason() -> None:
    assert {name for name, _ in select(BOTH, Query(model="fraud")).shown} == {"fraud"}
    failed = select(ROWS, Query(outcome="failed"))
    assert 0 < failed.num < 60
    assert {row.outcome for _, row in failed.shown} == {"failed"}
    assert select(ROWS, Query(text="QUARANTINED rows")).num == failed.num
    assert select(ROWS, Query(text="no such word")).num == 0
    assert select(ROWS, Query(text="g2-standard")).num == 60 - failed.num  # which had no plan
    assert select(ROWS, Query(text="I/O")).num == select(ROWS, Query(text="io i/o")).num
    assert 0 < select(ROWS, Query(text="i/o")).num < 30


def test_the_words_that_a_row_shows_beside_its_verdict_find_it() -> None:
    row = replace(next(row for _, row in ROWS if row.outcome == "kept"), reason="", rental="", rented=())
    name = "manual__2026-11-21T20-26-01.192720-00-00"
    at = datetime(2026, 11, 22, 14, 3, tzinfo=UTC).timestamp()
    told = {
        "by ann": replace(row, by="Ann"),
        "at train": replace(row, failed="train"),
        "rolled back since": replace(row, release=(12, 11)),
        "manual-57b6": replace(row, night=name),
        "14:03 UTC": replace(row, outcome="rollback", release=(11, 12), closed_at=at),
    }
    nights = [("shop", one) for one in told.values()]
    for words, one in told.items():
        found = select(nights, Query(text=words), taken_back={("shop", 12)})
        assert [row for _, row in found.shown] == [one], words
    assert select(nights, Query(text="rolled back since"), taken_back={("fraud", 12)}).num == 0


@given(st.sampled_from(["day", "score", "effect", "ready", "cost", "predicted", "rows"]), st.booleans())
def test_sorting_keeps_each_night_and_puts_those_without_a_figure_last(column: str, descending: bool) -> None:
    shown = select(ROWS, Query(sort=column, descending=descending)).shown
    assert sorted(row.day for _, row in shown) == sorted(row.day for _, row in ROWS)
    if column == "cost":
        usd = [row.usd for _, row in shown]
        known = [value for value in usd if value is not None]
        assert usd[: len(known)] == sorted(known, reverse=descending)


def test_a_page_beyond_the_last_is_the_last() -> None:
    many = [*ROWS * 20]
    page = select(many, Query(page=9))
    assert (page.page, page.num_pages, len(page.shown)) == (2, 2, 1200 - PER_PAGE)


@given(st.dictionaries(st.sampled_from(["model", "outcome", "q", "sort", "page", "other"]), st.text()))
def test_any_address_asks_for_something(values: dict[str, str]) -> None:
    assert select(BOTH, query_of(values)).num <= 65


def test_an_address_with_a_sign_sorts_the_other_way() -> None:
    assert query_of({"sort": "-cost", "page": "3"}) == Query(sort="cost", descending=True, page=3)
