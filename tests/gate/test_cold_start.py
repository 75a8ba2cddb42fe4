"""Nights train cold where their chain is spent, its anchor is old, or warm starts may have lost much."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from daybreak.contract.record_parts import Chain, Difference
from daybreak.contract.record_types import Anchor, Champion, Release
from daybreak.gate.chain import MOST_DAYS
from daybreak.gate.cold_start import why_cold
from daybreak.storage.ledger import Entry
from tests.minimal_records import minimal_night, minimal_training, promotion

FIRST = date(2026, 1, 1)
ANCHOR = Anchor(release=Release(version=1, replaced=0), since=FIRST)
MARGIN = 0.03


def trained(
    day: int,
    *,
    version: int,
    warm: bool,
    gained: float = 0.0,
    error: float = 0.004,
    served: bool = True,
    asked: str = "",
    **chain: object,
) -> Entry:
    """A night that trained a version in place of the one before, which was `gained` worse."""
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)
    stands = Chain(
        anchor=1,
        since=FIRST,
        margin=MARGIN,
        challenger=Difference(mean=0.0, error=error),
        step=Difference(mean=gained, error=error),
        **chain,
    )
    verdict = promotion(champion=version - 1, challenger=version, chain=stands)
    return Entry(
        commit=str(day),
        subject="",
        rollback=False,
        night=minimal_night(at, id=str(day), cold=asked),
        champion=Champion(version=version - 1, replaced=version - 2, anchor=ANCHOR),
        training=minimal_training(warm=warm),
        verdict=verdict if served else replace(verdict, action="reject", inconclusive=True),
        release=Release(version=version, replaced=version - 1) if served else None,
    )


def nights(days: Iterable[int]) -> list[Entry]:
    """A cold training on day 1 and warm ones on these, newest first: version 1 of day 1, and so on."""
    warm = [trained(day, version=number, warm=True) for number, day in enumerate(days, 2)]
    return [*reversed(warm), trained(1, version=1, warm=False)]


def asked(past: list[Entry], day: int, *, when_spent: str = "cold") -> str:
    newest = next(one for one in past if one.promoted)
    champion = Champion(**vars(newest.release), anchor=ANCHOR)
    return why_cold(champion, past, day=FIRST + timedelta(days=day), when_spent=when_spent)


def test_training_begins_cold_where_the_chain_is_spent() -> None:
    past = [trained(3, version=3, warm=True, served=False, spent=True), *nights([2])]
    assert "spent the margin" in asked(past, 4)
    assert asked(past, 4, when_spent="anchor") == ""
    assert asked([trained(3, version=3, warm=True), *nights([2])], 4) == ""
    assert why_cold(None, past, day=FIRST, when_spent="cold") == ""


def test_training_begins_cold_where_the_anchor_is_old_and_a_week_passes_before_the_next_try() -> None:
    past = nights([2])
    assert asked(past, MOST_DAYS - 1) == ""
    assert asked(past, MOST_DAYS) == "version 1, the anchor, is 28 days old"
    tried = trained(MOST_DAYS, version=3, warm=False, asked="the anchor is old", served=False)
    assert [bool(asked([tried, *past], MOST_DAYS + day)) for day in (1, 6, 7)] == [False, False, True]


def test_a_cold_training_follows_seven_warm_starts_as_long_as_none_was_compared() -> None:
    assert asked(nights(range(2, 8)), 8) == ""
    assert (
        asked(nights(range(2, 9)), 9)
        == "7 warm starts since the last cold training may have lost half of the margin"
    )
    weekly = nights(range(8, 24, 7))
    assert asked(weekly, 25) == ""  # warm starts count, not days


def test_cold_trainings_follow_as_fast_as_warm_starts_lose_by_what_they_gained() -> None:
    """Seven warm starts that lost 0.0209 lose half of the margin of 0.03 in 5."""

    def next_cold(*, gained: float) -> int:
        past = [trained(9, version=9, warm=False, gained=gained), *nights(range(2, 9))]
        for day in range(10, 25):
            if asked(past, day):
                return day - 10
            past = [trained(day, version=day, warm=True), *past]
        return 99

    assert next_cold(gained=0.0209) == 5
    assert next_cold(gained=0.0) == 99  # at most 0.0009 a start, by the upper end of the interval: 16 starts


@pytest.mark.parametrize(
    ("tried", "waits"),
    [
        ({"gained": -0.001, "error": 0.012}, 2),
        ({"gained": -0.1, "error": 0.004}, None),  # cold trainings are the worse ones: after 28 warm starts
        ({"gained": -0.001, "error": 0.012, "least_margin": 0.05}, 7),  # versions serve by luck alone
    ],
)
def test_a_cold_training_that_did_not_serve_is_tried_again(
    tried: dict[str, float], waits: int | None
) -> None:
    past = [
        trained(9, version=9, warm=False, served=False, asked="7 warm starts", **tried),
        *nights(range(2, 9)),
    ]
    days = [day for day in range(1, 9) if asked(past, 9 + day)]
    assert min(days, default=None) == waits


def test_a_cold_training_that_fails_leaves_the_next_nights_to_warm_ones() -> None:
    failed = replace(
        trained(9, version=9, warm=False, served=False, asked="7 warm starts"), training=None, verdict=None
    )
    past = [failed, *nights(range(2, 9))]
    assert [bool(asked(past, 9 + day)) for day in (1, 6, 7)] == [False, False, True]


def test_a_cold_version_that_was_taken_back_does_not_count() -> None:
    past = [trained(9, version=9, warm=False, gained=0.0209), *nights(range(2, 9))]
    back = replace(past[1], rollback=True, release=Release(version=8, replaced=9))
    assert asked(past, 10) == ""
    champion = Champion(version=8, replaced=9, anchor=ANCHOR)
    day = FIRST + timedelta(days=10)
    assert why_cold(champion, [back, *past], day=day, when_spent="cold").startswith("7 warm starts")
