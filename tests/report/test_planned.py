"""A plan's pictures show what was weighed, and are left out where a plan does not have it."""

from dataclasses import replace

import pytest

from daybreak.contract.record_parts import Option, Portion, Rental
from daybreak.contract.record_types import Night, Plan
from daybreak.report.planned import pictures
from tests.report.nights import whole


def option(name: str, seconds: float, usd: float, *, feasible: bool = True, frontier: bool = True) -> Option:
    return Option(
        rental=Rental(machine=name, region="us-central1", strategy="spot"),
        batch_size=256,
        expected_s=seconds,
        interval=(seconds * 0.8, seconds * 1.3),
        expected_usd=usd,
        chance=0.995 if feasible else 0.2,
        feasible=feasible,
        frontier=frontier,
        why_not="" if name == "chosen" else f"{usd} is more",
    )


def weighing(plan: Plan, *options: Option) -> Plan:
    """A plan that weighed these options."""
    return replace(plan, reasons=replace(plan.reasons, options=options))


@pytest.fixture
def night() -> Night:
    return whole().night


@pytest.fixture
def plan() -> Plan:
    made = whole().plan
    assert made
    return replace(
        weighing(
            made,
            option("chosen", 3600, 2.0),
            option("quick", 600, 9.0),
            option("poor", 3000, 12.0, frontier=False),
            option("late", 90_000, 0.0, feasible=False),
        ),
        forecast=replace(
            made.forecast,
            portions=(
                Portion(name="queue, at most", expected_s=1800, expected_usd=0),
                Portion(name="training", expected_s=1800, expected_usd=2.0),
            ),
        ),
    )


def test_the_options_are_drawn_with_the_plan_named(plan, night):
    drawn = pictures(plan, night)["options"]
    assert drawn
    assert "Time and cost of 4 options, 3 of them feasible" in drawn
    assert "the plan is chosen, spot, in us-central1, 1 h, $2.00" in drawn
    assert "NaN" not in drawn


def test_limits_are_drawn_only_where_they_are_near(plan, night):
    drawn = pictures(plan, night)["options"]
    assert drawn and ">deadline<" in drawn and ">budget<" in drawn
    far = pictures(plan, replace(night, budget_usd=1e6))["options"]
    assert far and ">deadline<" in far and ">budget<" not in far


def test_what_the_plan_consists_of_is_drawn_with_time_and_dollars(plan, night):
    drawn = pictures(plan, night)["portions"]
    assert drawn
    assert "queue, at most 30 min, $0.00; training 30 min, $2.00" in drawn


def test_a_plan_of_an_earlier_night_has_no_picture(plan, night):
    drawn = pictures(replace(weighing(plan), forecast=replace(plan.forecast, portions=())), night)
    assert drawn == {"options": None, "portions": None}


def test_options_that_are_all_alike_have_no_picture(plan, night):
    alone = weighing(plan, *plan.reasons.options[:1])
    assert pictures(alone, night)["options"] is None


def test_options_that_cost_nothing_are_drawn(plan, night):
    free = tuple(replace(each, expected_usd=0.0) for each in plan.reasons.options)
    assert pictures(weighing(plan, *free), night)["options"]
