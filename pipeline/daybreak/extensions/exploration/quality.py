"""Buys more samples with hours and dollars that are left, where nights have shown that they raise the score.

Of the lengths that nights have trained on (learning_curve.py), a night takes the one with the largest lower
bound of the gain that is in time and within the budget. Where the interval of each includes no gain, or too
few nights can tell, it stays at the recipe. While `plan.explore_usd` has dollars left, every other night
tries twice the longest length that pays, until the interval tells or `MOST_TRIES` nights have tried.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from daybreak.contract.formats import counted, dollars
from daybreak.contract.record_types import Plan, Profile
from daybreak.extensions.exploration.learning_curve import LENGTHS, Gain, LearningCurve, learning_curve
from daybreak.prediction.calibration import CostCalibration
from daybreak.prediction.time_budget import TEST
from daybreak.training.recipe import Course

if TYPE_CHECKING:  # pydantic takes longer to import than a plan to make
    from daybreak.contract.sections import PlanSections

MOST_TRIES = 8


def lengthened(
    made: Plan,
    longer: Callable[[float], Plan | None],
    *,
    recipe: Course,
    profile: Profile,
    known: CostCalibration | None,
    params: "PlanSections",
    left_usd: float,
) -> Plan:
    """Returns the plan of a night on as many samples as pay, where the objective is quality.

    Args:
        made: the plan for the samples of the recipe.
        longer: returns the plan for so many times these samples; None where there is none.
        recipe: how far tonight trains by params.yaml.
        profile: tonight's.
        known: what nights taught.
        params: tonight's.
        left_usd: of `plan.explore_usd`.
    """
    if params.plan.objective != "quality":
        return made
    curve = learning_curve(
        known.reached if known else (),
        warm=recipe.warm,
        flops_per_sample=profile.flops_per_sample,
        num_samples=recipe.num_samples,
        batch_size=params.train.batch_size,
    )
    return bought(made, longer, curve, left_usd=left_usd)


def bought(
    recipe: Plan, planned: Callable[[float], Plan | None], curve: LearningCurve, *, left_usd: float
) -> Plan:
    """Returns the plan of the night, with a sentence why it trains on so many samples.

    Args:
        recipe: the plan for the samples of the recipe.
        planned: returns the plan for so many times these samples; None where there is none.
        curve: what nights reached.
        left_usd: of `plan.explore_usd`.
    """
    gains = {length: gain for length in LENGTHS if (gain := curve.gain(length))}
    paying = sorted((each for each in gains if gains[each].low > 0), key=lambda each: -gains[each].low)
    length = _to_try(curve, gains, longest=max(paying, default=1.0))
    if length and left_usd > 0 and not recipe.explore_usd:
        tried = planned(length)
        if tried and _leaves_the_test(tried, recipe) and not tried.explore_usd:
            more_usd = max(0.0, tried.forecast.expected_usd - recipe.forecast.expected_usd)
            if more_usd <= left_usd:
                says = f"It tries {length:g} times the samples of the recipe, for {dollars(more_usd)} more"
                return _because(replace(tried, explore_usd=more_usd), f"{says}, to learn what they add")
    for length in paying:
        longer = planned(length)
        if longer and _leaves_the_test(longer, recipe):
            more_usd = longer.forecast.expected_usd - recipe.forecast.expected_usd
            says = f"It trains on {length:g} times the samples of the recipe, for {dollars(more_usd)} more"
            return _because(longer, f"{says}, as {_adds(curve, gains[length], length)}")
    return _because(recipe, f"It trains on the samples of the recipe, as {_why(curve, gains)}")


def _because(plan: Plan, reason: str) -> Plan:
    """Returns the plan with the reason why it trains on so many samples."""
    return replace(plan, reasons=replace(plan.reasons, samples=reason))


def _to_try(curve: LearningCurve, gains: Mapping[float, Gain], *, longest: float) -> float | None:
    """Returns the length that tonight may find out about; None where there is none, or none tonight."""
    length, tries = 2 * longest, curve.num_nights[2 * longest]
    gain = gains.get(length)
    is_settled = length not in LENGTHS or tries >= MOST_TRIES or (gain is not None and gain.high < 0)
    its_turn = tries < curve.num_nights[longest] and curve.levels[-1] != length
    return length if its_turn and not is_settled else None


def _leaves_the_test(longer: Plan, recipe: Plan) -> bool:
    """Returns whether the live test keeps as many hours as beside the recipe."""

    def kept_s(plan: Plan) -> float:
        return sum(portion.expected_s for portion in plan.after if portion.name == TEST)

    return kept_s(longer) >= kept_s(recipe)


def _why(curve: LearningCurve, gains: Mapping[float, Gain]) -> str:
    """Returns why no more samples are bought."""
    if not gains:
        longer = sum(number for length, number in curve.num_nights.items() if length > 1)
        return (
            f"{counted(longer, 'night')} like tonight trained on more samples and {curve.num_nights[1.0]} on "
            f"the recipe's, too few to estimate a gain; plan.explore_usd lets nights try"
        )
    best = max(gains, key=lambda length: gains[length].low)
    if gains[best].low > 0:
        more = _adds(curve, gains[best], best)
        return f"no machine is in time and within the budget with more, though {more}"
    return f"more may add nothing: {_adds(curve, gains[best], best)}"


def _adds(curve: LearningCurve, gain: Gain, length: float) -> str:
    return (
        f"{length:g} times as many add {gain} to the score, by {curve.num_nights[length]} nights on so many "
        f"and {curve.num_nights[1.0]} on the recipe's"
    )
