"""One tracker says what Scavenger's noise, AdaScale's gain and Pollux' efficiency say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.training.noise import Noise, parts, two_batches

positive = st.floats(1e-6, 1e6)
POSITIVE_SCALES = st.integers(1, 10_000)


def tracked(square: float, variance: float) -> Noise:
    return Noise().seen(square=square, variance=variance)


@given(positive, positive, st.integers(2, 64), POSITIVE_SCALES)
def test_the_gain_over_the_parts_is_the_efficiency(square, variance, num_parts, base):
    noise, batch = tracked(square, variance), num_parts * base
    gamma = noise.gain(times=num_parts, base_size=base)  # as Scavenger calls it
    phi = noise.scale
    assert gamma / num_parts == pytest.approx((phi + base) / (phi + batch))


@given(positive, positive, st.integers(1, 64), POSITIVE_SCALES)
def test_the_gain_is_between_one_and_the_times(square, variance, times, base):
    assert 1 - 1e-9 <= tracked(square, variance).gain(times=times, base_size=base) <= times * (1 + 1e-9)


def test_nothing_but_noise_gains_all_and_no_noise_gains_nothing():
    assert tracked(0.0, 1.0).gain(times=8, base_size=4) == pytest.approx(8)
    assert tracked(1.0, 0.0).gain(times=8, base_size=4) == pytest.approx(1)
    assert Noise().gain(times=8, base_size=4) == 1
    assert tracked(-1.0, 2.0).scale == float("inf")


def gradients(rng: np.random.Generator, *, num_parts: int, size: int) -> np.ndarray:
    """Mean gradients of parts of a batch: |g|^2 is 3, tr(Sigma) is 200 * 4."""
    drawn = rng.normal(0, 2.0, (num_parts, size, 200)).mean(axis=1)
    drawn[:, :3] += 1
    return drawn


def test_parts_of_a_batch_tell_gradient_and_noise_without_bias():
    rng, noise = np.random.default_rng(0), Noise(smoothing=0.999)
    for _ in range(400):
        each = gradients(rng, num_parts=4, size=16)
        local = float((each**2).sum(axis=1).mean())
        total = float((each.mean(axis=0) ** 2).sum())
        square, variance = parts(local=local, total=total, num_parts=4, batch_size=64)
        noise = noise.seen(square=square, variance=variance)
    assert noise.square == pytest.approx(3, rel=0.1)
    assert noise.variance == pytest.approx(800, rel=0.02)
    assert noise.scale == pytest.approx(800 / 3, rel=0.1)


def test_the_measured_gain_is_the_one_predicted():
    rng = np.random.default_rng(1)
    local, total = 0.0, 0.0
    for _ in range(400):
        each = gradients(rng, num_parts=8, size=16)
        local += float((each**2).sum(axis=1).mean())
        total += float((each.mean(axis=0) ** 2).sum())
    assert tracked(3.0, 800.0).gain(times=8, base_size=16) == pytest.approx(local / total, rel=0.03)


@given(positive, positive, st.integers(1, 1000), st.integers(2, 50))
def test_two_batch_sizes_tell_the_same_as_parts(square, variance, small, num_parts):
    big = small * num_parts
    local, total = square + variance / small, square + variance / big
    by_parts = parts(local=local, total=total, num_parts=num_parts, batch_size=big)
    by_two = two_batches(small_square=local, small_size=small, big_square=total, big_size=big)
    assert by_parts == pytest.approx(by_two, rel=1e-6, abs=1e-6 * local * big)


def test_the_first_update_counts_in_full():
    assert tracked(2.0, 6.0).square == pytest.approx(2)
    assert tracked(2.0, 6.0).scale == pytest.approx(3)


def test_one_part_shows_no_noise():
    with pytest.raises(ValueError, match="two at least"):
        parts(local=1, total=1, num_parts=1, batch_size=8)
    with pytest.raises(ValueError, match="the big batch has 4 samples"):
        two_batches(small_square=1, small_size=8, big_square=1, big_size=4)
