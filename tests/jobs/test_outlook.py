"""When training will be done: what the heartbeats say, and how far that is off."""

import random
from datetime import UTC, datetime, timedelta
from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.jobs.outlook import Rate, Risk, measured, outlook, weighed
from daybreak.training.recipe import Progress

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
SAFE = Risk(mean_time_to_loss_s=1e12, restart_s=0.0, every_s=600.0)


def beat(at_s: float, seen: float, rate: float) -> Progress:
    return Progress(
        time=BEGUN + timedelta(seconds=at_s),
        seen=round(seen),
        num_updates=round(seen / 8),
        loss=1.0,
        rate=0.1,
        samples_per_s=rate,
        memory_bytes=1,
    )


def beats(rates: list[float], *, every_s: float = 10.0) -> list[Progress]:
    made, seen = [beat(0.0, 0, rates[0])], 0.0
    for number, rate in enumerate(rates, 1):
        seen += rate * every_s
        made.append(beat(number * every_s, seen, rate))
    return made


def test_a_steady_rate_is_known_the_better_the_longer_it_was_measured():
    short, long = measured(beats([100.0] * 3)), measured(beats([100.0] * 300))
    assert short and long
    assert short.samples_per_s == pytest.approx(100) == long.samples_per_s
    assert 0.1 < short.error < 0.13
    assert long.error < 0.03


def test_the_time_between_losing_a_machine_and_going_on_is_no_rate():
    before, after = beats([100.0] * 30), beats([100.0] * 30)
    moved = [beat(1000 + (b.time - BEGUN).total_seconds(), 2000 + b.seen, b.samples_per_s) for b in after]
    rate = measured([*before, *moved])
    assert rate
    assert rate.samples_per_s == pytest.approx(100)
    assert measured(before[:1]) is None
    assert measured([]) is None


def test_the_plan_holds_until_something_was_measured_and_gives_way_where_it_is_wrong():
    plan = Rate(samples_per_s=100, error=0.08)
    assert weighed(plan, None) is plan
    agrees = weighed(plan, Rate(samples_per_s=104, error=0.1))
    assert 100 < agrees.samples_per_s < 104
    assert agrees.error < 0.08
    wrong = weighed(plan, Rate(samples_per_s=50, error=0.05))
    assert wrong.samples_per_s == pytest.approx(50, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("slowly", [False, True])
def test_the_interval_holds_in_nine_of_ten_runs(slowly):
    """Of runs whose updates vary, alone or over minutes; measured for a third of the time."""
    draw, held, sum_of_chances = random.Random(7), 0, 0.0
    for _ in range(400):
        level, rates = draw.gauss(0, 0.08), []
        for number in range(600):
            if slowly and number % 30 == 0:
                level = draw.gauss(0, 0.2)
            rates.append(100 * exp((level if slowly else 0.0) + draw.gauss(0, 0.3)))
        seen = beats(rates[:200])
        rate = measured(seen)
        assert rate
        todo, rest_s = 10 * sum(rates[200:]), 4000.0
        forecast = outlook(rate, todo=todo, left_s=rest_s, start_s=0.0, risk=SAFE)
        held += forecast.interval[0] <= rest_s <= forecast.interval[1]
        sum_of_chances += forecast.chance
    assert 0.85 <= held / 400 <= 0.995
    assert sum_of_chances / 400 == pytest.approx(
        0.5, abs=0.06
    )  # the deadline is when it is done, so even odds


@given(
    todo=st.floats(1, 1e6),
    left_s=st.floats(1, 1e5),
    more=st.floats(0, 1e4),
    error=st.floats(0.01, 0.5),
    start_s=st.floats(0, 1000),
)
def test_more_time_or_less_work_never_makes_it_less_likely(todo, left_s, more, error, start_s):
    rate = Rate(samples_per_s=50, error=error, noise=error)
    risk = Risk(mean_time_to_loss_s=7200, restart_s=300, every_s=600)
    forecast = outlook(rate, todo=todo, left_s=left_s, start_s=start_s, risk=risk)
    assert forecast.interval[0] <= forecast.rest_s <= forecast.interval[1]
    later = outlook(rate, todo=todo, left_s=left_s + more, start_s=start_s, risk=risk)
    assert later.chance >= forecast.chance
    if forecast.rest_s < left_s:
        assert forecast.chance > 0.5


def test_machines_that_are_lost_often_take_longer_and_are_less_sure():
    rate = Rate(samples_per_s=50, error=0.02)
    often = Risk(mean_time_to_loss_s=3600, restart_s=600, every_s=600)
    work = {"todo": 50 * 7200.0, "left_s": 9000.0, "start_s": 0.0}
    safe, spot = outlook(rate, risk=SAFE, **work), outlook(rate, risk=often, **work)
    assert spot.rest_s == pytest.approx(7200 * (1 + 900 / 3600))
    assert spot.chance < 0.6 < 0.99 < safe.chance
    width = log(spot.interval[1] / spot.interval[0])
    assert width > 2 * log(safe.interval[1] / safe.interval[0])
