"""The search finds the same as looking at every candidate, and asks to relax the least."""

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract.record_parts import Rental
from daybreak.machines.startup import StartupPart
from daybreak.planning.search import (
    Candidate,
    PlanLimits,
    by_cost,
    by_time,
    distinct_name,
    feasible,
    frontier,
    is_slower,
    relax,
    search,
    why_not,
)
from daybreak.prediction.costs import Estimate
from tests.planning.jobs import machine

CONFIDENCE = 0.99


def candidate(
    seconds: float,
    price: float,
    spread: float = 0.1,
    name: str = "m",
    wait_s: float = 0.0,
    num_machines: int = 1,
    region: str = "us-central1",
    batch_size: int = 1,
) -> Candidate:
    strategy = "flex-start" if wait_s else "on-demand"
    estimate = Estimate(
        machine=machine(name=name, usd_per_hour=price, flex=True, flex_usd_per_hour=price, region=region),
        rental=Rental(machine=name, num_machines=num_machines, strategy=strategy, max_wait_s=wait_s),
        batch_size=batch_size,
        micro_batch_size=1,
        num_loaders=0,
        checkpoint_every_s=1,
        parts=(StartupPart(seconds=seconds, spread=spread),),
        deviation_s=0,
    )
    return Candidate(estimate=estimate)


catalogs = st.lists(
    st.builds(candidate, st.floats(60, 1e5), st.floats(0.01, 100), st.floats(0.01, 1)),
    min_size=1,
    max_size=30,
)
hours = st.floats(0.01, 30)
dollars = st.floats(0, 500)


def limits(deadline_h: float, budget_usd: float) -> PlanLimits:
    return PlanLimits(deadline_s=deadline_h * 3600, budget_usd=budget_usd, confidence=CONFIDENCE)


def brute_force(offered: list[Candidate], within: PlanLimits, value) -> float | None:
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
def test_the_fastest_is_the_cheapest_that_is_surely_slower_than_no_other(offered, hour, dollar):
    choice = search(offered, limits=limits(hour, dollar), objective="time")
    for each in choice.ranked if choice else ():
        assert not is_slower(choice.best, each)
        if each.expected_usd < choice.best.expected_usd:
            assert any(is_slower(each, other) for other in choice.ranked)


def test_of_what_is_paid_for_nothing_is_surely_slower_than_a_third():
    """The least expected time is that of a device so uncertain that nothing is surely slower than it."""
    slow, sure = candidate(13_560, 1.6, 0.01), candidate(4_920, 4.8, 0.01)
    unseen = candidate(4_000, 8.0, 1.0)
    unseen = replace(
        unseen, estimate=replace(unseen.estimate, machine=replace(unseen.machine, device="A100"))
    )
    assert not is_slower(slow, unseen) and not is_slower(sure, unseen)
    choice = search([slow, sure, unseen], limits=limits(100, 40), objective="time")
    assert choice.best is sure
    within = {"best": sure, "limits": limits(100, 40), "objective": "time"}
    assert why_not(unseen, **within) == (
        f"${unseen.expected_usd:.2f} rather than ${sure.expected_usd:.2f}; 15 min 20 s sooner is within the "
        "error of the forecasts"
    )
    fast = candidate(1_000, 40.0, 0.01)
    assert is_slower(sure, fast)
    assert "within the error" not in why_not(fast, **within)


@given(catalogs, hours, dollars)
def test_without_any_doubt_the_fastest_is_the_one_that_brute_force_finds(offered, hour, dollar):
    certain = [candidate(c.expected_s, c.estimate.usd_per_hour, spread=0.0) for c in offered]
    within = limits(hour, dollar)
    choice = search(certain, limits=within, objective="time")
    assert (choice and choice.best.expected_s) == brute_force(certain, within, lambda c: c.expected_s)


@pytest.mark.slow
@given(catalogs, hours, dollars, st.floats(0, 10), st.floats(0, 100))
def test_more_hours_or_dollars_never_make_it_worse(offered, hour, dollar, longer, richer):
    for objective, value in (("cost", by_cost), ("time", by_time)):
        before = search(offered, limits=limits(hour, dollar), objective=objective)
        richly = search(offered, limits=limits(hour, dollar + richer), objective=objective)
        late = search(offered, limits=limits(hour + longer, dollar), objective=objective)
        if before is None:
            continue
        assert richly is not None
        assert late is not None
        assert value(richly.best) <= value(before.best)
        # With more hours `time` may take what is slower within the error, and cheaper.
        assert value(late.best) <= value(before.best) or not is_slower(late.best, before.best)
        assert by_cost(late.best) <= by_cost(before.best) or value(late.best) <= value(before.best)


