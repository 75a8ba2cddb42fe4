"""Nights explore while that pays and is paid for, and then stay with the best."""

from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.extensions.exploration.exploration import ExplorationStep, next_step, of_ways
from daybreak.extensions.exploration.trials import trial_of
from tests.extensions.exploration.ways import Way

ROOMY_USD = 1e9


def step_of(
    *ways: Way,
    explore_usd: float = ROOMY_USD,
    budget_usd: float = ROOMY_USD,
    runs: tuple[int, ...] = (),
    objective: str = "cost",
    late: tuple[Way, ...] = (),
    deadline_hours: float = 6.0,
) -> ExplorationStep:
    trials = [trial_of(way, ways, deadline_s=deadline_hours * 3600, confidence=0.9) for way in late]
    num_ways = len(ways) + len(late)
    prospects = of_ways(
        ways,
        names=[f"way {place}" for place in range(num_ways)],
        doubts=[0.0] * num_ways,
        num_nights=runs or (0,) * num_ways,
        budget_usd=budget_usd,
        trials=[trial for trial in trials if trial],
    )
    return next_step(prospects, objective=objective, explore_usd=explore_usd)


KNOWN, DOUBTFUL = Way(hours=1.0, spread=0.02), Way(hours=1.1, spread=0.4)


def test_a_way_that_may_be_much_cheaper_is_tried():
    step = step_of(KNOWN, DOUBTFUL)
    assert step.taken == 1
    assert "may save $" in step.reason and "trying costs $0.10" in step.reason


def test_nothing_is_explored_without_dollars_for_it():
    step = step_of(KNOWN, DOUBTFUL, explore_usd=0.0)
    assert (step.taken, step.explore_usd) == (0, 0)
    assert "nothing promises more than it costs to try" in step.reason


def test_a_way_that_was_run_often_is_not_explored_again():
    assert step_of(KNOWN, DOUBTFUL, runs=(0, 20)).taken == 0


def test_a_way_whose_worst_is_over_the_budget_is_not_tried():
    assert step_of(KNOWN, DOUBTFUL, budget_usd=1.5).taken == 0


@pytest.mark.parametrize(("objective", "taken"), [("cost", 0), ("time", 1)])
def test_what_is_faster_and_dearer_is_tried_only_for_time(objective, taken):
    faster = Way(hours=0.9, usd_per_hour=4.0, spread=0.1)
    assert step_of(KNOWN, faster, objective=objective).taken == taken


SURE, CHEAP = Way(hours=3.0, usd_per_hour=3.0, spread=0.02), Way(hours=5.5, spread=0.1)


def test_a_cheaper_way_that_may_be_late_is_tried_where_the_night_can_be_saved():
    assert CHEAP.chance(6 * 3600) < 0.9
    step = step_of(SURE, late=(CHEAP,))
    assert step.taken == 1
    assert step.explore_usd == 0  # expected, since being saved is no dearer than the best by much
    assert step_of(SURE, late=(CHEAP,), explore_usd=0.0).taken == 0


def test_what_may_be_late_is_not_tried_where_saving_the_night_is_over_the_budget():
    assert step_of(SURE, late=(CHEAP,), budget_usd=9.2).taken == 0


def test_what_would_save_only_by_being_late_is_not_tried():
    later = Way(hours=5.99, spread=0.02)
    assert later.chance(6 * 3600) > 0.5
    assert step_of(SURE, late=(later,)).taken == 1
    # Its nights differ by as much as is left to the deadline, so it will never be sure enough.
    assert step_of(SURE, late=(later,), runs=(5, 9)).taken == 0


@settings(max_examples=25)
@given(
    st.lists(st.floats(1.0, 3.0), min_size=1, max_size=6), st.floats(0, 10), st.sampled_from(["cost", "time"])
)
def test_what_exploring_is_expected_to_cost_is_within_what_is_left(hours, explore_usd, objective):
    ways = [Way(hours=each) for each in sorted(hours)]
    step = step_of(*ways, explore_usd=explore_usd, objective=objective)
    assert 0 <= step.explore_usd <= explore_usd


def test_the_search_ends_with_the_cheapest_and_stops():
    actual = (1.0, 0.8, 1.4, 0.9)
    thought, runs = [1.0, 1.1, 1.15, 1.2], [1, 0, 0, 0]
    taken = []
    for _ in range(12):
        order = sorted(range(4), key=lambda k: thought[k])
        ways = [Way(hours=thought[k], spread=0.3 if not runs[k] else 0.02) for k in order]
        place = order[step_of(*ways, runs=tuple(runs[k] for k in order)).taken]
        thought[place] = actual[place]
        runs[place] += 1
        taken.append(place)
    assert set(taken[-6:]) == {1}
    assert abs(log(thought[1] / 0.8)) < 1e-9
