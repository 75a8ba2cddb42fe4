"""What more samples add to the score: intervals hold on curves of many forms, and time is no gain."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from daybreak.extensions.exploration.learning_curve import LearningCurve, learning_curve
from daybreak.prediction.efficiency import Reached

# Scores by times the recipe's samples, at a scale that is drawn; nothing of the module was fitted to them.
FORMS: dict[str, Callable[[float], float]] = {
    "saturates": lambda n: 1 - math.exp(-n),
    "power law": lambda n: 1 - (1 + n) ** -0.3,
    "logarithm": lambda n: 0.3 * math.log1p(n),
    "overfits": lambda n: 1.2 * (1 - math.exp(-n)) - 0.06 * n,
    "flat": lambda n: 0.5,
}


def drawn(form: str, *, lengths: tuple[float, ...], count: int, seed: int) -> tuple[LearningCurve, Callable]:
    """A history of nights, with heavy-tailed noise, alike from night to night, and a trend over the days."""
    rng = np.random.default_rng(seed)
    scale = 10 ** rng.uniform(-1, 0.5)
    noise, trend, error = rng.choice([0.005, 0.02, 0.05]), 0.003 * rng.normal(), 0.0
    trained, scores = [], []
    for night in range(count):
        trained.append(lengths[night % len(lengths)] if night < 7 else rng.choice(lengths))
        error = 0.3 * error + rng.standard_t(4) / 2**0.5
        scores.append(FORMS[form](trained[-1] * scale) + noise * error + trend * night)
    return LearningCurve(levels=tuple(map(float, trained)), scores=tuple(scores)), (
        lambda times: FORMS[form](times * scale) - FORMS[form](scale)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("lengths", "count"), [((1, 2), 8), ((1, 2, 4), 30)])
def test_intervals_of_ninety_percent_hold_on_curves_of_any_form(lengths, count):
    held = {form: [] for form in FORMS}
    bought_in_vain = []
    for form in FORMS:
        for seed in range(60):
            curve, true = drawn(form, lengths=lengths, count=count, seed=seed)
            for length in lengths[1:]:
                gain = curve.gain(length)
                held[form].append(gain.low <= true(length) <= gain.high)
                bought_in_vain.append(gain.low > 0 >= true(length))
    assert all(np.mean(each) >= 0.8 for each in held.values()), held
    assert 0.86 <= np.mean([hit for each in held.values() for hit in each]) <= 0.97
    assert np.mean(bought_in_vain) <= 0.05


def test_lengths_that_rose_as_the_days_got_easier_are_not_credited_with_it():
    scores = 0.3 + 0.01 * np.arange(16) + 0.002 * np.random.default_rng(0).normal(size=16)
    gain = LearningCurve(levels=(1.0,) * 8 + (2.0,) * 8, scores=tuple(scores)).gain(2.0)
    assert scores[8:].mean() - scores[:8].mean() > 0.07
    assert abs(gain.mean) < 0.005


def test_too_few_nights_tell_nothing():
    alternating = (1.0, 2.0) * 3
    assert LearningCurve(levels=alternating, scores=(0.3, 0.4) * 3).gain(2.0)
    assert LearningCurve(levels=alternating[:5], scores=(0.3, 0.4, 0.3, 0.4, 0.3)).gain(2.0) is None
    assert LearningCurve(levels=(1.0,) * 9 + (2.0,), scores=(0.3,) * 10).gain(2.0) is None
    assert LearningCurve().gain(2.0) is None


def test_only_nights_that_began_alike_with_a_like_model_on_a_known_length_count():
    def night(**changes) -> Reached:
        facts = {
            "batch_size": 64,
            "num_samples": 2000,
            "noise_scale": 1e3,
            "score": 0.3,
            "size": 0.3,
            "flops_per_sample": 1e8,
            "warm": False,
        }
        return Reached(**facts | changes)

    others = [
        night(warm=True),
        night(warm=None),
        night(flops_per_sample=2e8),
        night(num_samples=2470),
        night(num_samples=40_000),
    ]
    larger = night(batch_size=1000, num_samples=round(2000 * 2000 / 1064))  # equal progress in larger batches
    curve = learning_curve(
        [*others, night(), larger, night(num_samples=1010)],
        warm=False,
        flops_per_sample=1e8,
        num_samples=1000,
        batch_size=64,
    )
    assert curve.levels == (2.0, 2.0, 1.0)
