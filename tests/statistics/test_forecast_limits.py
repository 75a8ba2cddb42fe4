"""Limits of a daily series keep their chance of a false alarm, follow weekdays and trends, and start wide."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from daybreak.statistics.forecast_limits import LEAST_BEFORE, LEAST_ERRORS, SeriesForecast, forecast

NOISES = {
    "normal": lambda draw, shape: draw.normal(size=shape),
    "Laplace": lambda draw, shape: draw.laplace(size=shape),
    "lognormal": lambda draw, shape: draw.lognormal(0, 0.4, size=shape),
}


def weekdays(num: int) -> list[int]:
    return [day % 7 for day in range(num)]


def outside(series: NDArray[np.float64], known: int, chance: float) -> float:
    """Whether the value after the known ones is outside of its limits."""
    expected = forecast(series[:known], weekdays(known), weekday=known % 7)
    assert expected is not None
    below, above = expected.reach(chance)
    return float(not expected.expected - below <= series[known] <= expected.expected + above)


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("known", [40, 120])
def test_a_sound_day_is_outside_no_more_often_than_stated(noise: str, known: int) -> None:
    draw, chance = np.random.default_rng(3), 0.01
    series = NOISES[noise](draw, (400, known + 1))
    alarms = sum(outside(one, known, chance) for one in series)
    assert alarms <= 2 * chance * 400 + 3 * np.sqrt(2 * chance * 400)


def test_weekdays_have_their_own_level_and_a_trend_is_followed() -> None:
    days = np.arange(90)
    series = 100 + 0.5 * days - 40.0 * (days % 7 == 6)
    for known in (83, 84):  # a Sunday, a Monday
        expected = forecast(series[:known], weekdays(known), weekday=known % 7)
        assert expected is not None
        assert expected.expected == pytest.approx(series[known], abs=1)


def test_one_odd_day_hardly_moves_what_is_expected() -> None:
    series = np.random.default_rng(0).normal(100, 1, 60)
    odd = series.copy()
    odd[-3] = 1000
    usual, moved = (forecast(values, weekdays(60), weekday=4) for values in (series, odd))
    assert usual is not None
    assert moved is not None
    assert moved.expected == pytest.approx(usual.expected, abs=1)


def test_a_short_history_has_no_limits_and_then_wide_ones() -> None:
    series = np.random.default_rng(1).normal(size=200)
    least = LEAST_BEFORE + LEAST_ERRORS
    assert forecast(series[: least - 1], weekdays(least - 1), weekday=0) is None
    reaches = []
    for known in (least, 60, 200):
        expected = forecast(series[:known], weekdays(known), weekday=0)
        assert expected is not None
        reaches.append(sum(expected.reach(1e-4)))
    assert reaches[0] > 3 * reaches[1] > 3 * reaches[2] / 1.5


@given(
    errors=st.lists(st.floats(-1e3, 1e3), min_size=LEAST_ERRORS, max_size=80),
    chances=st.tuples(st.floats(1e-6, 0.1), st.floats(1e-6, 0.1)),
)
def test_a_smaller_chance_never_reaches_less(errors: list[float], chances: tuple[float, float]) -> None:
    known = SeriesForecast(expected=0.0, errors=np.array(errors))
    rare, often = (known.reach(chance) for chance in sorted(chances))
    assert rare[0] >= often[0] >= 0
    assert rare[1] >= often[1] >= 0
