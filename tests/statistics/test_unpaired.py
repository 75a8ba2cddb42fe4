import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.statistics.unpaired import adjusted, detectable, effect

RAMP = np.repeat([0.01, 0.05, 0.25, 0.5], 750)


def night(seed: int, *, gain: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Users of a night that ramps up, whose scores are as of baskets and rise with the hours."""
    rng = np.random.default_rng(seed)
    arm = rng.random(RAMP.size) < RAMP
    scores = np.where(rng.random(RAMP.size) < 0.5, 0.0, rng.beta(1, 3, RAMP.size))
    return arm, RAMP, scores + np.linspace(0, 0.2, RAMP.size) + gain * arm


@pytest.mark.slow
def test_under_the_null_either_end_is_rarely_passed_however_often_one_looks() -> None:
    passed = np.zeros(2)
    for seed in range(100):
        arm, chance, scores = night(seed)
        ends = np.array(
            [
                [estimate.low > 0, estimate.high < 0]
                for n in range(100, RAMP.size + 1, 50)
                if min(arm[:n].sum(), (~arm[:n]).sum()) >= 30
                for estimate in [effect(arm[:n], chance[:n], scores[:n], alpha=0.05, tuned_at=200)]
            ]
        )
        passed += ends.any(axis=0)
    assert (passed <= 5).all()


def test_hours_of_other_traffic_are_not_taken_for_an_effect() -> None:
    arm, chance, scores = night(0)
    naive = scores[arm].mean() - scores[~arm].mean()
    estimate = effect(arm, chance, scores + 5 * (RAMP == 0.5), alpha=0.05)
    assert estimate.low < 0 < estimate.high
    assert abs(estimate.mean) < 0.05
    assert naive > 0.02


def test_a_true_effect_is_found_and_lies_in_the_interval() -> None:
    arm, chance, scores = night(1, gain=0.15)
    estimate = effect(arm, chance, scores, alpha=0.05)
    assert 0 < estimate.low < 0.15 < estimate.high


def test_the_detectable_effect_is_shown_with_its_power() -> None:
    rng, size = np.random.default_rng(2), 2000
    chance = np.full(size, 0.5)
    least = detectable(sd=0.25, clock=size / 4, alpha=0.05)
    shown = 0
    for _ in range(200):
        arm = rng.random(size) < 0.5
        scores = rng.normal(0.3, 0.25, size) + least * arm
        shown += effect(arm, chance, scores, alpha=0.05, tuned_at=size / 4).low > 0
    assert 0.72 <= shown / 200 <= 0.88


@settings(max_examples=100)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0.01, 0.05, 0.5]), st.floats(0, 1)), max_size=40))
def test_every_stream_has_an_effect_within_its_interval(stream: list[tuple[bool, float, float]]) -> None:
    arm, chance, scores = (list(column) for column in zip(*stream, strict=True)) if stream else ([], [], [])
    estimate = effect(arm, chance, scores, alpha=0.05)
    assert estimate.low <= estimate.mean <= estimate.high
    swapped = effect([not one for one in arm], [1 - p for p in chance], scores, alpha=0.05)
    assert swapped.mean == pytest.approx(-estimate.mean, abs=1e-9)


@pytest.mark.parametrize("unit", [1e-200, 1e200, 2.0**1020])
def test_the_effect_is_in_the_unit_of_the_scores_however_large_or_small_it_is(unit: float) -> None:
    arm, chance, scores = night(1, gain=0.15)
    before = scores + np.random.default_rng(3).normal(0, 0.1, scores.size)
    estimate, scaled = (effect(arm, chance, scores * by, alpha=0.05) for by in (1.0, unit))
    assert scaled.mean == pytest.approx(estimate.mean * unit)
    assert (scaled.low, scaled.high) == pytest.approx((estimate.low * unit, estimate.high * unit))
    (plain, share), (large, same) = (adjusted(scores * by, before * by, chance) for by in (1.0, unit))
    assert same == pytest.approx(share)
    assert large == pytest.approx(plain * unit)


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="not all finite"):
        effect([True, False], [0.5, 0.5], [math.nan, 0.5], alpha=0.05)
