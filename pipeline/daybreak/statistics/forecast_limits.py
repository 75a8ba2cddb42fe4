"""Limits for the next value of a daily series, from its own past, at a stated chance of a false alarm.

The forecast is the mean of the middle half of the last `LEVEL_DAYS` values, plus the mean error of such
forecasts on the last `SAME_WEEKDAYS` days of this weekday; so the level may move, and the second mean follows
a lasting trend. One day alone moves neither much. Limits are learned from the errors of earlier forecasts:
beyond the u that a fifth of the errors exceed, on each side by itself, excesses are taken for exponential
(peaks over threshold; Siffer et al. 2017). With k of n errors beyond u and the sum S of their excesses, a new
error is beyond u + x with the chance

    P = k / n * (1 + x / S)^-k    so that    x = S * ((k / (n * P))^(1/k) - 1),

which includes the uncertainty of S (the predictive distribution is a Lomax). So a short past gives wide
limits: with k = 2 and P = 1e-4 they are 87 mean excesses from u, with k = 40 they are 8. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL_DAYS = 14
SAME_WEEKDAYS = 8
LEAST_BEFORE = 14  # values that something is expected from
LEAST_ERRORS = 10
TAIL = 0.2  # share of the errors that the tail is learned from
SETTLED = 60  # errors from which on limits are no longer called wide

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SeriesForecast:
    """What is expected of a value, and the errors that such expectations had before."""

    expected: float
    errors: Numbers

    def reach(self, chance: float) -> tuple[float, float]:
        """Returns how far below and above the expected value a new one is with that chance on each side."""
        return _reach(-self.errors, chance), _reach(self.errors, chance)


def forecast(values: Sequence[float], weekdays: Sequence[int], *, weekday: int) -> SeriesForecast | None:
    """Returns what is expected after these values, the newest last; None where there are too few.

    Args:
        values: one a day.
        weekdays: of these days, from 0 to 6.
        weekday: of the day that is to come.
    """
    series, days = np.asarray(values, dtype=np.float64), np.asarray(weekdays)
    levels = np.array([_level(series, place) for place in range(len(series))])
    beside = series - levels
    errors = np.array(
        [
            series[place] - _expected(levels[place], beside[:place], days[:place], int(days[place]))
            for place in range(LEAST_BEFORE, len(series))
        ]
    )
    if len(errors) < LEAST_ERRORS:
        return None
    expected = _expected(_level(series, len(series)), beside, days, weekday)
    return SeriesForecast(expected=expected, errors=errors)


def _level(series: Numbers, place: int) -> float:
    """Returns the mean of the middle half of the values before a place; NaN where there are none."""
    return _middle(series[max(0, place - LEVEL_DAYS) : place])


def _middle(values: Numbers) -> float:
    """Returns the mean of the middle half of the values; NaN of none."""
    ordered, cut = np.sort(values), len(values) // 4
    return float(ordered[cut : len(ordered) - cut].mean()) if len(values) else float("nan")


def _expected(level: float, beside: Numbers, days: "NDArray[np.int_]", weekday: int) -> float:
    same = beside[(days == weekday) & np.isfinite(beside)][-SAME_WEEKDAYS:]
    return level + (_middle(same) if len(same) > 1 else 0.0)


def _reach(errors: Numbers, chance: float) -> float:
    """Returns what an error exceeds with that chance."""
    num = max(2, int(TAIL * len(errors)))
    ordered = np.sort(errors)[::-1]
    threshold = float(ordered[num]) if num < len(ordered) else float(ordered[-1])
    total = float((ordered[:num] - threshold).sum())
    factor = float((num / (len(errors) * chance)) ** (1 / num)) - 1
    return max(0.0, threshold + total * factor)
