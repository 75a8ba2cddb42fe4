"""No deadline is missed that buying at once would have met, and what is dear is not bought without need."""

from dataclasses import replace
from math import exp

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.simulation.baselines import on_demand
from pipeline.simulation.replay import Luck, replay
from pipeline.spot.policies import cheapest_on_demand, decide, safety_margin, value_of_work, worth
from pipeline.spot.states import Place, Sightings, State, Zone
from tests.spot.markets import TICK_S, job, trace

HOUR_S = 3600.0
CHEAP = Zone(name="cheap-1-a", spot_usd_per_hour=1.0, on_demand_usd_per_hour=5.0)
DEARER = Zone(name="dear-1-a", spot_usd_per_hour=2.0, on_demand_usd_per_hour=6.0)


def state(**changes) -> State:
    known = dict(
        now_s=0.0, deadline_s=18 * HOUR_S, tick_s=TICK_S, work_s=12 * HOUR_S, done_s=0.0,
        zones=(CHEAP, DEARER), restart_s=600.0, doubt=0.0,
    )  # fmt: skip
    return State(**(known | changes))


@st.composite
def nights(draw):
    """A job, up to three zones, and luck: throughput off the plan, starts of up to the 95th percentile."""
    num_ticks = draw(st.integers(20, 70))
    zones = [
        trace(
            "".join(run * length for run, length in draw(spells)) or ".",
            zone=name,
            spot=price,
            on_demand=5.0 + price,
        )
        for name, price in zip(
            ("a-1-a", "b-1-a", "c-1-a")[: draw(st.integers(1, 3))], (1.0, 1.2, 4.5), strict=False
        )
    ]
    zones = [
        replace(z, up=(z.up * num_ticks)[:num_ticks], spot_usd_per_hour=z.spot_usd_per_hour[:1] * num_ticks)
        for z in zones
    ]
    restart = draw(st.floats(0.2, 2.5))
    notice = draw(st.booleans())
    doubt = draw(st.sampled_from([0.0, 0.2]))
    off = draw(st.floats(0.8, 1.2)) if doubt else 1.0
    work = draw(st.floats(0.3, 0.95)) * num_ticks
    luck = Luck(
        throughput=(off,) * num_ticks,
        restart_s=tuple(draw(st.lists(st.floats(0.1, 1.0), min_size=num_ticks, max_size=num_ticks))),
        lost_at=tuple(draw(st.lists(st.floats(0.0, 1.0), min_size=num_ticks, max_size=num_ticks))),
    )
    task = job(work=work, deadline=num_ticks, restart=restart, notice=notice, doubt=doubt,
               checkpoint_every_s=draw(st.sampled_from([120.0, 900.0, 1800.0])))  # fmt: skip
    luck = replace(luck, restart_s=tuple(share * task.restart_s for share in luck.restart_s))
    return task, zones, luck


spells = st.lists(st.tuples(st.sampled_from("#."), st.integers(1, 12)), min_size=1, max_size=8)


@pytest.mark.slow
@settings(max_examples=300)
@given(nights())
def test_no_deadline_is_missed_that_the_slowest_machine_bought_at_once_would_meet(night):
    task, zones, luck = night
    slowest = replace(
        luck,
        throughput=(min(1 - task.doubt, luck.throughput[0]),) * len(luck.throughput),
        restart_s=(task.restart_s,) * len(luck.restart_s),
    )
    assume(not replay(on_demand, task, zones, luck=slowest).missed)
    assert not replay(decide, task, zones, luck=luck).missed


@pytest.mark.slow
@settings(max_examples=100)
@given(nights())
def test_it_never_costs_more_than_buying_for_all_of_the_time(night):
    task, zones, luck = night
    outcome = replay(decide, task, zones, luck=luck)
    dearest = 9.5 * task.deadline_s / HOUR_S
    assert outcome.usd <= dearest + task.egress_usd * outcome.num_moves + 1e-9


def test_it_takes_the_cheapest_spot():
    assert decide(state()) == Place("cheap-1-a", spot=True)


def test_it_waits_for_the_cheapest_where_time_allows_and_moves_on_where_not():
    gone = state(refused=frozenset({"cheap-1-a"}), zones=(CHEAP, replace(DEARER, spot_usd_per_hour=4.0)))
    assert decide(gone) is None
    later = replace(gone, now_s=4.5 * HOUR_S)
    assert decide(later) == Place("dear-1-a", spot=True)


