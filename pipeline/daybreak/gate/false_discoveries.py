"""Gives each changed recipe its chance of a false promotion, so that few promotions in all are false.

Of 365 recipes that are no better, nine would be promoted at 2.5 %. So recipes share a false discovery rate
q = `gate.false_discovery_rate`: of the changed recipes that are promoted in a year, at most a share q is
expected to be no better. The t-th recipe of the last 365 days, of which R have been promoted before, gets

    q (R + 1) g(t),   g(t) = t^-1.3 / zeta(1.3), which sums to 1

This is e-LOND (Xu & Ramdas 2024), which holds for any dependence among recipes where each is judged by
evidence that may be looked at on any night, as the test over nights is (daybreak/statistics/over_nights.py).
All nights of a recipe against another are one test with one chance, until a changed recipe is promoted or a
version rolled back. A person's approval is no discovery, and lets nobody have more.

LORD and SAFFRON, of the package `online-fdr` among others, spend more evenly, and need independent p-values,
which recipes that are tried on the same nights do not have. A tenth of a chance costs evidence that grows by
its logarithm only, a few more nights. Pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from operator import attrgetter

from scipy import special

from daybreak.contract.record_types import Verdict
from daybreak.storage.ledger import Entry

Recipes = tuple[str, str]  # digests: of the recipe that is tested, and of the champion's
YEAR = timedelta(days=365)
FALL = 1.3  # exponent by which chances fall with the number of recipes


def chance_of(
    past: Sequence[Entry],
    recipes: Recipes | None,
    *,
    day: date,
    rate: float,
    spent: Callable[[Verdict], float | None] = attrgetter("false_promotion_chance"),
) -> float:
    """Returns the chance with which a changed recipe that is no better may ever be promoted.

    Args:
        past: entries of the ledger, newest first; of a year at least.
        recipes: tonight's and the champion's; None where tonight alone judges.
        day: tonight's.
        rate: share of false ones among promotions of changed recipes.
        spent: the chance that a verdict was given.
    """
    tests, num_promoted = _tests(past, day=day, spent=spent)
    going_on = [test.chance for test in tests if test.goes_on and test.recipes == recipes]
    if going_on:
        return going_on[-1]
    share = float((len(tests) + 1) ** -FALL / special.zeta(FALL))
    return min(rate * (num_promoted + 1) * share, 0.5)


def expected(past: Sequence[Entry], recipes: Recipes | None, *, day: date, chance: float) -> float:
    """Returns the false promotions to expect, at most, of the recipes of 365 days, if none were better.

    Arguments as of `chance_of`; `chance` is tonight's.
    """
    tests, _ = _tests(past, day=day, spent=attrgetter("false_promotion_chance"))
    is_counted = any(test.goes_on and test.recipes == recipes for test in tests)
    return sum(test.chance for test in tests) + (0.0 if is_counted else chance)


@dataclass
class _Test:
    """A test of a changed recipe, and whether a further night would be of the same one."""

    recipes: Recipes | None
    chance: float
    goes_on: bool


def _tests(
    past: Sequence[Entry], *, day: date, spent: Callable[[Verdict], float | None]
) -> tuple[list[_Test], int]:
    """Returns the tests of a year, oldest first, and how many of them ended in a promotion by proof.

    A rollback ends all tests, and so does the promotion of a changed recipe.
    """
    tests: list[_Test] = []
    num_promoted, seen = 0, set[str]()
    for entry in reversed(past):
        verdict = entry.verdict
        chance = spent(verdict) if verdict else None
        is_tried = chance and abs(day - entry.night.day) < YEAR and entry.night.id not in seen
        if verdict and chance and is_tried:
            seen.add(entry.night.id)
            test = verdict.recipe_test
            recipes = (test.recipe, test.against) if test else None
            if recipes is None or not any(one.goes_on and one.recipes == recipes for one in tests):
                tests.append(_Test(recipes=recipes, chance=chance, goes_on=recipes is not None))
            num_promoted += entry.promoted and verdict.action == "promote"
        if entry.rollback or (is_tried and entry.promoted):
            for one in tests:
                one.goes_on = False
    return tests, num_promoted
