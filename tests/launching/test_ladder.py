"""The rungs: which one, and when."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.launching import ladder
from pipeline.launching.ladder import Sight, choose, forecast
from pipeline.launching.outlook import Rate
from tests.launching.cloud import BEGUN, HOUR_S, plan_of

WINDOW_S = 4 * HOUR_S
UNTIL = BEGUN + timedelta(seconds=WINDOW_S)


def sight(plan, **changed) -> Sight:
    """At the beginning of the night, on what the plan names, with all the money."""
    told = Sight(
        now=BEGUN.timestamp(), deadline=UNTIL.timestamp(), confidence=0.99, left_usd=100.0, decay=0.5,
        rung=ladder.first(plan, train_until=UNTIL, confidence=0.99), state="none", since=BEGUN.timestamp(),
    )  # fmt: skip
    return replace(told, **changed)


def running(plan, *, hours: float, share: float, speed: float = 1.0, **changed) -> Sight:
    """After so many hours with that share of the samples done, by a rate that is well known."""
    rate = Rate(samples_per_s=speed * plan.num_samples / (plan.expected_s - 240), error=0.01)
    at = BEGUN.timestamp() + hours * HOUR_S
    told = sight(plan, now=at, state="running", seen=round(share * plan.num_samples), rate=rate)
    return replace(told, **changed)


def test_the_plan_itself_is_the_first_rung_and_as_sure_as_its_interval():
    plan = plan_of(share=0.6)
    first = ladder.first(plan, train_until=UNTIL, confidence=0.99)
    assert first.way == ("a", 1, "us-central1", "on-demand")
    longest_s = (UNTIL - first.latest_start).total_seconds()
    assert longest_s == pytest.approx(plan.expected_s * 1.205, rel=1e-3)
    late = sight(plan, now=UNTIL.timestamp() - longest_s)
    assert forecast(plan, late, first).chance == pytest.approx(0.99, abs=0.003)


def test_what_goes_as_planned_stays_where_it_is():
    plan = plan_of(share=0.6)
    assert choose(plan, sight(plan)) == ladder.Choice(rung=sight(plan).rung)
    told = running(plan, hours=1.2, share=0.45)
    assert choose(plan, told).rung == told.rung


def test_a_faster_machine_is_gone_to_at_the_last_moment_and_not_before():
    plan = plan_of(share=0.6)
    early = running(plan, hours=0.3, share=0.05, speed=0.55)
    assert forecast(plan, early, early.rung).chance < 0.01
    assert choose(plan, early).rung == early.rung
    late = running(plan, hours=1.9, share=0.4, speed=0.55)
    told = choose(plan, late)
    assert told.rung
    assert (told.rung.machine, told.name) == ("b", "scale up")
    assert told.usd > 0
    assert "1 x a on-demand would be done in time with a chance of 0%" in told.reason
    assert choose(plan, replace(late, left_usd=2.0)).rung == late.rung
    assert choose(plan, replace(late, now=UNTIL.timestamp() - 600)).rung == late.rung


def test_a_queue_is_left_for_what_is_still_in_time_and_never_at_once():
    plan = plan_of(share=0.6)
    asked = sight(plan, state="queued")
    assert choose(plan, replace(asked, now=asked.now + 1800)).rung == asked.rung
    b_takes_s = WINDOW_S - (plan.ladder[0].latest_start - BEGUN).total_seconds()
    c_takes_s = WINDOW_S - (plan.ladder[1].latest_start - BEGUN).total_seconds()
    assert c_takes_s < b_takes_s
    before = replace(asked, now=UNTIL.timestamp() - b_takes_s + 60)
    assert choose(plan, before).rung == asked.rung  # c would still be in time
    last = replace(asked, now=UNTIL.timestamp() - c_takes_s - 200)
    assert choose(plan, last).rung == plan.ladder[1]
    fresh = replace(last, since=last.now - 60)
    assert choose(plan, fresh).rung == asked.rung


def test_where_nothing_is_in_time_any_more_a_queue_is_left_for_what_does_most():
    plan = plan_of(share=0.6)
    asked = sight(plan, state="queued")
    late = replace(asked, now=UNTIL.timestamp() - 1800)
    assert choose(plan, late).rung == plan.ladder[1]
    poor = replace(
        late, left_usd=2.0
    )  # 14 dollars an hour last for half as long as 7, and are not twice as fast
    assert choose(plan, poor).rung == plan.ladder[0]


def test_spot_is_not_left_for_what_there_is_no_money_for_until_what_is_left_would_last():
    plan = plan_of(strategy="spot", share=0.5)
    first = sight(plan)
    late = replace(first, now=UNTIL.timestamp() - 2.2 * HOUR_S)
    assert choose(plan, late).rung == plan.ladder[0]
    poor = replace(late, left_usd=3.0)
    rung = choose(plan, poor).rung
    assert rung
    assert rung.strategy == "spot"
    assert choose(plan, replace(poor, now=UNTIL.timestamp() - 1.2 * HOUR_S)).rung == plan.ladder[0]


@given(
    hours=st.floats(0, 3.99), share=st.floats(0, 0.99), speed=st.floats(0.3, 2), left_usd=st.floats(0, 50),
    strategy=st.sampled_from(["spot", "on-demand", "flex-start"]), at=st.integers(0, 3),
    state=st.sampled_from(["none", "queued", "running", "refused"]),
)  # fmt: skip
def test_it_never_climbs_back_and_what_it_takes_is_paid_for(
    hours, share, speed, left_usd, strategy, at, state
):
    plan = plan_of(strategy=strategy, share=0.5)
    first = sight(plan).rung
    ways = [first, *plan.ladder]
    here = ways[min(at, len(ways) - 1)]
    told = running(plan, hours=hours, share=share, speed=speed, state=state, left_usd=left_usd, rung=here)
    found = choose(plan, told)
    if found.rung is None:
        assert strategy == "spot"
        return
    places = [way.way for way in ways]
    spot = strategy == "spot" and here.way in places[:2] and state != "running"
    assert places.index(found.rung.way) >= (0 if spot else places.index(here.way))
    if found.name == "scale up" and state == "running":
        assert found.rung.expected_s < here.expected_s
        rest_s = (1 - share) * found.rung.expected_s
        assert rest_s * found.rung.usd_per_hour / HOUR_S <= left_usd + 0.01
        assert rest_s <= told.deadline - told.now + 1
