"""The hours of a live test follow from the traffic of the last days."""

import math

import pytest

from daybreak.extensions.live_test.forecast import Volume, detectable, hours_needed
from daybreak.extensions.live_test.ramp import Pace

PACE = Pace(shares=(0.01, 0.05, 0.25, 0.5), units=50, hours=0.25)
ASKED = {"pace": PACE, "alpha": 0.05}


def crowd(users_per_hour: float, sd: float = 0.25) -> Volume:
    return Volume(users_per_hour=users_per_hour, sd=sd, days=7.0)


def test_the_hours_needed_show_one_margin_at_80_percent_power_and_fewer_do_not():
    needed = hours_needed(crowd(2000), margin=0.01, longest=24, **ASKED)
    assert 2 < needed < 22
    assert detectable(crowd(2000), hours=needed, **ASKED) <= 0.01
    assert detectable(crowd(2000), hours=needed - 0.1, **ASKED) > 0.01


def test_twice_the_users_need_less_than_the_hours_but_for_the_ramp():
    few, many = (hours_needed(crowd(users), margin=0.01, longest=24, **ASKED) for users in (2000, 4000))
    assert few / 2 <= many < few


def test_a_night_that_shows_the_margin_with_less_power_needs_all_of_its_hours():
    longest = 0.7 * hours_needed(crowd(2000), margin=0.01, longest=24, **ASKED)
    assert hours_needed(crowd(2000), margin=0.01, longest=longest, **ASKED) == longest


@pytest.mark.parametrize("before", [crowd(50), crowd(0), crowd(2000, sd=0.0), crowd(2000, sd=math.nan)])
def test_no_hours_are_asked_for_where_the_whole_night_would_hardly_show_it_or_nothing_tells(before):
    assert hours_needed(before, margin=0.01, longest=24, **ASKED) == 0
