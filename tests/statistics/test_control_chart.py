"""A new mean lies in the interval expected from earlier means as often as the interval promises."""

import numpy as np
import pytest
from scipy import stats

from daybreak.statistics.control_chart import Mean, expected


@pytest.mark.parametrize("num_nights", [7, 28])
@pytest.mark.parametrize("between", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("sizes", [(50, 50), (30, 300)])
def test_false_alarms_come_at_the_stated_rate(num_nights, between, sizes):
    """Nights of the same level that differ by themselves and by their samples: at most as many as stated."""
    draw, alpha, num_runs, deviation = np.random.default_rng(num_nights), 0.02, 3000, 0.3
    alarms = 0
    for _ in range(num_runs):
        errors = deviation / np.sqrt(draw.integers(sizes[0], sizes[1] + 1, num_nights + 1))
        values = 0.25 + between * draw.normal(size=num_nights + 1) + errors * draw.normal(size=num_nights + 1)
        past = [Mean(value=v, error=e) for v, e in zip(values[1:], errors[1:], strict=True)]
        alarms += float(values[0]) not in expected(past, error=errors[0], alpha=alpha)
    assert stats.binomtest(alarms, num_runs, alpha, alternative="greater").pvalue > 1e-3


def test_the_band_is_the_t_interval_where_errors_are_equal_and_small():
    values = np.random.default_rng(0).normal(size=20)
    band = expected([Mean(value=v, error=1e-9) for v in values], error=1e-9, alpha=0.05)
    reach = stats.t.ppf(0.975, 19) * values.std(ddof=1) * np.sqrt(1 + 1 / 20)
    assert (band.low, band.high) == pytest.approx((values.mean() - reach, values.mean() + reach), rel=1e-6)


def test_nights_without_any_spread_expect_the_same_again():
    past = [Mean(value=0.5, error=0.0)] * 7
    assert 0.5 in expected(past, error=0.0, alpha=0.01)
    assert 0.6 not in expected(past, error=0.0, alpha=0.01)
