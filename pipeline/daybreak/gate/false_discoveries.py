"""Gives each changed recipe its chance of a false promotion, so that few promotions in all are false.

Of 365 recipes that are no better, nine would be promoted at 2.5 %. So recipes share a false discovery rate
q = `gate.false_discovery_rate`: of the changed recipes that are promoted in a year, at most a share q is
expected to be no better. The t-th recipe of the last 365 days, of which R have been promoted before, gets

    q (R + 1) g(t),   g(t) = t^-1.3 / zeta(1.3), which sums to 1

This is e-LOND (Xu & Ramdas 2024), which holds for any dependence among recipes where each is judged by
evidence that may be looked at on any night, as the test over nights is (daybreak/statistics/over_nights.py).
All nights of a recipe are one test with one chance; a recipe that served and is tried again is another.

LORD and SAFFRON, of the package `online-fdr` among others, spend more evenly, and need independent p-values,
which recipes that are tried on the same nights do not have. A tenth of a chance costs evidence that grows by
its logarithm only, a few more nights. Pure.
"""

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from operator import attrgetter

from scipy import special

from daybreak.contract.record_types import Verdict
from daybreak.storage.ledger import Entry

YEAR = timedelta(days=365)
FALL = 1.3  # exponent by which chances fall with the number of recipes


def chance_of(
    past: Sequence[Entry],
    *,
    recipe: str,
    day: date,
    rate: float,
    spent: Callable[[Verdict], float | None] = attrgetter("false_promotion_chance"),
) -> float:
    """Returns the chance with which a changed recipe that is no better may ever be promoted.

    Args:
        past: entries of the ledger, newest first; of a year at least.
        recipe: tonight's, a digest; "" where tonight alone judges it.
        day: tonight's.
        rate: share of false ones among promotions of changed recipes.
        spent: the chance that a verdict was given.
    """
    known: dict[str, float] = {}  # of recipes whose test goes on
    num_tried = num_promoted = 0
    for chance, entry in _tried(past, day=day, spent=spent):
        name = _recipe_of(entry)
        num_tried += name not in known
        known.setdefault(name, chance)
        if entry.promoted:
            num_promoted += 1
            del known[name]
    if recipe in known:
        return known[recipe]
    share = float((num_tried + 1) ** -FALL / special.zeta(FALL))
    return min(rate * (num_promoted + 1) * share, 0.5)


def expected(past: Sequence[Entry], *, recipe: str, day: date, chance: float) -> float:
    """Returns the false promotions to expect, at most, of the recipes of 365 days, if none were better.

    Arguments as of `chance_of`; `chance` is tonight's.
    """
    known: dict[str, float] = {}
    total = 0.0
    for one, entry in _tried(past, day=day, spent=attrgetter("false_promotion_chance")):
        name = _recipe_of(entry)
        total += one if name not in known else 0.0
        known.setdefault(name, one)
        if entry.promoted:
            del known[name]
    return total if recipe in known else total + chance


def _tried(
    past: Sequence[Entry], *, day: date, spent: Callable[[Verdict], float | None]
) -> list[tuple[float, Entry]]:
    """Returns the verdicts of a year on changed recipes with their chances, oldest first."""
    tried = {
        entry.night.id: (chance, entry)
        for entry in past
        if entry.verdict and (chance := spent(entry.verdict)) and abs(day - entry.night.day) < YEAR
    }
    return [*tried.values()][::-1]


def _recipe_of(entry: Entry) -> str:
    """Returns the recipe that a verdict's test over nights is of, or the night where that alone judged."""
    assert entry.verdict
    test = entry.verdict.recipe_test
    return test.recipe if test else f"night {entry.night.id}"
