"""The fallbacks: which one, and when."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.contract.record_parts import Placement, Rental
from daybreak.contract.record_types import Plan
from daybreak.extensions.spot.steering import on_demand
from daybreak.jobs.escalation import FallbackChoice, forced
from daybreak.jobs.observed_job import PATIENCE_S, ObservedJob, first
from daybreak.jobs.outlook import Rate
from daybreak.jobs.remaining_work import forecast
from tests.jobs import plans
from tests.jobs.cloud import BEGUN, HOUR_S, night_of, plan_of

WINDOW_S = 4 * HOUR_S
UNTIL = BEGUN + timedelta(seconds=WINDOW_S)
PLANS = {
    strategy: plans.planned(night_of(budget_usd=100), plans.make_params(strategy=strategy), share=0.5)
    for strategy in ("spot", "on-demand", "flex-start")
}


def observed(plan, **changed) -> ObservedJob:
    """At the beginning of the night, on what the plan names, with all the money."""
    as_planned = ObservedJob(
        plan=plan,
        now=BEGUN.timestamp(),
        deadline=UNTIL.timestamp(),
        confidence=0.99,
        left_usd=100.0,
        decay=0.5,
        placement=first(plan, train_until=UNTIL, confidence=0.99),
        state="none",
        since=BEGUN.timestamp(),
    )
    return replace(as_planned, **changed)


def running(plan, *, hours: float, share: float, speed: float = 1.0, **changed) -> ObservedJob:
    """After so many hours with that share of the samples done, by a rate that is well known."""
    rate = Rate(samples_per_s=speed * plan.num_samples / (plan.forecast.expected_s - 240), error=0.01)
    at = BEGUN.timestamp() + hours * HOUR_S
    midway = observed(plan, now=at, state="running", seen=round(share * plan.num_samples), rate=rate)
    return replace(midway, **changed)


def test_a_batch_that_passes_the_end_by_validation_leaves_nothing_to_do():
    plan = plan_of(share=0.6)
    left_out = plan.num_samples - 1634
    over = observed(plan, seen=1664, num_left_out=left_out, state="running")
    assert over.num_samples == 1664
    ahead = forecast(over, over.placement)
    assert ahead.rest_s == forecast(replace(over, seen=1634), over.placement).rest_s
    assert forecast(replace(over, seen=1600), over.placement).rest_s > ahead.rest_s


def test_the_plan_itself_is_the_first_placement_and_as_sure_as_its_interval():
    plan = plan_of(share=0.6)
    own = first(plan, train_until=UNTIL, confidence=0.99)
    assert own.rental == Rental(machine="a", region="us-central1")
    longest_s = (UNTIL - own.latest_start).total_seconds()
    assert longest_s == pytest.approx(plan.forecast.expected_s * 1.205, rel=1e-3)
    late = observed(plan, now=UNTIL.timestamp() - longest_s)
    assert forecast(late, own).chance == pytest.approx(0.99, abs=0.003)


def test_what_goes_as_planned_stays_where_it_is():
    plan = plan_of(share=0.6)
    assert forced(observed(plan)) == FallbackChoice(placement=observed(plan).placement)
    midway = running(plan, hours=1.2, share=0.45)
    assert forced(midway).placement == midway.placement


def test_a_faster_machine_is_gone_to_at_the_last_moment_and_not_before():
    plan = plan_of(share=0.6)
    early = running(plan, hours=0.3, share=0.05, speed=0.55)
    assert forecast(early, early.placement).chance < 0.01
    assert forced(early).placement == early.placement
    late = running(plan, hours=1.9, share=0.4, speed=0.55)
    choice = forced(late)
    assert choice.placement
    assert (choice.placement.rental.machine, choice.name) == ("b", "scale up")
    assert choice.usd > 0
    assert "a, in us-central1 would be done in time with a chance of 0%" in choice.reason
    assert forced(replace(late, left_usd=2.0)).placement == late.placement
    assert forced(replace(late, now=UNTIL.timestamp() - 600)).placement == late.placement


def test_a_job_that_is_to_end_earlier_by_validation_is_not_late():
    plan = plan_of(share=0.6)
    late = running(plan, hours=1.9, share=0.4, speed=0.55)
    cut = replace(late, num_left_out=round(0.5 * plan.num_samples))
    assert forced(late).name == "scale up"
    assert forced(cut) == FallbackChoice(placement=cut.placement)
    whole, rest = (forecast(job, job.placement).rest_s for job in (late, cut))
    assert rest == pytest.approx(whole / 6, rel=0.02)


def test_where_none_is_sure_to_be_in_time_the_surest_is_taken_at_once():
    plan = plan_of(share=0.6)
    late = running(plan, hours=0.3, share=0.02, speed=0.25)
    choice = forced(late)
    assert choice.placement
    assert (choice.placement.rental.machine, choice.name) == ("c", "scale up")
    words = re.search(r"c, in us-central1 takes ([\d,]+) s at most", choice.reason)
    assert words
    assert float(words[1].replace(",", "")) > late.deadline - late.now
    assert forced(replace(late, left_usd=2.0)).placement == late.placement
    hopeless = running(plan, hours=0.3, share=0.01, speed=0.1)
    assert forced(hopeless).placement == hopeless.placement


def test_machines_that_do_not_come_for_minutes_are_left_as_if_they_were_refused():
    plan = plan_of(share=0.6)
    asked = observed(plan, state="queued")
    assert forced(replace(asked, now=asked.now + 120)).placement == asked.placement
    choice = forced(replace(asked, now=asked.now + PATIENCE_S))
    assert (choice.placement, choice.name) == (plan.fallbacks[0], "next fallback")
    just = replace(asked, now=asked.now + PATIENCE_S, refused={r.rental: asked.now for r in plan.fallbacks})
    assert forced(just).placement == plan.fallbacks[0]  # the one refused longest ago
    assert forced(replace(just, left_usd=1.0)).placement == asked.placement
    queue = replace(plan.forecast.portions[0], expected_s=600)
    slow = replace(plan, forecast=replace(plan.forecast, portions=(queue,)))
    assert forced(replace(asked, plan=slow, now=asked.now + 1700)).placement == asked.placement


def test_a_queue_of_its_own_is_left_for_what_is_still_in_time_and_never_at_once():
    whole = plan_of(strategy="flex-start", share=0.6)
    plan = replace(whole, fallbacks=whole.fallbacks[1:])
    asked = observed(plan, state="queued")
    assert forced(replace(asked, now=asked.now + 1800)).placement == asked.placement
    b_takes_s = WINDOW_S - (plan.fallbacks[0].latest_start - BEGUN).total_seconds()
    c_takes_s = WINDOW_S - (plan.fallbacks[1].latest_start - BEGUN).total_seconds()
    assert c_takes_s < b_takes_s
    before = replace(asked, now=UNTIL.timestamp() - b_takes_s + 60)
    assert forced(before).placement == asked.placement  # c would still be in time
    last = replace(asked, now=UNTIL.timestamp() - c_takes_s - 200)
    assert forced(last).placement == plan.fallbacks[1]
    fresh = replace(last, since=last.now - 60)
    assert forced(fresh).placement == asked.placement


def test_where_nothing_is_in_time_any_more_a_queue_is_left_for_what_does_most():
    plan = plan_of(share=0.6)
    asked = observed(plan, state="queued")
    late = replace(asked, now=UNTIL.timestamp() - 1800)
    assert forced(late).placement == plan.fallbacks[1]
    poor = replace(
        late, left_usd=2.0
    )  # 14 dollars an hour last for half as long as 7, and are not twice as fast
    assert forced(poor).placement == plan.fallbacks[0]


def test_spot_is_not_left_for_what_there_is_no_money_for_until_what_is_left_would_last():
    plan = plan_of(strategy="spot", share=0.5)
    first = observed(plan)
    late = replace(first, now=UNTIL.timestamp() - 2.2 * HOUR_S)
    assert forced(late).placement == plan.fallbacks[0]
    poor = replace(late, left_usd=3.0)
    placement = forced(poor).placement
    assert placement
    assert placement.rental.strategy == "spot"
    assert forced(replace(poor, now=UNTIL.timestamp() - 1.2 * HOUR_S)).placement == plan.fallbacks[0]


def planned(*, strategy: str, machines: str = "a", budget_usd: float = 100.0, share: float = 0.5) -> Plan:
    """A plan of the planner for the night, on those machines in three regions."""
    night = night_of(budget_usd=budget_usd)
    return plans.planned(night, plans.make_params(strategy=strategy, machines=machines), share=share)


def refused(plan: Plan, *placements: Placement, minutes: float = 0.0) -> ObservedJob:
    """The placements were refused one a tick, the last of them so many minutes ago."""
    now = BEGUN.timestamp() + 1800
    last = now - minutes * 60
    when = {placement.rental: last - 120 * number for number, placement in enumerate(reversed(placements))}
    state = "refused" if minutes * 60 < PATIENCE_S else "none"
    return observed(plan, now=now, state=state, placement=placements[-1], refused=when)


def where(choice: FallbackChoice) -> tuple[str, str, str]:
    assert choice.placement
    rental = choice.placement.rental
    return rental.machine, rental.region, rental.strategy


def test_a_refused_region_is_left_at_once_for_the_cheapest_that_was_not_refused_too():
    plan = planned(strategy="on-demand")
    first = observed(plan).placement
    choice = forced(refused(plan, first))
    assert choice.placement
    assert (where(choice), choice.name) == (("a", plans.NEXT, "on-demand"), "next fallback")
    assert choice.usd > 0
    assert choice.reason.startswith("a, in us-central1 cannot be had; a, in us-east4")
    assert where(forced(refused(plan, first, choice.placement))) == ("a", plans.FAR, "on-demand")


def test_a_slower_machine_is_asked_for_where_the_faster_ones_are_refused_and_it_is_in_time():
    plan = planned(strategy="on-demand", machines="bc", share=0.5)
    first = observed(plan).placement
    b = [placement for placement in plan.fallbacks if placement.rental.machine == "b"]
    assert first.rental.machine == "b"
    assert where(forced(refused(plan, first, *b))) == ("c", plans.HOME, "on-demand")
    c = [placement for placement in plan.fallbacks if placement.rental.machine == "c"]
    assert where(forced(refused(plan, *c))) == ("b", plans.HOME, "on-demand")


def test_where_all_places_were_refused_the_oldest_is_asked_again_after_some_minutes():
    plan = planned(strategy="on-demand")
    first = observed(plan).placement
    every = [first, *plan.fallbacks]
    assert forced(refused(plan, *every, minutes=4)).placement == first
    assert forced(refused(plan, *every, minutes=1)).placement == first
    just = refused(plan, *every, minutes=1)
    assert forced(replace(just, refused=dict.fromkeys(just.refused, just.now - 200))).placement is None
    assert forced(refused(plan, *every[1:], first, minutes=4)).placement == every[1]


def test_spot_that_is_refused_is_left_for_spot_elsewhere_and_not_yet_bought():
    plan = planned(strategy="spot", machines="ab")
    first = observed(plan).placement
    assert where(forced(refused(plan, first))) == ("a", plans.NEXT, "spot")
    early = planned(strategy="spot", machines="ab", share=0.25)
    every = [
        observed(early).placement,
        *(placement for placement in early.fallbacks if placement.rental.is_spot),
    ]
    assert forced(refused(early, *every, minutes=4)).placement == every[0]  # spot is waited for
    just = refused(early, *every)
    assert forced(replace(just, refused=dict.fromkeys(just.refused, just.now - 200))).placement is None


def test_the_only_place_with_spot_is_asked_again_after_some_minutes():
    plan = planned(strategy="spot", share=0.25)
    here = tuple(placement for placement in plan.fallbacks if placement.rental.region == plans.HOME)
    alone = replace(plan, fallbacks=here)
    first = observed(alone).placement
    assert forced(refused(alone, first, minutes=1)).placement is None
    assert forced(refused(alone, first, minutes=4)).placement == first


def test_spot_elsewhere_has_the_same_safety_net():
    plan = planned(strategy="spot")
    elsewhere = next(
        placement for placement in plan.fallbacks if str(placement.rental) == f"a, spot, in {plans.NEXT}"
    )
    on_time = running(plan, hours=0.5, share=0.2, placement=elsewhere)
    assert forced(on_time).placement == elsewhere
    late = running(plan, hours=3.0, share=0.6, placement=elsewhere)
    choice = forced(late)
    assert (where(choice), choice.name) == (
        ("a", plans.HOME, "on-demand"),
        "on-demand",
    )  # the cheapest of them


def test_spot_that_a_job_has_stepped_down_to_is_kept_though_the_fallbacks_have_it_on_demand_alone():
    plan = planned(strategy="spot")
    here = next(
        placement
        for placement in plan.fallbacks
        if placement.rental.is_spot and on_demand(plan, of=placement)
    )
    plan = replace(
        plan, fallbacks=tuple(placement for placement in plan.fallbacks if placement != here), cheaper=(here,)
    )
    assert forced(running(plan, hours=0.5, share=0.2, placement=here)).placement == here


def test_what_is_bought_and_waited_for_is_not_left_for_spot_again():
    plan = planned(strategy="spot", machines="ab")
    bought = next(
        placement
        for placement in plan.fallbacks
        if placement.rental == Rental(machine="b", region=plans.HOME)
    )
    asked = observed(plan, now=UNTIL.timestamp() - 7200, state="queued", placement=bought, left_usd=3.0)
    assert forced(replace(asked, since=asked.now - 120)).placement == bought


def test_what_is_over_the_budget_is_gone_to_only_when_waiting_longer_would_be_late():
    rich = planned(strategy="on-demand")
    plan = planned(strategy="on-demand", budget_usd=rich.forecast.expected_usd * 1.01)
    first = observed(plan).placement
    soon = replace(refused(plan, first), left_usd=plan.forecast.expected_usd * 1.01)
    assert forced(soon).placement is None
    late = replace(soon, now=UNTIL.timestamp() - plan.forecast.expected_s)
    assert where(forced(late)) == ("a", plans.NEXT, "on-demand")


def test_a_queue_is_left_so_early_that_each_of_the_others_can_be_waited_for():
    plan = planned(strategy="flex-start", machines="a", share=0.3)
    longest_s = (UNTIL - plan.fallbacks[0].latest_start).total_seconds()
    asked = observed(plan, state="queued")
    assert len(plan.fallbacks) == 3
    early = replace(asked, now=UNTIL.timestamp() - longest_s - 3.1 * PATIENCE_S)
    assert forced(early).placement == asked.placement
    last = replace(asked, now=UNTIL.timestamp() - longest_s - 2.9 * PATIENCE_S)
    assert where(forced(last)) == ("a", plans.HOME, "on-demand")
    gone = replace(last, refused={placement.rental: last.now - 60 for placement in plan.fallbacks[:2]})
    assert forced(gone).placement == asked.placement  # one is left, and needs only its own time
    gone = replace(gone, now=UNTIL.timestamp() - longest_s - 0.9 * PATIENCE_S)
    assert where(forced(gone)) == ("a", plans.FAR, "on-demand")


@settings(max_examples=50)
@given(
    hours=st.floats(0, 3.99),
    share=st.floats(0, 0.99),
    speed=st.floats(0.3, 2),
    left_usd=st.floats(0, 50),
    strategy=st.sampled_from(["spot", "on-demand", "flex-start"]),
    at=st.integers(0, 12),
    state=st.sampled_from(["none", "queued", "running", "refused"]),
    among=st.sets(st.integers(0, 12)),
)
def test_what_runs_goes_to_nothing_slower_and_what_was_refused_is_not_asked_for_at_once(
    hours, share, speed, left_usd, strategy, at, state, among
):
    plan = PLANS[strategy]
    ways = [observed(plan).placement, *plan.fallbacks]
    here = ways[at % len(ways)]
    now = BEGUN.timestamp() + hours * HOUR_S
    gone = {
        ways[each % len(ways)].rental: now - 60 for each in among | ({at} if state == "refused" else set())
    }
    if state in ("running", "queued"):
        gone.pop(here.rental, None)
    midway = running(
        plan,
        hours=hours,
        share=share,
        speed=speed,
        state=state,
        left_usd=left_usd,
        placement=here,
        refused=gone,
    )
    choice = forced(midway)
    if choice.placement is None:
        assert strategy == "spot" or here.rental in gone
        return
    if (
        choice.placement.rental != here.rental
        and state in ("refused", "queued")
        and choice.name == "next fallback"
    ):
        assert choice.placement.rental not in gone
    if state == "running" and choice.placement.rental != here.rental:
        assert not choice.placement.rental.is_spot or here.rental.is_spot
        assert choice.placement.expected_s < here.expected_s or here.rental.is_spot
        assert choice.name in ("scale up", "on-demand")
    if choice.name == "scale up":
        rest_s = (1 - share) * choice.placement.expected_s
        assert rest_s * choice.placement.usd_per_hour / HOUR_S <= left_usd + 0.01
        assert rest_s <= midway.deadline - midway.now + 1


def test_what_was_slower_than_planned_is_taken_to_be_slower_on_other_machines_too():
    plan = plan_of(share=0.6)
    b = plan.fallbacks[0]
    for speed, times in ((1.0, 1.0), (0.5, 2.0), (2.0, 1.0)):  # and what was faster is no faster there
        midway = running(plan, hours=1, share=0.5, speed=speed)
        rest_s = 240 + (b.expected_s - 240) * 0.5 * times
        assert forecast(midway, b).rest_s == pytest.approx(rest_s, rel=0.02), speed


def test_that_some_workers_are_gone_slows_no_other_machines():
    plan = plan_of(share=0.6)
    b = plan.fallbacks[0]
    left = running(plan, hours=1, share=0.5, speed=0.125)
    whole = replace(left, whole_rate=running(plan, hours=1, share=0.5).rate)
    assert forecast(whole, b).rest_s == pytest.approx(240 + (b.expected_s - 240) * 0.5, rel=0.02)
    assert forecast(left, b).rest_s > 4 * forecast(whole, b).rest_s
    assert forecast(whole, whole.placement).rest_s == forecast(left, left.placement).rest_s


def test_what_was_slower_than_planned_needs_as_much_longer_at_most_elsewhere():
    plan = plan_of(share=0.6)
    late = running(plan, hours=1.9, share=0.4, speed=0.55)
    longest_s = WINDOW_S - (plan.fallbacks[0].latest_start - BEGUN).total_seconds()
    rest_s = 240 + (longest_s - 240) * 0.6 / 0.55
    reason = forced(late).reason
    words = re.search(r"b, in us-central1 takes ([\d,]+) s at most", reason)
    assert words, reason
    assert float(words[1].replace(",", "")) == pytest.approx(rest_s, rel=0.01)


def test_what_runs_late_is_not_left_for_anything_slower():
    """The start of b takes so long that a, at half the speed, would be in time, and b is not."""
    plan = plan_of(share=0.3)
    plan = replace(plan, fallbacks=plan.fallbacks[:1])
    late = running(plan, hours=1, share=0.0, placement=plan.fallbacks[0], starting_s=9000.0, decay=1.0)
    assert forecast(late, late.placement).chance < 0.5
    assert forecast(late, observed(plan).placement).chance > 0.99
    assert forced(late).placement == late.placement


def test_what_runs_late_stays_until_the_last_moment_of_the_fastest():
    plan = plan_of(share=0.6)
    late = running(plan, hours=1, share=0.1, speed=0.5, decay=0.01)
    longest_s = {
        placement.rental.machine: WINDOW_S - (placement.latest_start - BEGUN).total_seconds()
        for placement in plan.fallbacks
    }
    b_s, c_s = (240 + (longest_s[machine] - 240) * 0.9 * 2 for machine in "bc")
    for left_s, machine in ((1.02 * b_s, "a"), (c_s + 2 * PATIENCE_S, "a"), (c_s + PATIENCE_S / 2, "c")):
        placement = forced(replace(late, now=UNTIL.timestamp() - left_s)).placement
        assert placement
        assert placement.rental.machine == machine, left_s


def test_what_runs_stays_where_it_was_refused_to_others_of_its_kind_before():
    plan = plan_of(share=0.6)
    midway = running(plan, hours=1, share=0.4)
    assert (
        forced(replace(midway, refused={midway.placement.rental: midway.now - 60})).placement
        == midway.placement
    )


def test_a_plan_of_spot_that_cannot_be_bought_asks_for_spot_again():
    plan = planned(strategy="spot")
    alone = replace(
        plan, fallbacks=tuple(placement for placement in plan.fallbacks if placement.rental.is_spot)
    )
    asked = observed(alone, state="refused")
    assert forced(asked) == FallbackChoice(placement=asked.placement)
    assert forced(asked).usd == 0


def bought_of(plan: Plan, region: str) -> Placement:
    return next(r for r in plan.fallbacks if r.rental.region == region and r.rental.strategy == "on-demand")


def test_what_was_bought_and_is_gone_is_asked_for_on_spot_again_while_there_is_time():
    plan = planned(strategy="spot", share=0.25)
    gone = observed(plan, placement=bought_of(plan, plans.HOME), state="none")
    assert where(forced(gone)) == ("a", plans.HOME, "spot")


def test_where_only_buying_is_safe_spot_elsewhere_is_not_gone_to():
    """A fifth of the work is left, and time for it and a start, but not for another loss."""
    plan = planned(strategy="spot")
    first = observed(plan).placement
    late = observed(plan, now=UNTIL.timestamp() - 2700, seen=round(0.8 * plan.num_samples))
    choice = forced(replace(late, refused={first.rental: late.now - 60}))
    assert (where(choice), choice.name) == (("a", plans.HOME, "on-demand"), "on-demand")


def test_what_cannot_be_bought_here_is_bought_elsewhere_before_spot_is_tried():
    plan = planned(strategy="spot")
    here = bought_of(plan, plans.HOME)
    late = observed(
        plan, now=UNTIL.timestamp() - 1.8 * plan.forecast.expected_s, placement=here, state="refused"
    )
    choice = forced(replace(late, refused={here.rental: late.now - 60}))
    assert where(choice) == ("a", plans.NEXT, "on-demand")