@pytest.mark.parametrize(
    ("seconds", "device", "start_spread", "paid"),
    [
        (600.07, "cpu", 0.4, False),  # 0.07 s sooner, by starts that differ by a minute
        (600.07, "cpu", 0.0, True),  # the same device and no start: the sum is late as a whole
        (900.0, "L4", 0.0, False),  # another device, each a factor of two either way
        (1600.0, "L4", 0.0, True),
    ],
)
def test_no_dollar_is_paid_for_time_within_the_error_of_both_forecasts(seconds, device, start_spread, paid):
    def way(work_s: float, price: float, **changes: str) -> Candidate:
        parts = (
            StartupPart(seconds=60, spread=start_spread, name="start-up"),
            StartupPart(seconds=work_s, spread=0.42),
        )
        plain = candidate(work_s, price)
        on = replace(plain.machine, **changes)
        return Candidate(estimate=replace(plain.estimate, machine=on, parts=parts))

    cheap, dear = way(seconds, 1.0, device=device), way(600.0, 16.0)
    choice = search([cheap, dear], limits=limits(10, 40), objective="time")
    assert choice.best is (dear if paid else cheap)
    assert ("within the error" in choice.runner_up) == (not paid)


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
        "cheap: 1 h rather than 30 min"
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


AS_LIKELY_AS_NOT = PlanLimits(deadline_s=7200, budget_usd=10, confidence=0.5)  # so that a time is its median


@pytest.mark.parametrize(("wait_s", "taken"), [(3600, True), (3601, False)])
def test_what_waits_may_wait_until_another_could_still_be_in_time(wait_s, taken):
    at_once, waiting = candidate(3600, 1.0), candidate(60, 0.1, name="w", wait_s=wait_s)
    choice = search([at_once, waiting], limits=AS_LIKELY_AS_NOT, objective="cost")
    assert choice.best is (waiting if taken else at_once)
    if not taken:
        assert choice.runner_up == "w, flex-start: may wait 1 h, after which nothing else would be in time"


def test_the_fastest_of_what_is_rented_at_once_is_what_there_is_time_for_after_a_wait():
    slow, fast = candidate(7000, 0.1), candidate(1200, 2.0, name="fast")
    waiting = candidate(60, 0.01, name="w", wait_s=6000)
    assert feasible([slow, waiting, fast], AS_LIKELY_AS_NOT) == [slow, waiting, fast]
    assert feasible([slow, waiting], AS_LIKELY_AS_NOT) == [slow]


def test_what_could_not_be_run_or_paid_after_a_wait_is_nothing_to_wait_before():
    waiting = candidate(60, 0.01, name="w", wait_s=3600)
    assert feasible([waiting], AS_LIKELY_AS_NOT) == []
    assert feasible([waiting, candidate(60, 601.0)], AS_LIKELY_AS_NOT) == []
    assert feasible([waiting, replace(candidate(60, 1.0), hindrance="no quota")], AS_LIKELY_AS_NOT) == []


def test_a_wait_counts_in_full_in_the_time_and_not_in_the_dollars():
    waiting = candidate(3600, 2.0, spread=0.2, wait_s=1800)
    at_once = candidate(3600, 2.0, spread=0.2)
    assert waiting.expected_s == at_once.expected_s + 1800 == 5400
    assert waiting.expected_usd == at_once.expected_usd == 2.0
    assert waiting.time_s(0.9) == at_once.time_s(0.9) + 1800
    assert waiting.interval == (at_once.interval[0], at_once.interval[1] + 1800)


def test_the_chance_is_that_of_the_time_after_the_wait():
    waiting = candidate(3600, 2.0, wait_s=1800)
    assert waiting.chance(5400) == pytest.approx(0.5, abs=1e-5)
    assert waiting.chance(1800) == waiting.chance(1) == 0


@pytest.mark.parametrize(("seconds", "price"), [(7201, 1.0), (7200, 5.01)])
def test_a_limit_is_kept_up_to_its_last_second_and_cent(seconds, price):
    assert AS_LIKELY_AS_NOT.hold(candidate(7200, 5.0))
    assert not AS_LIKELY_AS_NOT.hold(candidate(seconds, price))


def test_of_two_as_cheap_the_faster_is_best_and_of_two_as_fast_the_cheaper():
    fast, slow = candidate(1800, 2.0, name="a"), candidate(3600, 1.0, name="b")
    assert search([slow, fast], limits=limits(10, 40), objective="cost").best is fast
    cheap, dear = candidate(1800, 1.0, name="b"), candidate(1800, 2.0, name="a")
    assert search([dear, cheap], limits=limits(10, 40), objective="time").best is cheap


