"""Few promotions of changed recipes are false, however many recipes are tried."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest

from daybreak.contract.record_parts import RecipeTest
from daybreak.contract.record_types import Release, Verdict
from daybreak.gate.false_discoveries import chance_of, expected
from daybreak.storage.ledger import Entry
from tests.minimal_records import minimal_night

FIRST = date(2026, 1, 1)


def tried(number: int, chance: float | None, *, recipe: str = "", promoted: bool = False) -> Entry:
    """A night, `number` days after the first, on a recipe that is tested over nights, or by tonight alone."""
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number)
    night = minimal_night(at, id=str(number))
    test = RecipeTest(recipe=recipe, against="a", days=(at.date(),), least_nights=7) if recipe else None
    verdict = Verdict(
        action="promote" if promoted else "reject",
        champion=1,
        challenger=2,
        reason="",
        false_promotion_chance=chance,
        recipe_test=test,
    )
    release = Release(version=2, replaced=1) if promoted else None
    return Entry(
        commit=str(number), subject="", rollback=False, night=night, verdict=verdict, release=release
    )


def chance(past: list[Entry], *, recipe: str = "new", number: int = 0) -> float:
    recipes = (recipe, "a") if recipe else None
    return chance_of(past, recipes, day=FIRST + timedelta(days=number), rate=0.1)


def test_the_first_recipe_of_a_year_has_a_chance_of_a_fortieth() -> None:
    assert chance([]) == pytest.approx(0.0254, abs=1e-4)


def test_all_recipes_of_a_year_without_a_promotion_have_the_rate_together() -> None:
    past: list[Entry] = []
    for number in range(365):
        past.insert(0, tried(number, chance(past, recipe="", number=number)))
    chances = [entry.verdict.false_promotion_chance for entry in past if entry.verdict]
    assert 0.07 < sum(one or 0 for one in chances) < 0.1
    assert chances == sorted(chances)


def test_all_nights_of_a_recipe_are_one_test_with_one_chance() -> None:
    first = chance([])
    nights = [tried(number, first, recipe="new") for number in range(9, -1, -1)]
    assert chance(nights, number=10) == first
    assert expected(nights, ("new", "a"), day=FIRST + timedelta(days=10), chance=first) == first
    other = chance(nights, recipe="other", number=10)
    assert other == pytest.approx(first * 2**-1.3)
    assert expected(nights, ("other", "a"), day=FIRST + timedelta(days=10), chance=other) == first + other


def test_a_promotion_lets_later_recipes_have_more_and_a_recipe_that_served_is_another() -> None:
    served = [tried(0, chance([]), recipe="new", promoted=True)]
    assert chance(served, recipe="next", number=1) == pytest.approx(2 * chance([]) * 2**-1.3)
    assert chance(served, recipe="new", number=1) == chance(served, recipe="next", number=1)


def test_a_persons_approval_is_no_discovery_and_a_rollback_begins_a_new_test() -> None:
    first = chance([])
    proven = tried(0, first, recipe="new", promoted=True)
    approved = replace(proven, verdict=replace(proven.verdict, action="reject", inconclusive=True))
    assert chance([approved], recipe="next", number=1) == pytest.approx(first * 2**-1.3)
    waiting = tried(0, first, recipe="new")
    back = replace(tried(1, None), rollback=True)
    assert chance([waiting], number=2) == first
    assert chance([back, waiting], number=2) == pytest.approx(first * 2**-1.3)


def test_refreshes_cost_nothing_and_a_year_later_all_is_forgotten() -> None:
    refreshes = [tried(number, None) for number in range(299, -1, -1)]
    assert chance(refreshes, number=300) == chance([])
    assert chance([tried(0, 0.02)], number=366) == chance([])


def test_at_most_the_rate_of_promotions_is_false_where_half_of_the_recipes_are_better() -> None:
    """Recipes of known evidence: of no effect e^(z - 1/2), of a strong one always enough."""
    rng = np.random.default_rng(11)
    shares = []
    for _ in range(60):
        past: list[Entry] = []
        false = num_promoted = 0
        for number in range(120):
            one = chance(past, recipe="", number=number)
            is_better = rng.random() < 0.5
            wins = is_better or np.exp(3 * rng.normal() - 4.5) >= 1 / one
            false += wins and not is_better
            num_promoted += wins
            past.insert(0, tried(number, one, promoted=bool(wins)))
        shares.append(false / max(num_promoted, 1))
    assert np.mean(shares) <= 0.1
