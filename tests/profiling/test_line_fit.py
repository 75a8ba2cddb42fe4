"""A line through noisy measurements is the true line, even with one wild measurement."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daybreak.profiling.line_fit import constant, fit

SIZES = (64, 128, 256, 512)


def measured(fixed: float, per_sample: float, *, noise: float, seed: int) -> tuple[list[float], list[float]]:
    rng = random.Random(seed)
    sizes = [size for size in SIZES for _ in range(5)]
    return sizes, [(fixed + per_sample * size) * (1 + rng.gauss(0, noise)) for size in sizes]


@given(st.floats(1e-4, 1), st.floats(1e-6, 1e-2))
def test_an_exact_line_is_found(fixed, per_sample):
    line = fit(*measured(fixed, per_sample, noise=0, seed=0))
    assert line(300) == pytest.approx(fixed + per_sample * 300, rel=1e-6)
    assert line.per_sample == pytest.approx(per_sample, rel=1e-3, abs=1e-6 * fixed)


@given(st.integers(0, 19), st.floats(3, 1000))
def test_one_disturbed_run_does_not_bend_it(place, factor):
    sizes, values = measured(0.01, 1e-4, noise=0.02, seed=1)
    before = fit(sizes, values)
    values[place] *= factor
    after = fit(sizes, values)
    for size in SIZES:
        assert after(size) == pytest.approx(before(size), rel=0.05)


@given(st.lists(st.tuples(st.sampled_from(SIZES), st.floats(0, 1e3)), min_size=1, max_size=30))
@example([(64, 0.0), (64, 4.974241903209207e-12), (128, 42.0)])
def test_no_parameter_is_negative(points):
    line = fit(*zip(*points, strict=True))
    assert line.fixed >= 0
    assert line.per_sample >= 0
    assert line.fixed_error >= 0
    assert line.per_sample_error >= 0


def test_ninety_of_a_hundred_intervals_hold_the_truth():
    slopes = [fit(*measured(0.01, 1e-4, noise=0.05, seed=seed)) for seed in range(200)]
    held = sum(abs(line.per_sample - 1e-4) <= line.per_sample_error for line in slopes)
    assert 170 <= held <= 196


def test_one_batch_size_gives_a_line_through_the_origin():
    assert fit([8, 8], [2.0, 2.0])(4) == pytest.approx(1.0)


def test_what_costs_nothing_is_a_line_of_zero():
    assert fit([1, 2], [0.0, 0.0]) == constant(0.0)


@pytest.mark.parametrize("values", [[float("nan"), 1.0], [-1.0, 1.0], [1.0]])
def test_values_that_no_clock_shows_are_refused(values):
    with pytest.raises(ValueError, match="cannot fit"):
        fit([1, 2], values)