@pytest.mark.parametrize("objective", ["cost", "time"])
def test_of_two_as_good_fewer_machines_are_best_and_then_the_first_name(objective):
    first, second = candidate(3600, 1.0, name="a"), candidate(3600, 1.0, name="b")
    two = candidate(3600, 0.5, name="a", num_machines=2)
    assert search([second, two, first], limits=limits(10, 40), objective=objective).ranked == (
        first,
        second,
        two,
    )


def test_the_feasible_are_ranked_with_the_best_first_even_where_it_is_not_the_cheapest():
    curve = [candidate(36_000, 0.1, name="slow"), candidate(7200, 1.0), candidate(6000, 12.0, name="dear")]
    slow, middle, dear = curve
    choice = search(curve, limits=limits(100, 1000), objective="knee")
    assert choice.ranked == (middle, slow, dear)
    assert choice.runner_up == "slow: $1.00 rather than $2.00, 10 h rather than 2 h"


def test_at_the_knee_half_the_time_is_worth_at_most_twice_the_dollars():
    slow, fast = candidate(3600, 1.0), candidate(1800, 3.9)
    assert search([slow, fast], limits=limits(100, 1000), objective="knee").best is fast
    dear = candidate(1800, 4.1)
    assert search([slow, dear], limits=limits(100, 1000), objective="knee").best is slow


def test_the_knee_does_not_pay_a_hundred_times_as_much_for_half_the_time():
    cheap, dear = candidate(709, 0.04 * 3600 / 709), candidate(283, 4.89 * 3600 / 283)
    middle = candidate(500, 3.0 * 3600 / 500)
    assert search([dear, middle, cheap], limits=limits(10, 40), objective="knee").best is cheap


@pytest.mark.parametrize(("free_s", "taken"), [(2000, "free"), (150_000, "paid")])
def test_what_is_free_counts_as_a_cent_at_the_knee(free_s, taken):
    free, paid = candidate(free_s, 0.0, name="free"), candidate(700, 0.04 * 3600 / 700, name="paid")
    assert search([free, paid], limits=limits(100, 40), objective="knee").best.machine.name == taken


@pytest.mark.parametrize("objective", ["time", "knee"])
@pytest.mark.parametrize(("rate", "taken"), [(0, 0), (1.9, 0), (2.1, 1), (13.9, 1), (14.1, 2), (None, None)])
def test_no_hour_is_saved_for_more_than_it_is_worth(objective, rate, taken):
    """From 10 h for $1 to 5 h for $11 an hour saved costs $2, and from there to 4 h for $25 it costs $14."""
    curve = [candidate(36_000, 0.1), candidate(18_000, 2.2), candidate(14_400, 6.25)]
    within = replace(limits(100, 1000), usd_per_hour_saved=rate)
    best = search(curve, limits=within, objective=objective).best
    assert best is curve[{"time": 2, "knee": 0}[objective] if taken is None else taken]
    assert search(curve, limits=within, objective="cost").best is curve[0]


@given(catalogs, hours, dollars, st.floats(0, 100), st.sampled_from(["time", "knee"]))
def test_a_price_per_hour_saved_takes_what_brute_force_takes(offered, hour, dollar, rate, objective):
    within = replace(limits(hour, dollar), usd_per_hour_saved=rate)
    choice = search(offered, limits=within, objective=objective)

    def worth(each: Candidate) -> float:
        return each.expected_usd + rate * each.expected_s / 3600

    assert (choice and worth(choice.best)) == brute_force(offered, within, worth)


def test_what_saves_an_hour_for_too_much_says_its_price():
    slow, fast = candidate(7200, 0.5, name="slow"), candidate(3600, 5.0, name="fast")
    within = replace(limits(10, 40), usd_per_hour_saved=2)
    assert search([slow, fast], limits=within, objective="time").runner_up == (
        "fast: $4.00 for an hour saved is over plan.usd_per_hour_saved 2"
    )
    within = replace(limits(10, 40), usd_per_hour_saved=5)
    assert search([slow, fast], limits=within, objective="time").runner_up == (
        "slow: $1.00 rather than $5.00, 2 h rather than 1 h"
    )


def test_the_knee_of_one_is_that_one_and_of_two_the_cheaper():
    one, two = candidate(3600, 1.0), candidate(1800, 4.0)
    assert search([one], limits=limits(10, 40), objective="knee").best is one
    assert search([two, one], limits=limits(10, 40), objective="knee").best is one


