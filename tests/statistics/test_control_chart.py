"""A new mean lies in the interval expected from earlier means as often as the interval promises."""

import numpy as np
import pytest
from scipy import stats

from daybreak.statistics.control_chart import Mean, expected


@pytest.mark.parametrize("num_nights", [7, pytest.param(28, marks=pytest.mark.slow)])
@pytest.mark.parametrize("between", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("sizes", [(50, 50), (30, 300)])
def test_false_alarms_come_at_the_stated_rate(num_nights, between, sizes):
    """Nights of the same level that differ by themselves and by their samples: at most as many as stated."""
    draw, alpha, num_runs, deviation = np.random.default_rng(num_nights), 0.02, 500, 0.3
    alarms = 0
    for _ in range(num_runs):
        errors = deviation / np.sqrt(draw.integers(sizes[0], sizes[1] + 1, num_nights + 1))
        values = 0.25 + between * draw.normal(size=num_nights + 1) + errors * draw.normal(size=num_nights + 1)
        past = [Mean(value=v, error=e) for v, e in zip(values[1:], errors[1:], strict=True)]
        alarms += float(values[0]) not in expected(past, error=errors[0], alpha=alpha)
    assert stats.binomtest(alarms, num_runs, alpha, alternative="greater").pvalue > 1e-3


SKEWED = {
    "normal": lambda draw, shape: draw.normal(size=shape),
    "gamma": lambda draw, shape: draw.gamma(2, size=shape),
    "lognormal": lambda draw, shape: draw.lognormal(0, 0.6, size=shape),
    "lognormal losses": lambda draw, shape: -draw.lognormal(0, 0.6, size=shape),
}


@pytest.mark.parametrize("days", SKEWED)
@pytest.mark.parametrize("num_nights", [21, pytest.param(60, marks=pytest.mark.slow)])
def test_skewed_days_are_outside_no_more_often_than_stated(days: str, num_nights: int):
    """Of lognormal days, Student's t alone leaves five times as many outside."""
    draw, alpha, num_runs = np.random.default_rng(num_nights), 2 / 365, 150
    alarms = 0
    for values in SKEWED[days](draw, (num_runs, num_nights + 20)):
        band = expected([Mean(value=v, error=1e-6) for v in values[20:]], error=1e-6, alpha=alpha)
        alarms += sum(float(value) not in band for value in values[:20])
    assert alarms <= 1.5 * alpha * 20 * num_runs + 5


@pytest.mark.parametrize("num_nights", [28, 60])
@pytest.mark.parametrize("off", [6, 10])
def test_a_broken_night_that_comes_again_is_outside_until_three_were(num_nights: int, off: float):
    draw, num_runs = np.random.default_rng(num_nights), 20
    inside = np.zeros(4)
    for _ in range(num_runs):
        past = [Mean(value=v, error=1e-6) for v in draw.normal(size=num_nights)]
        for nights in range(4):
            inside[nights] += off in expected(past, error=1e-6, alpha=2 / 365 / 4)
            past = [Mean(value=off + 0.3 * draw.normal(), error=1e-6), *past]
    assert max(inside[:3]) <= 0.2 * num_runs
    assert inside[3] >= 0.9 * num_runs


def test_a_broken_day_widens_the_band_of_later_months_little():
    apart = []
    for seed in range(12):
        values = np.random.default_rng(seed).normal(size=60)
        broken = np.where(np.arange(60) == 30, values - 20, values)  # it is not among the newest 28
        usual, wider = (
            expected([Mean(value=v, error=1e-6) for v in one], error=1e-6, alpha=0.01)
            for one in (values, broken)
        )
        apart.append(usual.low - wider.low)
    assert np.mean(apart) < 1.5


def test_the_band_is_the_t_interval_where_nights_are_not_skewed_and_errors_small():
    values = np.linspace(-1, 1, 7)
    band = expected([Mean(value=v, error=1e-9) for v in values], error=1e-9, alpha=0.05)
    reach = stats.t.ppf(0.975, 6) * values.std(ddof=1) * np.sqrt(1 + 1 / 7)
    assert (band.low, band.high) == pytest.approx((values.mean() - reach, values.mean() + reach), rel=1e-6)


def test_nights_without_any_spread_expect_the_same_again():
    past = [Mean(value=0.5, error=0.0)] * 7
    assert 0.5 in expected(past, error=0.0, alpha=0.01)
    assert 0.6 not in expected(past, error=0.0, alpha=0.01)
