"""No deadline is missed that buying at once would have met, and what is dear is not bought without need."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.simulation.baselines import on_demand
from pipeline.simulation.replay import Luck, replay
from pipeline.spot.policies import decide, safety_margin, value_of_work
from pipeline.spot.states import Place, Sightings, State, Zone
from tests.spot.markets import TICK_S, job, trace

HOUR_S = 3600.0
CHEAP = Zone(name="cheap-1-a", spot_usd_per_hour=1.0, on_demand_usd_per_hour=5.0)
DEARER = Zone(name="dear-1-a", spot_usd_per_hour=2.0, on_demand_usd_per_hour=6.0)


def state(**told) -> State:
    known = dict(
        now_s=0.0, deadline_s=18 * HOUR_S, tick_s=TICK_S, work_s=12 * HOUR_S, done_s=0.0,
        zones=(CHEAP, DEARER), restart_s=600.0, doubt=0.0,
    )  # fmt: skip
    return State(**(known | told))


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
    told = job(work=work, deadline=num_ticks, restart=restart, notice=notice, doubt=doubt,
               checkpoint_every_s=draw(st.sampled_from([120.0, 900.0, 1800.0])))  # fmt: skip
    luck = replace(luck, restart_s=tuple(share * told.restart_s for share in luck.restart_s))
    return told, zones, luck


spells = st.lists(st.tuples(st.sampled_from("#."), st.integers(1, 12)), min_size=1, max_size=8)


@pytest.mark.slow
@settings(max_examples=300)
@given(nights())
def test_no_deadline_is_missed_that_the_slowest_machine_bought_at_once_would_meet(night):
    told, zones, luck = night
    slowest = replace(
        luck,
        throughput=(min(1 - told.doubt, luck.throughput[0]),) * len(luck.throughput),
        restart_s=(told.restart_s,) * len(luck.restart_s),
    )
    assume(not replay(on_demand, told, zones, luck=slowest).missed)
    assert not replay(decide, told, zones, luck=luck).missed


@pytest.mark.slow
@settings(max_examples=100)
@given(nights())
def test_it_never_costs_more_than_buying_for_all_of_the_time(night):
    told, zones, luck = night
    outcome = replay(decide, told, zones, luck=luck)
    dearest = 9.5 * told.deadline_s / HOUR_S
    assert outcome.usd <= dearest + told.egress_usd * outcome.num_moves + 1e-9


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