def test_it_buys_where_the_time_left_allows_nothing_else():
    nothing = frozenset({"cheap-1-a", "dear-1-a"})
    late = state(now_s=5.6 * HOUR_S, refused=nothing)
    assert decide(late) == Place("cheap-1-a", spot=False)
    held = replace(late, place=Place("dear-1-a", spot=False), home="dear-1-a")
    assert decide(replace(held, now_s=5.8 * HOUR_S)) == Place("dear-1-a", spot=False)


def test_it_leaves_on_demand_when_spot_is_back_and_time_allows():
    bought = state(
        place=Place("cheap-1-a", spot=False), home="cheap-1-a", done_s=6 * HOUR_S, now_s=6.5 * HOUR_S
    )
    assert decide(bought) == Place("cheap-1-a", spot=True)
    assert decide(replace(bought, now_s=11.8 * HOUR_S)) == Place("cheap-1-a", spot=False)


def test_it_does_not_move_for_less_than_the_move_costs():
    held = state(place=Place("dear-1-a", spot=True), home="dear-1-a", egress_usd=1.0,
                 zones=(CHEAP, replace(DEARER, spot_usd_per_hour=1.01)))  # fmt: skip
    assert decide(held) == held.place
    assert decide(replace(held, zones=(CHEAP, replace(DEARER, spot_usd_per_hour=3.0)))) == Place(
        "cheap-1-a", True
    )


def test_losses_make_a_zone_less_worth_until_they_are_long_past():
    often = Sightings()
    for tick in range(12):
        often = often.look(up=tick % 2 == 0, now_s=tick * TICK_S)
    assert often.num_losses == 6
    lived_s = often.lifetime_s(now_s=12 * TICK_S)
    assert lived_s < 3 * HOUR_S < Sightings().lifetime_s(now_s=0.0)
    assert often.lifetime_s(now_s=48 * HOUR_S) > 3 * lived_s
    assert often.availability < Sightings().availability


@given(st.floats(0, 6), st.floats(0, 6))
def test_work_is_worth_more_the_less_time_there_is_to_spare(one, other):
    low, high = sorted((one, other))
    asked = state()
    assert value_of_work(asked, spare_s=low * HOUR_S) >= value_of_work(asked, spare_s=high * HOUR_S) - 1e-9
    assert value_of_work(asked, spare_s=1e6) < CHEAP.on_demand_usd_per_hour


def test_a_throughput_that_is_not_known_yet_is_taken_as_low():
    unknown = state(doubt=0.2)
    assert safety_margin(unknown).spare_s == pytest.approx(18 * HOUR_S - 12 * HOUR_S / 0.8 / 0.98)
    known = state(doubt=0.2, ran_s=10 * HOUR_S, made_s=10 * HOUR_S, done_s=10 * HOUR_S, now_s=10 * HOUR_S)
    assert 0.95 < known.low_throughput < 1.0
    slow = replace(known, made_s=7 * HOUR_S)
    assert slow.low_throughput == 0.7


NEVER = Sightings(down_s=1e9)  # capacity that is as good as never there
NOWHERE = {"zones": (replace(CHEAP, sightings=NEVER),), "refused": frozenset({"cheap-1-a"})}


def with_spare(spare_s: float, **changes) -> State:
    """A state in which so much time is left beyond the work."""
    return state(now_s=6 * HOUR_S - spare_s, **changes)


@pytest.mark.parametrize("place", [None, Place("cheap-1-a", spot=True)])
def test_what_is_left_of_a_start_is_no_spare_time_where_the_job_is_and_nothing_where_it_is_not(place):
    assert safety_margin(state(place=place, starting_s=300.0)).spare_s == 6 * HOUR_S - (300 if place else 0)


@pytest.mark.parametrize(("spare_s", "waits"), [(1800, True), (1799, False)])
def test_waiting_a_tick_must_leave_two_restarts(spare_s, waits):
    assert safety_margin(with_spare(spare_s)).wait is waits
    assert (
        safety_margin(with_spare(spare_s, at_risk_s=9000.0)).wait is waits
    )  # nothing is lost while nothing runs


@pytest.mark.parametrize(("spare_s", "launches"), [(1500, True), (1499, False)])
def test_going_to_spot_must_survive_its_loss_and_two_restarts(spare_s, launches):
    assert safety_margin(with_spare(spare_s, at_risk_s=300.0)).launch is launches


