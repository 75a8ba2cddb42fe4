"""Divides a year's false promotions among the changed recipes that are tried in it.

Each night with a changed recipe is a test: of 365 recipes that are no better, nine would be promoted at
2.5 %. So a night gets a chance of a false promotion that falls with what earlier ones were given. With the
sum s of the chances of the last 365 days, and B = `gate.false_promotions_per_year`, it is

    alpha / 2 (1 - s / B)

Then s stays below B, and so does the expected number of false promotions in a year, for any number of recipes
and any dependence among them. The first recipes of a year have nearly all of alpha / 2. Online control of the
false discovery rate (LORD, SAFFRON) would give the first recipe a tenth of that, and more only after
promotions, of which a year has few. Pure.
"""

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from operator import attrgetter

from daybreak.contract.record_types import Verdict
from daybreak.storage.ledger import Entry

YEAR = timedelta(days=365)
LEAST = 1e-6  # where params.yaml allows fewer than were allowed before


def chance_of(
    past: Sequence[Entry],
    *,
    day: date,
    alpha: float,
    per_year: float,
    spent: Callable[[Verdict], float | None] = attrgetter("false_promotion_chance"),
) -> float:
    """Returns the chance with which a changed recipe that is no better may be promoted tonight.

    Args:
        past: entries of the ledger, newest first; of a year at least.
        day: tonight's.
        alpha: of both ends of an interval.
        per_year: false promotions to expect in a year, at most.
        spent: what earlier verdicts were given of the same sum.
    """
    tried = {
        entry.night.id: chance
        for entry in past
        if entry.verdict and (chance := spent(entry.verdict)) and abs(day - entry.night.day) < YEAR
    }
    return alpha / 2 * max(LEAST, 1 - sum(tried.values()) / per_year)
