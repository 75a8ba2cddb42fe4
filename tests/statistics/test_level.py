import numpy as np
import pytest
from scipy import stats

from daybreak.statistics.control_chart import Mean
from daybreak.statistics.level import level, nights_to_show

ERROR, ALPHA = 0.01, 0.05


def series(values, error: float = ERROR) -> list[Mean]:
    return [Mean(value=float(value), error=error) for value in values]


def test_its_ends_fail_as_often_as_stated() -> None:
    draw = np.random.default_rng(4)
    missed = 0
    for _ in range(2000):
        interval = level(series(draw.normal(0, ERROR, 4)), alpha=ALPHA, half_width=0)
        missed += interval.low > 0
    assert stats.binomtest(missed, 2000, ALPHA).pvalue > 0.001


def test_days_that_differ_widen_it_and_a_slow_trend_does_not() -> None:
    draw = np.random.default_rng(5)
    alike = level(series(draw.normal(0, ERROR, 28)), alpha=ALPHA, half_width=0)
    unlike = level(series(draw.normal(0, 5 * ERROR, 28)), alpha=ALPHA, half_width=0)
    trend = level(series(draw.normal(0, ERROR, 28) + np.arange(28) * ERROR / 4), alpha=ALPHA, half_width=0)
    assert unlike.half_width > 3 * alike.half_width
    assert trend.half_width < 1.5 * alike.half_width


def test_it_stops_at_the_newest_nights_that_tell_enough() -> None:
    jump = series([0.2] * 5 + [0.0] * 23)
    assert level(jump, alpha=ALPHA, half_width=ERROR).mean > 0.15
    assert level([], alpha=ALPHA, half_width=ERROR).num_nights == 0


def test_a_difference_is_shown_after_as_many_nights_as_said() -> None:
    draw = np.random.default_rng(6)
    nights = nights_to_show(0.02, error=ERROR, alpha=ALPHA)
    shown = [
        level(series(draw.normal(0.02, ERROR, nights)), alpha=ALPHA, half_width=0).low > 0 for _ in range(500)
    ]
    assert np.mean(shown) == pytest.approx(0.9, abs=0.1)  # at least 0.8, by whole nights
