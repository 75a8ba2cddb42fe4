"""A job asks for spot while that is safe, and is bought where time does not allow another loss."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract.backend import TICK_S
from daybreak.contract.record_parts import JobForecast, Placement, PlanReasons, Portion, Rental
from daybreak.contract.record_types import Plan
from daybreak.extensions.spot.states import Place
from daybreak.extensions.spot.steering import _capacity, place, zone_of
from daybreak.jobs import observed_job
from daybreak.jobs.observed_job import ObservedJob
from daybreak.jobs.outlook import Rate
from daybreak.jobs.submissions import JobAttempt
from daybreak.machines.startup import RESTART_S, restart_s

HOUR_S = 3600.0
BOUGHT = Placement(
    rental=Rental(machine="a2"),
    expected_s=10 * HOUR_S,
    expected_usd=36.0,
    latest_start=datetime(2026, 1, 1, tzinfo=UTC),
)
PLAN = Plan(
    rental=Rental(machine="a2", strategy="spot"),
    batch_size=32,
    micro_batch_size=32,
    num_samples=36_000,
    checkpoint_every_s=600,
    fallbacks=(BOUGHT,),
    forecast=JobForecast(expected_s=10 * HOUR_S, expected_usd=18.0, interval=(1, 2)),
    reasons=PlanReasons(runner_up=""),
)


def first(plan: Plan) -> Placement:
    """What a plan itself names, as a placement."""
    return observed_job.first(plan, train_until=datetime(2026, 1, 2, tzinfo=UTC), confidence=0.99)


def attempt(plan: Plan = PLAN, *, at: float = 0.0, came: bool = True) -> JobAttempt:
    """A request for the machines of a plan."""
    return JobAttempt(name="1", job="n", placement=first(plan), at=at, run_at=at + 60 if came else 0.0)


def known(rate: float | None) -> Rate | None:
    return Rate(samples_per_s=rate, error=0.01) if rate else None


BEGUN = ObservedJob(
    plan=PLAN,
    now=0.0,
    deadline=18 * HOUR_S,
    confidence=0.99,
    left_usd=100.0,
    decay=0.5,
    placement=first(PLAN),
    state="none",
    since=0.0,
)
ONCE = (attempt(),)


def test_it_asks_for_spot_and_stays_in_the_queue_while_there_is_time():
    assert place(PLAN, BEGUN) == Place("a2", spot=True)
    assert place(PLAN, replace(BEGUN, now=600, attempts=ONCE, state="queued")) is None


def test_it_is_bought_when_the_queue_or_losses_have_taken_the_time_to_spare():
    late = replace(BEGUN, now=5.4 * HOUR_S, attempts=ONCE, state="queued")
    assert place(PLAN, late) == Place("a2", spot=False)
    lost = replace(BEGUN, now=10 * HOUR_S, seen=9000, rate=known(1.0), attempts=ONCE)
    assert place(PLAN, lost) == Place("a2", spot=False)
    ahead = replace(lost, seen=32_000)
    assert place(PLAN, ahead) == Place("a2", spot=True)


def test_training_that_is_slower_than_planned_is_bought_earlier():
    fast, slow = (
        replace(BEGUN, now=6 * HOUR_S, seen=16_000, rate=known(rate), attempts=ONCE) for rate in (1.0, 0.48)
    )
    assert place(PLAN, fast) == Place("a2", spot=True)
    assert place(PLAN, slow) == Place("a2", spot=False)


def test_without_spot_in_the_plan_or_a_fallback_to_buy_it_is_as_planned():
    assert place(replace(PLAN, rental=BOUGHT.rental), BEGUN) == Place("a2", spot=False)
    alone = replace(PLAN, fallbacks=(replace(BOUGHT, rental=Rental(machine="other")),))
    assert place(alone, replace(BEGUN, now=17 * HOUR_S)) == Place("a2", spot=True)
    assert place(alone, replace(BEGUN, now=17 * HOUR_S, state="queued", attempts=ONCE)) is None


def test_a_start_that_brings_much_data_is_begun_earlier():
    slow = replace(
        PLAN,
        forecast=replace(
            PLAN.forecast, portions=(Portion(name="data", expected_s=HOUR_S, expected_usd=1.0),)
        ),
    )
    assert restart_s(PLAN) == RESTART_S
    assert restart_s(slow) == 2 * HOUR_S
    late = replace(BEGUN, now=1.5 * HOUR_S, attempts=ONCE, state="queued")
    assert place(PLAN, late) is None
    assert place(slow, late) == Place("a2", spot=False)


def test_spot_that_runs_is_kept_while_its_loss_could_be_borne_and_left_after():
    """The net of the policy: a loss takes an interval, a tick and a start, twice before one goes to spot."""
    doubted_s = 10 * HOUR_S / (0.8 * 0.98)
    least_s = RESTART_S + PLAN.checkpoint_every_s + TICK_S
    running = replace(BEGUN, attempts=ONCE, state="running")
    for spare_s, spot in ((least_s + 60, True), (least_s - 60, False)):
        job = replace(running, now=BEGUN.deadline - doubted_s - spare_s)
        assert place(PLAN, job) == Place("a2", spot=spot)
    alone = replace(PLAN, fallbacks=())
    assert place(alone, replace(running, now=17 * HOUR_S)) == Place("a2", spot=True)


def test_a_start_that_is_not_over_leaves_so_much_less_time():
    job = replace(
        BEGUN, now=BEGUN.deadline - 10 * HOUR_S / (0.8 * 0.98) - 2000, attempts=ONCE, state="running"
    )
    assert place(PLAN, job) == Place("a2", spot=True)
    assert place(PLAN, replace(job, starting_s=600)) == Place("a2", spot=False)


@given(st.floats(0, 18), st.integers(0, 36_000), st.booleans())
def test_it_never_waits_or_asks_for_spot_without_time_for_a_start_after_it(hours, seen, queued):
    job = replace(BEGUN, now=hours * HOUR_S, seen=seen, rate=known(1.0 if seen else None), attempts=ONCE)
    job = replace(job, state="queued" if queued else "none")
    spare_s = job.deadline - job.now - (36_000 - seen)
    chosen = place(PLAN, job)
    if chosen is None or chosen.spot:
        assert spare_s >= 2 * RESTART_S or spare_s < RESTART_S
    if spare_s < RESTART_S:
        assert chosen is not None


@pytest.mark.slow
@given(st.floats(0.05, 10))
def test_a_job_however_short_beside_a_start_asks_for_spot_at_once(hours):
    short = replace(PLAN, forecast=replace(PLAN.forecast, expected_s=hours * HOUR_S), usd_per_hour=1.8)
    assert place(short, BEGUN) == Place("a2", spot=True)


def in_region(region: str, *, usd: float, strategy: str = "spot") -> Placement:
    return replace(BOUGHT, rental=Rental(machine="a2", region=region, strategy=strategy), usd_per_hour=usd)


def test_all_regions_of_the_plan_are_zones_and_the_cheapest_is_asked_that_was_not_refused_for_long():
    home = in_region("us-east4", usd=1.0)
    fallbacks = (
        in_region("us-east4", usd=3.6, strategy="on-demand"),
        in_region("us-west1", usd=1.01),
        in_region("us-west1", usd=3.5, strategy="on-demand"),
        in_region("us-east5", usd=1.02),
        replace(in_region("us-east4", usd=0.1), rental=Rental(machine="other", strategy="spot")),
    )
    plan = replace(PLAN, rental=home.rental, usd_per_hour=1.0, fallbacks=fallbacks)
    begun, rentals = (
        replace(BEGUN, placement=first(plan)),
        (home.rental, fallbacks[1].rental, fallbacks[3].rental),
    )
    names = [zone_of(rental) for rental in rentals]
    assert names == ["a2, in us-east4", "a2, in us-west1", "a2, in us-east5"]
    assert place(plan, begun) == Place(names[0], spot=True)

    def refused(hours: float, *rentals: Rental) -> ObservedJob:
        now = hours * HOUR_S
        asked = (attempt(plan, came=False),)
        return replace(begun, now=now, attempts=asked, state="queued", refused=dict.fromkeys(rentals, now))

    assert place(plan, refused(1 / 6)) is None  # it may be back soon, and there is time
    assert place(plan, refused(3)) == Place(names[1], spot=True)
    assert place(plan, refused(3, rentals[1])) == Place(names[2], spot=True)
    assert place(plan, refused(3, *rentals[1:])) is None
    assert place(plan, refused(8, *rentals[1:])) == Place(names[1], spot=False)  # bought at the lowest price
    held = replace(begun, attempts=(attempt(plan),), state="running")
    assert place(plan, held) == Place(names[0], spot=True)


def test_a_zone_that_was_lost_often_is_trusted_less_and_one_that_never_came_was_not_lost():
    lost = [attempt(at=hour * HOUR_S) for hour in range(4)]
    never = [attempt(at=hour * HOUR_S, came=False) for hour in range(4)]
    after = replace(BEGUN, now=4 * HOUR_S)
    assert _capacity(replace(after, attempts=lost), "a2", queued=False).num_losses == 3
    assert _capacity(replace(after, attempts=never), "a2", queued=False).num_losses == 0
    assert _capacity(replace(after, attempts=lost), "x", queued=False).num_losses == 0