def test_the_frontier_has_what_nothing_beats_in_both_cheapest_first():
    cheap, fast = candidate(3600, 1.0), candidate(1800, 4.0)
    beaten, as_slow = candidate(4000, 2.0), candidate(3600, 1.5)
    assert frontier([fast, beaten, as_slow, cheap]) == [cheap, fast]


def test_where_only_one_is_feasible_the_cheapest_of_the_others_is_named_with_its_fault():
    best, late, later = candidate(3600, 5.0), candidate(9000, 0.1, name="b"), candidate(9000, 0.2, name="c")
    choice = search([later, best, late], limits=AS_LIKELY_AS_NOT, objective="cost")
    assert choice.runner_up.startswith("b: in time with a chance of 0.013, below plan.confidence 0.5")


def test_the_least_deadline_is_of_what_is_in_the_budget_and_the_least_budget_of_what_is_in_time():
    slow, dear, both = candidate(9000, 1.0), candidate(3600, 20.0), candidate(8000, 36.0)
    least = relax([slow, dear, both], limits=AS_LIKELY_AS_NOT)
    assert (least.deadline_s, least.budget_usd) == (9000, 20)
    assert least.both == (9000, 2.5)  # an eighth of the deadline more, where the others need twice or more


def test_what_is_over_both_limits_is_no_relaxation_on_one_axis():
    least = relax([candidate(9000, 36.0)], limits=AS_LIKELY_AS_NOT)
    assert (least.deadline_s, least.budget_usd, least.both) == (None, None, (9000, 90))


def test_what_waits_is_no_relaxation():
    waiting, at_once = candidate(60, 0.1, wait_s=60), candidate(9000, 1.0)
    assert relax([waiting, at_once], limits=AS_LIKELY_AS_NOT).both == (9000, 2.5)


def test_without_a_budget_the_nearest_is_the_one_that_costs_least():
    free = replace(AS_LIKELY_AS_NOT, budget_usd=0)
    assert relax([candidate(3600, 0.03), candidate(3600, 0.02)], limits=free).both == (3600, 0.02)
    assert relax([candidate(36_000, 0.001), candidate(3600, 0.045)], limits=free).both[0] == 3600


def test_the_runner_up_is_called_by_what_sets_it_apart():
    best = candidate(3600, 1.0)
    assert distinct_name(candidate(3600, 1.0, name="b"), best) == "b"
    assert distinct_name(candidate(3600, 1.0, region="us-east4"), best) == "m, in us-east4"
    assert distinct_name(candidate(3600, 1.0, region=""), best) == "m"
    assert distinct_name(candidate(3600, 1.0, batch_size=64, num_machines=2), best) == "2 x m, batch 64"


def test_what_cannot_be_run_says_why_before_any_number():
    best, hindered = candidate(3600, 1.0), replace(candidate(1e6, 1e6), hindrance="no quota")
    assert why_not(hindered, best=best, limits=AS_LIKELY_AS_NOT, objective="cost") == "no quota"
    assert why_not(best, best=best, limits=AS_LIKELY_AS_NOT, objective="cost") == ""


@pytest.mark.parametrize(
    ("seconds", "usd", "words"),
    [
        (599, 0.5, "$0.50 rather than $4.00, 9 min 59 s rather than 2 h"),
        (600, 1.0, "$1.00 rather than $4.00, 10 min rather than 2 h"),
        (3599, 0.9999, "$1.00 rather than $4.00, 1 h rather than 2 h"),
        (3600, 0.0, "$0.00 rather than $4.00, 1 h rather than 2 h"),
    ],
)
def test_times_and_dollars_are_said_to_three_figures(seconds, usd, words):
    other, best = candidate(seconds, usd * 3600 / seconds, name="b"), candidate(7200, 2.0)
    assert why_not(other, best=best, limits=limits(10, 40), objective="knee") == words


def test_where_the_dollars_are_the_same_the_time_decided_and_the_other_way_round():
    best = candidate(3600, 2.0)
    slower, dearer = candidate(7200, 1.0, name="b"), candidate(3600, 3.0, name="c")
    both = candidate(7200, 2.0, name="d")
    assert why_not(both, best=best, limits=limits(10, 40), objective="cost") == "$4.00 rather than $2.00"
    assert why_not(both, best=best, limits=limits(10, 40), objective="time") == "2 h rather than 1 h"
    assert why_not(slower, best=best, limits=limits(10, 40), objective="cost") == "2 h rather than 1 h"
    assert why_not(dearer, best=best, limits=limits(10, 40), objective="time") == "$3.00 rather than $2.00"
