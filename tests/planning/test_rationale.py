"""A plan shows in the terminal the options weighed, the reasons against each, and its parts."""

import re
from dataclasses import replace

import pytest

from daybreak.contract.record_parts import MonthBudget
from daybreak.contract.record_types import Plan
from daybreak.contract.sections import Params, PlanParams, TrainParams
from daybreak.planning.planner import plan
from daybreak.planning.rationale import around, picture, rationale, rows
from daybreak.prediction.calibration import CostCalibration, PastUpdateTime, Update
from daybreak.prediction.efficiency import Reached
from daybreak.prediction.measurements import StepSetting
from tests.planning.jobs import DATASET, EVERYTHING, night, profile

PLUGS = dict.fromkeys(("source", "workload", "backend"), "some.module:Class")


@pytest.fixture(scope="module")
def made() -> Plan:
    params = PlanParams(machines=("local", "g2-*", "a2-highgpu-*"), max_machines=4, flex_wait_hours=1)
    sections = Params(**PLUGS, plan=params, train=TrainParams(epochs=1, batch_size=256))
    return plan(
        night(hours=3, budget_usd=2), DATASET, profile(step_s=2e-2), None, sections, available=EVERYTHING
    )


def test_the_first_line_says_what_is_rented_at_what_price_and_why_not_the_next(made):
    first = rationale(made, night(hours=3, budget_usd=2)).splitlines()[0]
    assert first.startswith(f"{made.rental.machine}, spot, in us-central1, batch 256: ")
    assert f" an hour as of {made.reasons.price.dated} (Cyclenerd/" in first
    assert " of $2.00, in time with a chance of " in first
    assert first.endswith(f"Next best: {made.reasons.runner_up}.")


def test_what_the_night_waited_is_not_left_to_the_deadline(made):
    tonight, late = night(hours=3, budget_usd=2), replace(made, waited_s=3600.0)
    waited, before, left, _ = around(late, tonight)
    assert waited == ("waited for its day or for machines", 3600, None)
    whole_s = sum(portion.expected_s for portion in late.forecast.portions)
    assert whole_s + before[1] + left[1] == pytest.approx(2 * 3600)
    assert before[1] == pytest.approx(0.05 * 3 * 3600, rel=0.1)  # as long as without the wait
    assert "waited for its day or for machines" in rationale(late, tonight)


def test_what_the_month_has_left_is_said(made):
    month = MonthBudget(usd=300, spent_usd=180, num_nights=12)
    shown = rationale(made, replace(night(hours=3, budget_usd=2), month=month))
    left = "$120.00 of this month's $300.00 are left for 12 nights"
    assert f"{left}; tonight may cost $2.00 (night.usd_per_month)." in shown


def test_the_table_has_a_line_an_option_with_why_not(made):
    shown = rationale(made, night(hours=3, budget_usd=2))
    for row in rows(made.reasons.options[:12]):
        assert "  ".join(row[:1]) in shown
        assert row[-1] in shown
    assert [row[-1] for row in rows(made.reasons.options)].count("the plan") == 1
    assert f"and {len(made.reasons.options) - 12} more in data/run/plan.json" in shown


def test_the_picture_marks_the_plan_once_and_every_place_of_the_frontier(made):
    drawn = picture(made.reasons.options)
    area = "".join(line.partition("|")[2] for line in drawn if "|" in line)
    assert area.count("X") == 1
    assert 1 <= area.count("o") <= sum(option.frontier for option in made.reasons.options)
    assert all(len(line) < 90 for line in drawn)


def test_the_waterfall_adds_up_to_the_night(made):
    tonight = night(hours=3, budget_usd=2)
    whole_s = sum(portion.expected_s for portion in made.forecast.portions)
    before, left, after = around(made, tonight)
    assert whole_s + before[1] + left[1] == pytest.approx(3 * 3600)
    assert made.forecast.expected_usd + left[2] == pytest.approx(2)
    told_s = sum(portion.expected_s for portion in made.after)
    assert after == ("left to the decision", pytest.approx(6 * 3600 - told_s), None)
    names = [portion.name for portion in (*made.forecast.portions, *made.after)] + [
        before[0],
        left[0],
        after[0],
    ]
    lines = rationale(made, tonight).splitlines()[-len(names) :]
    assert all(line.startswith(name) for line, name in zip(lines, names, strict=True))


