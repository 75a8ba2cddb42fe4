"""A trend of a daily series is found at a stated chance, whatever its noise, and not in a mere season."""

import numpy as np
import pytest
from numpy.typing import NDArray

from daybreak.statistics.trend import TrendLine, trend

WINDOW = 60

# Tuned on series of normal and t-distributed noise (5 degrees of freedom); judged on others.
NOISES = {
    "Laplace": lambda draw, shape: draw.laplace(size=shape),
    "lognormal": lambda draw, shape: draw.lognormal(0, 0.6, size=shape),
    "uniform": lambda draw, shape: draw.uniform(size=shape),
}


def line(series: NDArray[np.float64]) -> TrendLine:
    return trend(list(series), [day % 7 for day in range(len(series))], window=WINDOW)


def correlated(noise: NDArray[np.float64], by: float) -> NDArray[np.float64]:
    """Series whose values follow the one before by that share, after 60 days of a start."""
    series = noise.copy()
    for day in range(1, series.shape[1]):
        series[:, day] += by * series[:, day - 1]
    return series[:, 60:]


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("by", [0.0, 0.5])
def test_a_series_without_a_trend_has_one_no_more_often_than_stated(noise: str, by: float) -> None:
    chance, num = 0.01, 1000
    series = correlated(NOISES[noise](np.random.default_rng(7), (num, WINDOW + 60)), by)
    alarms = sum(line(one).chance < chance for one in series)
    assert alarms <= chance * num + 3 * np.sqrt(chance * num)


def test_one_percent_less_each_day_is_a_trend_whose_line_is_found() -> None:
    draw = np.random.default_rng(5)
    weekend = np.where(np.arange(WINDOW) % 7 > 4, -0.8, 0.0)
    series = np.log(1000) + weekend + np.arange(WINDOW) * np.log(0.99) + draw.laplace(0, 0.07, WINDOW)
    fitted = line(series)
    assert fitted.chance < 1e-6
    assert fitted.per_day == pytest.approx(np.log(0.99), abs=3 * fitted.error)
    assert fitted.before - fitted.now == pytest.approx(-59 * fitted.per_day)


def test_a_single_holiday_is_not_a_trend() -> None:
    series = np.random.default_rng(6).normal(0, 0.1, WINDOW)
    series[-2:] -= 5
    assert line(series).chance > 0.01


def test_a_series_that_wanders_each_season_has_no_trend_in_the_next() -> None:
    days = np.arange(365)
    series = 10 * np.sin(days / 58) + np.random.default_rng(8).normal(0, 3, 365)
    assert line(series[-WINDOW:]).chance < 1e-4
    assert line(series).chance > 1e-3


def test_a_series_that_is_constant_has_no_trend() -> None:
    assert line(np.full(WINDOW, 3.0)).chance > 0.99
