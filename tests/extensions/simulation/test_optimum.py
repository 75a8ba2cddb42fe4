"""Nobody pays less than the optimum, and it is what trying everything finds."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.extensions.simulation.baselines import greedy, on_demand, uniform_progress
from daybreak.extensions.simulation.optimum import optimum_usd
from daybreak.extensions.simulation.replay import replay
from daybreak.extensions.spot.policies import decide
from daybreak.extensions.spot.states import Place
from tests.extensions.spot.markets import TICK_S, job, trace

capacity = st.text("#.", min_size=6, max_size=6)


def by_trying(task, zones) -> float:
    """The least over every sequence of places."""
    choices = [None, *(Place(zone.zone, spot) for zone in zones for spot in (True, False))]
    least = float("inf")
    for places in product(choices, repeat=len(zones[0].up)):
        refused = []

        def follow(state, places=places, refused=refused):
            place = places[round(state.now_s / TICK_S)]
            if place is not None and place.zone in state.refused and place.spot:
                refused.append(place)
                return None
            return place

        outcome = replay(follow, task, zones)
        if not outcome.missed and not refused:
            least = min(least, outcome.usd)
    return least


@pytest.mark.slow
@settings(max_examples=20)
@given(capacity, st.floats(0.2, 2.0), st.floats(0.5, 4.5))
def test_it_is_what_trying_everything_finds(up, restart, work):
    task = job(work=round(work * 5) / 5, deadline=6, restart=round(restart * 5) / 5)
    zones = [trace(up)]
    assert optimum_usd(task, zones) == pytest.approx(by_trying(task, zones))


@pytest.mark.slow
def test_it_is_so_with_two_regions_and_a_checkpoint_that_moves():
    task = job(work=2, deadline=5, restart=1, egress_usd=0.1)
    zones = [trace("##..#", zone="a-1-a"), trace(".#.##", zone="b-1-a", spot=1.3)]
    assert optimum_usd(task, zones) == pytest.approx(by_trying(task, zones))


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(st.text("#.", min_size=40, max_size=40), min_size=1, max_size=3), st.integers(5, 36))
def test_nobody_pays_less(ups, work):
    task = job(work=work, deadline=40)
    zones = [
        trace(up, zone=f"{name}-1-a", spot=price)
        for up, name, price in zip(ups, "abc", (1.0, 1.3, 2.0), strict=False)
    ]
    least = optimum_usd(task, zones)
    for policy in (decide, greedy, uniform_progress, on_demand):
        outcome = replay(policy, task, zones)
        assert outcome.missed or outcome.usd >= least - 1e-9


def test_what_cannot_be_done_in_time_costs_infinitely_much():
    assert optimum_usd(job(work=10, deadline=10), [trace("#" * 10)]) == float("inf")