def test_a_plan_of_an_earlier_night_has_its_sentence_and_no_table(made):
    old = replace(
        made,
        forecast=replace(made.forecast, portions=(), chance=None),
        reasons=replace(made.reasons, options=(), basis=""),
        spot=None,
    )
    shown = rationale(old, night(budget_usd=2))
    assert len(shown.splitlines()) == 1
    assert "chance" not in shown


def test_what_the_time_rests_on_is_said_with_its_own_interval(made):
    (low_s, high_s), expected_s = made.forecast.interval, made.forecast.expected_s
    second = rationale(made, night(hours=3, budget_usd=2)).splitlines()[1]
    assert second.startswith("The time rests on the profile on cpu, by the roofline to ")
    assert high_s > 5 * expected_s
    assert second.endswith(
        f"no night has run there, so the 90 % interval is {low_s / expected_s:.2g} to "
        f"{high_s / expected_s:.2g} times the time."
    )


def test_a_wide_interval_is_said_without_an_exponent():
    unsure = replace(profile(), step_s=replace(profile().step_s, fixed_error=1e4, per_sample_error=1e3))
    params = Params(**PLUGS, plan=PlanParams(machines=("local",)), train=TrainParams(epochs=1e-4))
    options = {"night": night(hours=10**5, budget_usd=100), "champion": None, "params": params}
    basis = plan(dataset=DATASET, profile=unsure, available=EVERYTHING, **options).reasons.basis
    assert re.search(r"the 90 % interval is [\d.]+ to [\d,]{3,} times the time", basis)


def test_a_larger_batch_says_which_prior_its_samples_rest_on():
    params = Params(
        **PLUGS, plan=PlanParams(machines=("local",), batch_sizes=(512,)), train=TrainParams(batch_size=256)
    )
    basis = plan(night(), DATASET, profile(), None, params, available=EVERYTHING).reasons.basis
    assert basis.startswith("the profile on cpu; no night has run there, so the 90 % interval is 0.91 to 1.1")
    assert "1.20 (0.61 to 2.39) times the samples in batches of 512 rather than 256, by the prior of" in basis
    assert "noise-scale theory (noise scale 1,000); no nights with two batch sizes can tell yet" in basis


def test_the_noise_that_training_met_takes_the_place_of_what_the_profile_saw():
    params = Params(
        **PLUGS, plan=PlanParams(machines=("local",), batch_sizes=(512,)), train=TrainParams(batch_size=256)
    )
    asked = plan(night(), DATASET, profile(), None, params, available=EVERYTHING)
    reached = Reached(
        batch_size=512,
        num_samples=asked.num_samples,
        noise_scale=4000.0,
        score=0.3,
        size=0.3,
        flops_per_sample=profile().flops_per_sample,
    )
    known = CostCalibration(reached=[reached])
    corrected = plan(night(), DATASET, profile(), None, params, available=EVERYTHING, known=known)
    assert "(noise scale 4,000)" in corrected.reasons.basis
    assert corrected.num_samples < asked.num_samples


def test_earlier_nights_take_the_place_of_the_prior():
    setting = StepSetting(workers=(1,), micro_batch_size=256)
    past = PastUpdateTime(
        machine="local",
        device="cpu",
        measured_here=True,
        setting=setting,
        update=Update(fixed_s=0.01, per_sample_s=1e-3, within_s=0.01, across_s=0.01),
        ratio=1.1,
    )
    params = Params(**PLUGS, plan=PlanParams(machines=("local",)), train=TrainParams(batch_size=256))
    known = CostCalibration(past=(past, past))
    corrected = plan(night(), DATASET, profile(), None, params, available=EVERYTHING, known=known)
    assert corrected.reasons.basis == "the profile on cpu, corrected by 2 nights on it"
