"""Samples for equal quality: theory where nights tell nothing, and nights where they do, with an interval."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.prediction.efficiency import Efficiency, Reached, alike
from daybreak.prediction.priors import priors
from tests.planning.jobs import profile

THEORY_SPREAD = priors().assumed.theory

NOISE_SCALE = 1000.0


def nights(
    beyond: float, *, count: int, sizes=(64, 256), deviation: float = 0.003, vary: float = 0.3, seed: int = 0
) -> tuple[Reached, ...]:
    """Nights whose batches need (phi + B) / (phi + 64) (B / 64)^beyond times the samples."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        size, samples = sizes[number % len(sizes)], 1e6 * math.exp(vary * rng.normal())
        needed = (NOISE_SCALE + size) / (NOISE_SCALE + 64) * (size / 64) ** beyond
        score = 0.3 * (1 + 0.05 * math.log(samples / needed) + deviation * rng.normal())
        made.append(reached(size, round(samples), score=score))
    return tuple(made)


def reached(batch_size: int, num_samples: int = 10**6, *, score: float = 0.3) -> Reached:
    return Reached(
        batch_size=batch_size,
        num_samples=num_samples,
        noise_scale=NOISE_SCALE,
        score=score,
        size=0.3,
        flops_per_sample=1e8,
    )


def efficiency(past: tuple[Reached, ...] = (), noise_scale: float = NOISE_SCALE) -> Efficiency:
    return Efficiency(noise_scale=noise_scale, nights=past)


def test_without_nights_updates_go_as_one_plus_the_noise_scale_over_the_batch():
    updates = efficiency().ratio(256, 64) * 64 / 256
    assert updates == pytest.approx((1 + NOISE_SCALE / 256) / (1 + NOISE_SCALE / 64))
    assert efficiency().slope == (0.0, THEORY_SPREAD)


def test_nights_of_one_batch_size_leave_the_prior_and_say_so():
    learned = efficiency(nights(0.6, count=30, sizes=(64,)))
    assert learned.slope == (0.0, THEORY_SPREAD)
    assert learned.says(256, 64).endswith(
        "by the prior of noise-scale theory (noise scale 1,000); no nights with two batch sizes can tell yet"
    )


@pytest.mark.parametrize("beyond", [-0.6, 0.0, 0.6])
def test_what_nights_reached_is_learned_whether_samples_rise_or_fall_with_the_batch(beyond):
    learned = efficiency(nights(beyond, count=30))
    assert learned.slope[0] == pytest.approx(beyond, abs=0.1)
    assert learned.slope[1] < 0.1
    assert "by 30 nights with batches of 64, 256" in learned.says(256, 64)


def test_two_nights_teach_little():
    few, many = (efficiency(nights(0.6, count=count)).slope[1] for count in (2, 30))
    assert few > 0.7 * THEORY_SPREAD > 5 * many


def test_the_interval_holds_on_nine_of_ten_histories():
    rng = np.random.default_rng(1)
    held = 0
    for seed in range(200):
        beyond = rng.normal(0, THEORY_SPREAD)
        history = nights(beyond, count=8, deviation=0.03 * math.exp(rng.normal(0, 0.7)), seed=seed)
        mean, deviation = efficiency(history).slope
        held += abs(mean - beyond) <= 1.645 * deviation
    assert 0.85 <= held / 200 <= 0.97


@settings(max_examples=30)
@given(st.integers(1, 4096), st.integers(1, 4096), st.floats(1, 1e6))
def test_a_batch_against_itself_needs_as_many_and_there_and_back_is_one(one, other, noise_scale):
    learned = efficiency(nights(0.4, count=6), noise_scale)
    assert learned.ratio(one, one) == pytest.approx(1)
    assert learned.spread(one, one) == 0
    assert learned.ratio(one, other) * learned.ratio(other, one) == pytest.approx(1)


def test_a_gradient_hidden_by_noise_makes_all_batches_alike():
    assert efficiency(noise_scale=math.inf).ratio(256, 64) == 1
    assert "no gradient above the noise" in efficiency(noise_scale=math.inf).says(256, 64)


def test_nights_of_another_model_or_of_a_warm_start_are_left_out():
    warm, cold = reached(64, 30_000), reached(64, 10**6)
    other = Reached(**{**vars(cold), "flops_per_sample": 3e8})
    assert alike((warm, cold, other), profile=profile(), num_samples=9 * 10**5, batch_size=64) == (cold,)