@pytest.mark.parametrize(("spare_s", "stays"), [(900, True), (899, False)])
def test_staying_on_spot_must_survive_its_loss_and_one_restart(spare_s, stays):
    assert safety_margin(with_spare(spare_s, at_risk_s=300.0)).stay is stays


def test_spot_is_waited_for_until_the_margin_and_bought_past_it():
    assert decide(with_spare(1800, **NOWHERE)) is None
    assert decide(with_spare(1799, **NOWHERE)) == Place("cheap-1-a", spot=False)


def test_spot_is_gone_to_until_the_margin_and_bought_past_it():
    assert decide(with_spare(1200)) == Place("cheap-1-a", spot=True)
    assert decide(with_spare(1199)) == Place("cheap-1-a", spot=False)


def test_spot_is_held_until_the_margin_and_bought_past_it_where_it_is_cheapest():
    held = {"place": Place("dear-1-a", spot=True), "home": "dear-1-a"}
    assert decide(with_spare(600, **held)) == held["place"]
    assert decide(with_spare(599, **held)) == Place("cheap-1-a", spot=False)


def test_what_was_bought_is_kept_past_the_margin_wherever_it_is():
    held = {"place": Place("dear-1-a", spot=False), "home": "dear-1-a"}
    assert decide(with_spare(1199, **held)) == held["place"]


def test_spot_is_left_for_cheaper_spot_only_for_more_than_the_margin():
    """A start takes no time here and moves cost nothing, so MARGIN of 5 dollars is all that holds it."""
    for price, place in ((1.029, "dear-1-a"), (1.031, "cheap-1-a")):
        zones = (CHEAP, replace(DEARER, spot_usd_per_hour=price))
        held = state(zones=zones, place=Place("dear-1-a", spot=True), home="dear-1-a", restart_s=0.0)
        assert decide(held) == Place(place, spot=True), price


def test_on_demand_is_left_for_cheaper_only_for_more_than_the_start_and_the_margin():
    """The start costs 600 / 43,200 of what work is worth, 7 cents an hour, and the margin is 3 cents."""
    for price, place in ((5.05, "dear-1-a"), (5.2, "cheap-1-a")):
        zones = tuple(replace(zone, sightings=NEVER) for zone in (CHEAP, DEARER))
        zones = (zones[0], replace(zones[1], on_demand_usd_per_hour=price))
        held = with_spare(1500, zones=zones, place=Place("dear-1-a", spot=False), home="dear-1-a",
                          refused=frozenset({"cheap-1-a", "dear-1-a"}))  # fmt: skip
        assert decide(held) == Place(place, spot=False), price


def test_a_refused_zone_is_not_gone_to():
    assert decide(state(refused=frozenset({"cheap-1-a"}), now_s=5 * HOUR_S)) == Place("dear-1-a", spot=True)


def test_spot_that_costs_more_than_work_is_worth_is_not_left_for_less_than_the_margin():
    """It is worth nothing, not less; the other gains two cents over waiting, and the margin is three."""
    zones = (replace(CHEAP, spot_usd_per_hour=4.0), replace(DEARER, spot_usd_per_hour=4.5))
    here = Place("dear-1-a", spot=True)
    held = state(zones=zones, place=here, home="dear-1-a", deadline_s=1e9, egress_usd=1.0)
    assert value_of_work(held, spare_s=1e9) == pytest.approx(3 + 0.25 * 0.75 * 4.5 + 0.0625 * 5)
    assert decide(held) == here


def test_an_hour_of_work_saves_the_price_of_the_cheapest_capacity_later():
    """Three of four looks see capacity, by the prior: the cheapest first, then the next, else on demand."""
    assert value_of_work(state(zones=(CHEAP,)), spare_s=1e9) == 0.75 * 1 + 0.25 * 5
    expected = 0.75 * 1 + 0.25 * (0.75 * 2 + 0.25 * 5)
    assert value_of_work(state(zones=(DEARER, CHEAP)), spare_s=1e9) == expected


