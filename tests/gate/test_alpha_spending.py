"""A year of changed recipes promotes few that are no better, however many are tried."""

from datetime import UTC, date, datetime, timedelta

from daybreak.contract.record_types import Night, Verdict
from daybreak.gate.alpha_spending import chance_of
from daybreak.storage.ledger import Entry


def tried(number: int, chance: float | None) -> Entry:
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number)
    night = Night(
        id=str(number), day=at.date(), started_at=at, train_until=at, decide_until=at, budget_usd=0,
        trigger="", code_commit="", previous="",
    )  # fmt: skip
    verdict = Verdict(
        action="reject", champion=1, challenger=2, reason="",
        false_promotion_chance=chance,
    )  # fmt: skip
    return Entry(commit=str(number), subject="", rollback=False, night=night, verdict=verdict)


def year_of_chances(num_nights: int, *, per_year: float = 0.5) -> list[float]:
    past: list[Entry] = []
    for number in range(num_nights):
        day = date(2026, 1, 1) + timedelta(days=number)
        past.insert(0, tried(number, chance_of(past, day=day, alpha=0.05, per_year=per_year)))
    return [
        entry.verdict.false_promotion_chance
        for entry in reversed(past)
        if entry.verdict and entry.verdict.false_promotion_chance
    ]


def test_the_first_recipe_of_a_year_has_half_of_alpha() -> None:
    assert chance_of([], day=date(2026, 1, 1), alpha=0.05, per_year=0.5) == 0.025


def test_a_recipe_a_night_spends_less_than_a_year_allows_in_any_year() -> None:
    chances = year_of_chances(800)
    assert all(sum(chances[start : start + 365]) < 0.50001 for start in range(435))
    assert chances[9] > 0.015
    assert chances[-1] > 0


def test_refreshes_cost_nothing_and_a_year_later_all_is_forgotten() -> None:
    refreshes = [tried(number, None) for number in range(300)]
    assert chance_of(refreshes, day=date(2026, 12, 1), alpha=0.05, per_year=0.5) == 0.025
    assert chance_of([tried(0, 0.4)], day=date(2027, 1, 2), alpha=0.05, per_year=0.5) == 0.025
