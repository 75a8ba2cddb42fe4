"""What may be late is tried where the night can be saved, and what that costs."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from daybreak.contract.units import HOUR_S
from daybreak.extensions.exploration.trials import Trial, trial_of
from daybreak.planning.fallback import LOOK_S, SPARE_S, could_save
from tests.extensions.exploration.ways import Way

CONFIDENCE = 0.9
way_of = partial(Way, spread=0.1, start_s=300.0)
SLOW, FAST = way_of(hours=5.5), way_of(hours=3.0, usd_per_hour=3.0)


def trial(way: Way, *rescues: Way, hours: float = 6.0) -> Trial[Way] | None:
    return trial_of(way, rescues, deadline_s=hours * HOUR_S, confidence=CONFIDENCE)


def test_what_is_probably_in_time_is_tried_where_another_way_could_save_the_night():
    made = trial(SLOW, way_of(hours=5.4), FAST)
    assert made is not None
    assert made.rescue is FAST


def test_what_is_probably_late_is_not_tried():
    assert trial(way_of(hours=6.1), FAST) is None


def test_what_nothing_could_save_is_not_tried():
    assert trial(SLOW) is None
    assert trial(SLOW, way_of(hours=5.0)) is None


def test_a_night_costs_between_being_in_time_and_being_saved():
    made = trial(SLOW, FAST)
    assert made is not None
    assert SLOW.expected_usd < made.expected_usd < made.late_usd < made.worst_usd
    looked_usd = (300 + LOOK_S) / HOUR_S
    assert made.late_usd == pytest.approx(looked_usd + FAST.expected_usd)


def test_the_likelier_it_is_late_the_more_a_night_costs_beyond_the_way_itself():
    beyond = []
    for hours in (6.8, 6.2, 5.9):
        made = trial(SLOW, FAST, hours=hours)
        assert made is not None
        beyond.append(made.expected_usd)
    assert beyond == sorted(beyond)


@given(r=st.floats(0, 1), spread=st.floats(0.02, 0.3), hours=st.floats(1, 5))
def test_a_night_that_could_be_saved_is_saved_with_the_chance_of_a_plan_whatever_goes_together(
    r, spread, hours
):
    rescue = way_of(hours=hours, spread=spread)
    expected_s, margin_s = rescue.expected_s, 300 + LOOK_S + SPARE_S
    # The least deadline by which it could: bisection on the rule itself.
    low, high = expected_s, 20 * expected_s + margin_s
    for _ in range(60):
        middle = (low + high) / 2
        saves = could_save(rescue, start_s=300, deadline_s=middle, confidence=CONFIDENCE)
        low, high = (low, middle) if saves else (middle, high)
    z = float(ndtri(CONFIDENCE))
    left = np.log((high - margin_s - rescue.start_s) / HOUR_S / hours) / spread
    # The other way is as late as it is with that chance, z deviations; its surprise carries over by r.
    chance = 1.0 if r == 1 else float(ndtr((left - r * z) / np.sqrt(1 - r**2)))
    assert left >= r * z
    assert chance >= CONFIDENCE - 1e-6