def test_an_hour_of_work_is_worth_more_by_the_chance_that_the_spare_time_does_not_last():
    """Of 12 h outages take 3 h, and losses a restart and half of what is at risk, once and each 16.9 h."""
    asked = state(zones=(CHEAP,), at_risk_s=1200.0)
    mean_s = 0.25 * 12 * HOUR_S + 1200 * (1 + 12 / 16.9)
    for beyond_s, chance in ((0, 1.0), (-500, 1.0), (mean_s, exp(-1))):
        value = value_of_work(asked, spare_s=1200 + 2 * 600 + beyond_s)
        assert value == pytest.approx(2 + 3 * chance * 12 * HOUR_S / mean_s)


def test_little_work_is_as_dear_as_on_demand_at_most_where_no_time_is_left():
    asked = state(zones=(CHEAP,), work_s=60.0)
    assert value_of_work(asked, spare_s=0.0) == pytest.approx(5)


def test_the_life_that_counts_is_that_of_the_zone_where_it_is_longest():
    poor = Sightings()
    for tick in range(12):
        poor = poor.look(up=tick % 2 == 0, now_s=0.0)
    one, other = (CHEAP, replace(DEARER, sightings=poor)), (replace(CHEAP, sightings=poor), DEARER)
    least = [value_of_work(state(zones=zones), spare_s=0.0) for zones in (one, other)]
    assert min(least) > value_of_work(state(), spare_s=1e9)
    assert poor.lifetime_s(now_s=0.0) < CHEAP.sightings.lifetime_s(now_s=0.0) == pytest.approx(16.9 * HOUR_S)


HOUR_OF_WORK = {"work_s": HOUR_S, "home": "dear-1-a", "egress_usd": 1.4}


def test_spot_that_outlives_the_job_is_worth_all_of_its_work_to_a_job_that_is_nowhere():
    assert worth(state(work_s=HOUR_S), CHEAP, value=3.0) == pytest.approx(3 - 1)


def test_spot_is_worth_less_by_the_start_to_a_job_that_runs_elsewhere():
    elsewhere = state(work_s=HOUR_S, place=Place("dear-1-a", spot=True))
    assert worth(elsewhere, CHEAP, value=3.0) == pytest.approx(3 * 3600 / 4200 - 1)


def test_spot_is_worth_less_by_the_checkpoint_that_has_to_come_from_another_region():
    assert worth(state(**HOUR_OF_WORK), CHEAP, value=3.0) == pytest.approx(3 - 1 - 1.4 / (4200 / 3600))
    assert worth(state(**HOUR_OF_WORK), DEARER, value=3.0) == pytest.approx(3 - 2)


def test_spot_that_does_not_outlive_the_job_is_worth_less_by_its_start():
    """Its life of 16.9 h is shorter than a day of work; a start takes 600 s of it."""
    assert worth(state(work_s=24 * HOUR_S), CHEAP, value=3.0) == pytest.approx(3 * (1 - 600 / 60_840) - 1)


def test_spot_that_is_lost_before_it_has_started_is_worth_nothing():
    lost = replace(CHEAP, sightings=Sightings(recent_losses=1e6))
    assert worth(state(), lost, value=3.0) == -1


@pytest.mark.parametrize(("price", "zone"), [(5.8, "dear-1-a"), (5.9, "cheap-1-a")])
def test_on_demand_that_runs_needs_no_start_and_is_left_for_what_is_cheaper_with_one(price, zone):
    """An hour of work and 600 s of start cost 5.83 dollars at 5 dollars an hour."""
    running = state(zones=(CHEAP, replace(DEARER, on_demand_usd_per_hour=price)), work_s=HOUR_S,
                    place=Place("dear-1-a", spot=False))  # fmt: skip
    assert cheapest_on_demand(running) == Place(zone, spot=False)


@pytest.mark.parametrize(("egress_usd", "zone"), [(1.1, "cheap-1-a"), (1.2, "dear-1-a")])
def test_the_checkpoint_is_paid_for_where_on_demand_is_in_another_region(egress_usd, zone):
    """70 minutes cost 5.83 and 7.00 dollars."""
    assert cheapest_on_demand(state(**HOUR_OF_WORK | {"egress_usd": egress_usd})) == Place(zone, spot=False)


@pytest.mark.parametrize(("zone", "usd"), [("us-east-1c", 0.0), ("us-east-2a", 1.4), ("us-east-1", 0.0)])
def test_no_checkpoint_is_paid_for_between_zones_of_amazon_in_one_region(zone, usd):
    at_home = state(home="us-east-1a", egress_usd=1.4)
    assert at_home.egress(replace(CHEAP, name=zone)) == usd
