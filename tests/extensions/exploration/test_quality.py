"""Hours and dollars that are left buy more samples where nights have shown that these pay, and only there."""

import numpy as np
import pytest

from daybreak.contract.record_types import Plan
from daybreak.contract.sections import Params, PlanParams, TrainParams
from daybreak.planning.planner import plan
from daybreak.planning.rationale import rationale
from daybreak.prediction.calibration import CostCalibration
from daybreak.prediction.efficiency import Reached
from tests.planning.jobs import DATASET, EVERYTHING, night, profile

PLUGS = dict.fromkeys(("source", "workload", "backend"), "some.module:Class")
EPOCH = DATASET.num_samples


def nights(*epochs: float, worth: float = 0.02, warm: bool = False) -> list[Reached]:
    """Cold nights of so many epochs, each doubling of which adds `worth` to the score."""
    noise = 0.003 * np.random.default_rng(3).normal(size=len(epochs))
    return [
        Reached(
            batch_size=256,
            num_samples=round(each * EPOCH),
            noise_scale=1e3,
            flops_per_sample=1e8,
            size=0.3,
            score=0.3 + worth * np.log2(each) + more,
            warm=warm,
        )
        for each, more in zip(epochs, noise, strict=True)
    ]


def planned(
    reached: list[Reached], *, objective: str = "quality", hours: float = 18, budget_usd: float = 40, **params
) -> Plan:
    params = PlanParams(objective=objective, machines=("local",), **params)
    sections = Params(**PLUGS, plan=params, train=TrainParams(epochs=1, batch_size=256))
    return plan(
        night(hours=hours, budget_usd=budget_usd),
        DATASET,
        profile(),
        None,
        sections,
        available=EVERYTHING,
        known=CostCalibration(reached=reached),
    )


PAYS = nights(*(1, 2, 1, 4) * 3)


def test_a_curve_that_pays_buys_the_longest_training_that_nights_have_shown_and_says_so():
    longer, recipe = planned(PAYS), planned(PAYS, objective="cost")
    assert (recipe.num_samples, recipe.reasons.samples, recipe.base_samples) == (EPOCH, "", 0)
    assert (longer.num_samples, longer.base_samples) == (4 * EPOCH, 4 * EPOCH)
    assert longer.forecast.expected_s > 3.5 * recipe.forecast.expected_s
    assert longer.reasons.samples.startswith(
        "It trains on 4 times the samples of the recipe, for $0.00 more, "
    )
    assert f"\n{longer.reasons.samples}.\n" in rationale(longer, night())


@pytest.mark.parametrize("worth", [0.0, -0.02])
def test_a_curve_that_does_not_pay_stays_at_the_recipe_and_says_so(worth):
    stays = planned(nights(*(1, 2, 1, 4) * 3, worth=worth))
    assert (stays.num_samples, stays.base_samples) == (EPOCH, 0)
    assert "more may add nothing: " in stays.reasons.samples


def test_hours_that_do_not_suffice_for_the_best_length_buy_the_next():
    took_s = planned(PAYS, objective="cost").forecast.interval[1]
    assert planned(PAYS, hours=3 * took_s / 3600).num_samples == 2 * EPOCH
    tight = planned(PAYS, hours=1.5 * took_s / 3600)
    assert tight.num_samples == EPOCH
    assert "no machine is in time and within the budget with more, though " in tight.reasons.samples


def test_nights_that_trained_equally_long_show_nothing():
    stays = planned(nights(*(1,) * 20))
    assert stays.num_samples == EPOCH
    assert stays.reasons.samples.endswith(
        "0 nights like tonight trained on more samples and 20 on the recipe's, too few to estimate a gain; "
        "plan.explore_usd lets nights try"
    )
    assert planned(nights(*(1, 2) * 10, warm=True)).num_samples == EPOCH  # tonight starts cold


def test_every_other_night_tries_more_samples_until_the_interval_tells():
    history: list[float] = []
    for _ in range(24):
        tonight = planned(nights(*history, worth=0.0) if history else [], explore_usd=1.0)
        history.append(tonight.num_samples / EPOCH)
    assert set(history) == {1, 2}
    assert history[:6] == [1, 2, 1, 2, 1, 2]
    assert history.count(2) <= 8
    pays: list[float] = []
    for _ in range(24):
        pays.append(planned(nights(*pays) if pays else [], explore_usd=1.0).num_samples / EPOCH)
    assert max(pays) == 8  # the most that is ever tried, as each step there has paid
    assert pays[-1] > 1
