"""The worst case of a plan on spot is worse than whatever spot does, and never above the budget."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.contract.backend import TICK_S
from daybreak.extensions.spot.steering import place
from daybreak.extensions.spot.survival import HOUR_S
from daybreak.extensions.spot.worst_case import WorstCase, worst_case
from daybreak.machines.startup import restart_s
from tests.extensions.spot.test_steering import BEGUN, BOUGHT, ONCE, PLAN

UNTIL_S, BOUGHT_USD = 18 * HOUR_S, 3.6
PRICED = replace(PLAN, usd_per_hour=1.0, fallbacks=(replace(BOUGHT, usd_per_hour=BOUGHT_USD),))


def worst_of(budget_usd: float, plan=PRICED) -> WorstCase:
    return worst_case(plan, bought_usd_per_hour=BOUGHT_USD, until_s=UNTIL_S, budget_usd=budget_usd)


def night(works: list[bool]) -> float:
    """Dollars of a night on which spot works in some stretches of half an hour, and is lost in the others."""
    now = done_s = usd = 0.0
    while done_s < PLAN.forecast.expected_s and now < UNTIL_S:
        seen = int(done_s / PLAN.forecast.expected_s * PLAN.num_samples)
        chosen = place(PRICED, replace(BEGUN, now=now, deadline=UNTIL_S, seen=seen, attempts=ONCE))
        if chosen is not None and not chosen.spot:
            rest_s = PLAN.forecast.expected_s - done_s + restart_s(PLAN)
            return usd + min(rest_s, UNTIL_S - now) / HOUR_S * BOUGHT_USD
        now += TICK_S
        if chosen is not None:
            usd += TICK_S / HOUR_S
            done_s += TICK_S * works[int(now / 1800) % len(works)]
    return usd


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_no_night_costs_more(works):
    assert night(works) <= 1.02 * worst_of(inf).worst_usd


def test_the_worst_is_far_above_what_is_expected_and_below_all_of_it_bought_beside_spot():
    worst = worst_of(inf).worst_usd
    assert PLAN.forecast.expected_s / HOUR_S * BOUGHT_USD < worst < 18 * (1 + BOUGHT_USD)
    assert worst_of(inf).paid_from == 0


@pytest.mark.slow
@settings(max_examples=20)
@given(st.floats(5, 70), st.floats(0, 20))
def test_a_larger_budget_pays_for_the_rest_sooner_and_none_is_passed(budget_usd, more_usd):
    small, large = worst_of(budget_usd), worst_of(budget_usd + more_usd)
    assert small.worst_usd <= budget_usd
    assert small.paid_from >= large.paid_from
    assert small.worst_usd <= large.worst_usd
