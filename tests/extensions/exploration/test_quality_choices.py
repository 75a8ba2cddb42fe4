"""Nights take more days, or a wider model, where nights have shown that these pay, and only there."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from math import inf, log2

import numpy as np
import pytest

from daybreak.contract.record_parts import Chosen
from daybreak.contract.sections import Params, PlanParams, TrainParams
from daybreak.extensions.exploration.learning_curve import QualityNight
from daybreak.extensions.exploration.quality import MOST_TRIES
from daybreak.extensions.exploration.quality_choices import Choices, Tonight, choose
from daybreak.planning.planner import plan
from daybreak.planning.rationale import rationale
from daybreak.prediction.calibration import CostCalibration
from tests.extensions.exploration.test_quality import EPOCH, PLUGS, nights
from tests.planning.jobs import DATASET, EVERYTHING, night, profile

DAYS, WIDTH = "prepare.window_days", "workload.width"
WINDOW: Choices = {DAYS: (30, 60, 120)}
TWO: Choices = {DAYS: (30, 60)}
BOTH: Choices = {DAYS: (30, 60), WIDTH: (64, 128)}
TONIGHT = Tonight(
    values={DAYS: 30},
    set_by_person=frozenset(),
    serving={},
    rest="the same",
    warm=False,
    passes=2,
    hours=10,
    budget_usd=10,
    left_usd=5,
)
Worth = Callable[[Mapping[str, int]], float]


def history(
    num_nights: int,
    worth: Worth,
    *,
    choices: Choices = WINDOW,
    tonight: Tonight = TONIGHT,
    seed: int = 0,
    trend: float = 0.0,
    hours: Worth = lambda values: 1.0,
    usd: Worth = lambda values: 1.0,
) -> list[QualityNight]:
    """Nights whose values are chosen by those before, with noise that is alike from night to night."""
    rng, error = np.random.default_rng(seed), 0.0
    past: list[QualityNight] = []
    for number in range(num_nights):
        chosen = choose(choices, tonight, past)
        error = 0.3 * error + rng.standard_t(4) / 2**0.5
        past.append(
            QualityNight(
                chosen=chosen,
                passes=tonight.passes,
                warm=tonight.warm,
                usd=usd(chosen.values),
                score=0.3 + worth(chosen.values) + 0.01 * error + trend * number,
                hours=hours(chosen.values),
            )
        )
    return past


def of(key: str, past: list[QualityNight]) -> list[int]:
    return [night.chosen.values[key] for night in past]


def nothing(values: Mapping[str, int]) -> float:
    return 0.0


def by_days(values: Mapping[str, int]) -> float:
    return 0.03 * log2(values[DAYS] / 30)


def test_days_that_pay_are_tried_every_other_night_judged_once_and_then_kept():
    past = history(40, by_days)
    days = of(DAYS, past)
    assert days[:16] == [30, 60] * MOST_TRIES
    assert days[16:31] == [120, 60] * (MOST_TRIES - 1) + [120]
    assert days[31:] == [120] * 9
    assert [bool(night.chosen.tried) for night in past[:3]] == [False, True, False]
    assert past[1].chosen.reason == (
        "prepare.window_days is 60, not 30, to learn what it adds, for about $1.00 more"
    )
    last = past[-1].chosen
    assert (last.tried, last.values) == ("", {DAYS: 120})
    assert last.reason.startswith("prepare.window_days is 120, not 60, as 8 nights with 120 added 0.0")


def test_days_that_add_nothing_are_tried_eight_times_at_most_and_the_plan_says_what_was_seen():
    past = history(30, nothing)
    assert of(DAYS, past).count(60) == MOST_TRIES
    assert set(of(DAYS, past)[16:]) == {30}
    assert (
        "prepare.window_days is 30, as 60 may add nothing: 8 nights with 60 added " in past[-1].chosen.reason
    )
    harmful = history(30, lambda values: -2 * by_days(values))
    assert of(DAYS, harmful).count(60) < MOST_TRIES  # the interval tells sooner


def test_a_score_that_rises_with_the_days_is_no_gain_of_those_that_came_later():
    assert set(of(DAYS, history(30, nothing, trend=0.02))[16:]) == {30}


@pytest.mark.slow
def test_where_nothing_is_gained_a_larger_value_is_bought_in_at_most_five_of_a_hundred_histories():
    """By any of the nights of a history, whatever they looked at in between."""
    bought = [
        any(
            night.chosen.values[DAYS] > 30 and not night.chosen.tried
            for night in history(18, nothing, seed=seed)
        )
        for seed in range(200)
    ]
    assert np.mean(bought) <= 0.05


def test_nothing_is_tried_without_dollars_for_it_nor_beyond_hours_budget_and_what_is_left():
    for changes, stays in (
        ({"left_usd": 0}, True),
        ({"left_usd": 0.9}, True),
        ({"left_usd": 1.1}, False),
        ({"hours": 1.9}, True),
        ({"hours": 2.1}, False),
        ({"budget_usd": 1.9}, True),
    ):
        days = of(DAYS, history(6, by_days, tonight=replace(TONIGHT, **changes)))
        assert (days == [30] * 6) == stays, changes
    wide = replace(TONIGHT, values={WIDTH: 64}, hours=3.9)  # twice the width may take four times as long
    assert of(WIDTH, history(6, nothing, choices={WIDTH: (64, 128)}, tonight=wide)) == [64] * 6


def test_what_pays_but_was_too_slow_or_too_dear_is_not_taken_and_said():
    past = history(
        16, by_days, choices=TWO, hours=lambda values: values[DAYS] / 30, usd=lambda values: values[DAYS] / 30
    )
    assert choose(TWO, TONIGHT, past).values == {DAYS: 60}
    slow = choose(TWO, replace(TONIGHT, hours=1.5), past)
    assert slow.values == {DAYS: 30}
    assert slow.reason.endswith("but took 2 h until training ended, of 1 h 30 min")
    dear = choose(TWO, replace(TONIGHT, budget_usd=1.5), past)
    assert dear.values == {DAYS: 30}
    assert dear.reason.endswith("but cost $2.00, of $1.50")
    failed = [replace(night, hours=inf, score=None) if night.chosen.tried else night for night in past[:2]]
    assert of(DAYS, [*failed, failed[0]]) == [30, 60, 30]
    again = choose(TWO, TONIGHT, [*failed, failed[0]])
    assert again.reason == "prepare.window_days is 30, as nights with 60 did not train to the end"
    bought = [*past, *(replace(past[1], hours=inf, score=None),) * 2]
    assert choose(TWO, TONIGHT, bought).values == {DAYS: 30}  # lately it was not done in time


def test_one_key_is_tried_at_a_time_on_top_of_what_was_bought():
    tonight = replace(TONIGHT, values={DAYS: 30, WIDTH: 64})
    past = history(44, lambda v: by_days(v) + 0.03 * log2(v[WIDTH] / 64), choices=BOTH, tonight=tonight)
    assert of(WIDTH, past[:16]) == [64] * 16
    assert past[-1].chosen.values == {DAYS: 60, WIDTH: 128}
    for one, other in pairwise(past):
        if other.chosen.tried:
            differ = [key for key in BOTH if one.chosen.values[key] != other.chosen.values[key]]
            assert differ == [other.chosen.tried]


def test_the_model_changes_only_where_a_night_begins_cold_and_else_is_that_which_serves():
    wide: Choices = {WIDTH: (64, 128, 256)}
    cold = replace(TONIGHT, values={WIDTH: 64})
    past = history(20, lambda values: 0.03 * log2(values[WIDTH] / 64), choices=wide, tonight=cold)
    assert choose(wide, cold, past).values[WIDTH] >= 128
    warm = choose(wide, replace(cold, warm=True, serving={WIDTH: 64}), past)
    assert (warm.values, warm.tried) == ({WIDTH: 64}, "")
    assert warm.reason == "workload.width is 64, and changes only where a night begins cold"
    serves = replace(cold, serving={WIDTH: 256})  # the gate has promoted what was only tried
    assert choose(wide, serves, past).values == {WIDTH: 256}
    assert choose(wide, replace(serves, warm=True), past).values == {WIDTH: 256}


def test_a_person_comes_before_the_choice_and_other_nights_tell_nothing():
    past = history(20, by_days)
    assert choose(WINDOW, TONIGHT, past).values[DAYS] > 30
    by_hand = replace(TONIGHT, values={DAYS: 45}, set_by_person=frozenset({DAYS}))
    assert choose(WINDOW, by_hand, past) == Chosen(
        values={DAYS: 45}, rest="the same", reason="prepare.window_days is 45, as a person set it"
    )
    for changes in ({"rest": "another recipe"}, {"warm": True}):
        assert choose(WINDOW, replace(TONIGHT, **changes), past).values == {DAYS: 30}


def test_a_night_that_tries_a_value_tries_no_more_samples_and_its_plan_says_what_it_pays_to_learn():
    params = PlanParams(
        objective="quality",
        machines=("g2-standard-4",),
        quality_choices=WINDOW,
        explore_usd=50,
        regions=("us-central1",),
        spot=False,
    )
    sections = Params(**PLUGS, plan=params, train=TrainParams(epochs=1, batch_size=256))
    lengths = nights(*(1, 2, 1, 4) * 3)

    def planned(chosen: Chosen, values: Mapping[str, int]):
        tonight = replace(night(), chosen=chosen)
        known = CostCalibration(reached=[replace(each, values=values) for each in lengths])
        made = plan(tonight, DATASET, profile(), None, sections, available=EVERYTHING, known=known)
        return made, rationale(made, tonight)

    usual, _ = planned(Chosen(values={DAYS: 30}, rest=""), {DAYS: 60})
    assert usual.num_samples == EPOCH  # with other days, twice as many samples are another length
    longer, _ = planned(Chosen(values={DAYS: 30}, rest=""), {})
    assert longer.num_samples == 8 * EPOCH  # which it tries, as four times as many have paid
    reason = "prepare.window_days is 60, not 30, to learn what it adds, for about $0.10 more"
    usual_usd = usual.forecast.expected_usd / 2
    trial = Chosen(values={DAYS: 60}, rest="", tried=DAYS, usual_usd=usual_usd, reason=reason)
    tried, text = planned(trial, {DAYS: 30})
    assert tried.num_samples == EPOCH
    assert tried.explore_usd == pytest.approx(usual_usd)
    assert f"\n{reason}.\n" in text
    assert "Exploring" not in text
