"""Lifetimes begin with the prior, are learned from the nights, and say when to save."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.extensions.spot.hazard import ENOUGH, PRIOR, FirstLoss, Hazard, learned, saves
from daybreak.extensions.spot.survival import HOUR_S, PUBLISHED, Exponential, Weibull, draw_s
from daybreak.machines.losses import MEAN_TIME_TO_PREEMPTION_S, checkpoint_interval_s

BATHTUB = Hazard(lifetime=PUBLISHED, says="a test")


def observed(
    lifetime, *, count: int, stopped_s: float = 8 * HOUR_S, seed: int = 0
) -> list[tuple[float, bool]]:
    """Machines that work was done on for a while at most."""
    rng = np.random.default_rng(seed)
    lived = draw_s(lifetime, rng.random(count), longest_s=1000 * HOUR_S)
    stopped = rng.uniform(0, stopped_s, count)
    return [(float(min(a, b)), bool(a < b)) for a, b in zip(lived, stopped, strict=True)]


def when(hazard: Hazard, *, work_s: float = 5 * HOUR_S, save_s: float = 60.0, num_machines: int = 1):
    return saves(hazard, num_machines=num_machines, work_s=work_s, save_s=save_s, restart_s=60.0)


def test_without_nights_it_is_the_prior_and_memoryless():
    assert learned([]) is PRIOR
    assert when(PRIOR).says.endswith(
        "one preemption in 16.9 h, by the prior of 1,442 machines of 2019: saves by Young/Daly"
    )


@given(st.integers(0, ENOUGH - 1), st.floats(60, 1e6))
def test_few_preemptions_move_the_prior_a_little_and_censored_lives_lengthen_it(lost, seconds):
    hazard = learned([(seconds, True)] * lost + [(3600.0, False)])
    assert hazard.memoryless
    low, high = sorted([seconds, MEAN_TIME_TO_PREEMPTION_S])
    mean_s = hazard.mean_time_to_loss_s(num_machines=1, within_s=HOUR_S)
    assert low * (1 - 1e-9) <= mean_s <= high + HOUR_S
    assert f"{lost} preemption{'s' if lost != 1 else ''} of {lost + 1} seen" in hazard.says


@pytest.mark.slow
def test_many_preemptions_choose_the_curve_that_they_came_from():
    young = learned(observed(Weibull(shape=0.4, scale_s=20 * HOUR_S), count=200))
    assert not young.memoryless
    assert "seen, which it predicts best when held out" in young.says
    steady = learned(observed(Exponential(mean_s=4 * HOUR_S), count=400))
    mean_s = steady.mean_time_to_loss_s(num_machines=1, within_s=5 * HOUR_S)
    assert mean_s == pytest.approx(4 * HOUR_S, rel=0.25)


def test_a_curve_with_a_memory_saves_by_the_program_and_more_often_while_young():
    schedule = when(BATHTUB)
    assert [round(each / 60) for each in schedule.intervals_s][:3] == [16, 18, 21]
    assert schedule.says.endswith("saves by the dynamic program on its hazard")


def test_saves_too_cheap_for_the_grid_of_the_program_are_as_young_has_them():
    schedule = when(BATHTUB, save_s=0.01)
    mean_s = BATHTUB.mean_time_to_loss_s(num_machines=1, within_s=5 * HOUR_S)
    assert schedule.intervals_s == (checkpoint_interval_s(save_s=0.01, mean_time_to_preemption_s=mean_s),)
    assert "too cheap for a program" in schedule.says


@pytest.mark.parametrize("number", [1, 4])
def test_the_mean_time_to_a_loss_is_time_used_over_losses(number):
    rng = np.random.default_rng(0)
    lived = draw_s(FirstLoss(one=PUBLISHED, number=number), rng.random(20_000), longest_s=1000 * HOUR_S)
    within_s = 5 * HOUR_S
    seen_s = np.minimum(lived, within_s).sum() / (lived < within_s).sum()
    assert BATHTUB.mean_time_to_loss_s(num_machines=number, within_s=within_s) == pytest.approx(
        seen_s, rel=0.05
    )


@given(st.integers(1, 8), st.floats(60, 1e5))
def test_machines_without_a_memory_share_their_mean(number, within_s):
    mean_s = PRIOR.mean_time_to_loss_s(num_machines=number, within_s=within_s)
    assert mean_s == MEAN_TIME_TO_PREEMPTION_S / number
