"""The search finds what looking at every candidate finds, and what it asks to relax is the least."""

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.contract.records import Rental
from pipeline.machines.startup import Part
from pipeline.planning.search import Candidate, Limits, relax, search
from pipeline.prediction.costs import Estimate
from tests.planning.jobs import machine

CONFIDENCE = 0.99


def candidate(
    seconds: float, price: float, spread: float = 0.1, name: str = "m", wait_s: float = 0.0
) -> Candidate:
    found = Estimate(
        machine=machine(name=name, usd_per_hour=price, flex=True, flex_usd_per_hour=price),
        rental=Rental(machine=name, strategy="flex-start" if wait_s else "on-demand", max_wait_s=wait_s),
        batch_size=1,
        micro_batch_size=1,
        num_loaders=0,
        checkpoint_every_s=1,
        parts=(Part(seconds=seconds, spread=spread),),
        deviation_s=0,
    )
    return Candidate(estimate=found)


catalogs = st.lists(
    st.builds(candidate, st.floats(60, 1e5), st.floats(0.01, 100), st.floats(0.01, 1)),
    min_size=1,
    max_size=30,
)
hours = st.floats(0.01, 30)
dollars = st.floats(0, 500)


def limits(deadline_h: float, budget_usd: float) -> Limits:
    return Limits(deadline_s=deadline_h * 3600, budget_usd=budget_usd, confidence=CONFIDENCE)


def brute_force(offered: list[Candidate], within: Limits, value) -> float | None:
    best = None
    for c in offered:
        feasible = c.time_s(CONFIDENCE) <= within.deadline_s and c.expected_usd <= within.budget_usd
        if feasible and (best is None or value(c) < best):
            best = value(c)
    return best


@given(catalogs, hours, dollars)
def test_the_cheapest_is_the_one_that_brute_force_finds(offered, hour, dollar):
    within = limits(hour, dollar)
    choice = search(offered, limits=within, objective="cost")
    expected = brute_force(offered, within, lambda c: c.expected_usd)
    assert (choice and choice.best.expected_usd) == expected


@given(catalogs, hours, dollars)
def test_the_fastest_is_the_one_that_brute_force_finds(offered, hour, dollar):
    within = limits(hour, dollar)
    choice = search(offered, limits=within, objective="time")
    assert (choice and choice.best.expected_s) == brute_force(offered, within, lambda c: c.expected_s)


@pytest.mark.slow
@given(catalogs, hours, dollars, st.floats(0, 10), st.floats(0, 100))
def test_more_hours_or_dollars_never_make_it_worse(offered, hour, dollar, longer, richer):
    for objective in ("cost", "time"):
        before = search(offered, limits=limits(hour, dollar), objective=objective)
        for after in (
            search(offered, limits=limits(hour + longer, dollar), objective=objective),
            search(offered, limits=limits(hour, dollar + richer), objective=objective),
        ):
            if before is None:
                continue
            assert after is not None
            if objective == "cost":
                assert after.best.expected_usd <= before.best.expected_usd
            else:
                assert after.best.expected_s <= before.best.expected_s


@given(catalogs, hours, dollars)
def test_each_relaxation_alone_is_enough_and_a_little_less_is_not(offered, hour, dollar):
    within = limits(hour, dollar)
    if search(offered, limits=within, objective="cost") is not None:
        return
    least = relax(offered, limits=within)
    if least.deadline_s is not None:
        assert search(offered, limits=limits(least.deadline_s / 3600 * 1.000001, dollar), objective="cost")
        assert not search(offered, limits=limits(least.deadline_s / 3600 * 0.999, dollar), objective="cost")
    if least.budget_usd is not None:
        assert search(offered, limits=limits(hour, least.budget_usd), objective="cost")
        assert not search(offered, limits=limits(hour, least.budget_usd * 0.999), objective="cost")
    seconds, usd = least.both
    assert search(offered, limits=limits(seconds / 3600 * 1.000001, usd), objective="cost")


@given(catalogs, hours, dollars)
def test_the_knee_is_never_beaten_in_both_time_and_cost(offered, hour, dollar):
    choice = search(offered, limits=limits(hour, dollar), objective="knee")
    for other in choice.ranked if choice else ():
        assert not (
            other.expected_usd < choice.best.expected_usd and other.expected_s < choice.best.expected_s
        )


@given(catalogs, st.lists(st.tuples(st.floats(60, 1e5), st.floats(60, 1e5)), max_size=5), hours, dollars)
def test_what_waits_is_taken_only_where_another_could_begin_after_the_wait(at_once, waits, hour, dollar):
    within = limits(hour, dollar)
    waiting = [candidate(seconds, 0.01, wait_s=wait_s) for seconds, wait_s in waits]
    choice = search([*waiting, *at_once], limits=within, objective="cost")
    alone = search(at_once, limits=within, objective="cost")
    assert (choice is None) == (alone is None)
    if choice is None:
        return
    assert choice.best.expected_usd <= alone.best.expected_usd
    latest = min(c.rental.max_wait_s + min(o.time_s(CONFIDENCE) for o in alone.ranked) for c in [choice.best])
    assert not choice.best.rental.is_queued or latest <= within.deadline_s * (1 + 1e-12)


@given(catalogs, hours, dollars)
def test_what_cannot_be_run_here_is_neither_chosen_nor_a_relaxation(offered, hour, dollar):
    hindered = [replace(each, hindrance="no such machine") for each in offered]
    assert search(hindered, limits=limits(hour, dollar), objective="cost") is None
    dear = candidate(1e6, 1e6)
    least = relax([dear, *hindered], limits=limits(hour, dollar))
    assert least.both == (dear.time_s(CONFIDENCE), dear.expected_usd)


def test_the_knee_is_where_the_next_dollar_buys_little():
    curve = [candidate(36_000, 0.1), candidate(7200, 1.0), candidate(6000, 12.0)]
    assert search(curve, limits=limits(100, 1000), objective="knee").best is curve[1]


@pytest.mark.slow
def test_ten_thousand_candidates_take_less_than_a_second():
    offered = [candidate(60 + n, 0.01 + n % 97, name=f"m{n}") for n in range(10_000)]
    begin = time.process_time()
    assert search(offered, limits=limits(30, 500), objective="cost")
    assert time.process_time() - begin < 1


def test_the_runner_up_is_named_with_the_number_that_decided():
    cheap, dear = candidate(3600, 1.0, name="cheap"), candidate(1800, 4.0, name="dear")
    assert search([cheap, dear], limits=limits(10, 40), objective="cost").runner_up == (
        "dear: $2.00 rather than $1.00"
    )
    assert search([cheap, dear], limits=limits(10, 40), objective="time").runner_up == (
        "cheap: 1.0 h rather than 30.0 min"
    )
    assert search([cheap, dear], limits=limits(1, 40), objective="cost").runner_up == (
        "cheap: in time with a chance of 0.500, below plan.confidence 0.99"
    )
    assert search([cheap, dear], limits=limits(10, 1.5), objective="cost").runner_up == (
        "dear: $2.00 is over night.budget_usd 1.50"
    )
    twin = candidate(3600, 1.0, name="dearest")
    assert search([cheap, twin], limits=limits(10, 40), objective="cost").runner_up == (
        "dearest: as fast and as cheap; fewer machines and the first name go first"
    )
    assert search(
        [dear, candidate(1800, 5.0, name="poor")], limits=limits(10, 40), objective="time"
    ).runner_up == ("poor: $2.50 rather than $2.00")
    assert search([cheap], limits=limits(10, 40), objective="cost").runner_up == (
        "no other machine is named by plan.machines"
    )
