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
from numpy.lib.stride_tricks import sliding_window_view
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
        return exceeded(-self.errors, chance), exceeded(self.errors, chance)


def forecast(values: Sequence[float], weekdays: Sequence[int], *, weekday: int) -> SeriesForecast | None:
    """Returns what is expected after these values, the newest last; None where there are too few.

    Args:
        values: one a day.
        weekdays: of these days, from 0 to 6.
        weekday: of the day that is to come.
    """
    series, days = np.asarray(values, dtype=np.float64), np.asarray(weekdays)
    if len(series) < LEAST_BEFORE + LEAST_ERRORS:
        return None
    levels = _middles(series, LEVEL_DAYS)  # before each place, and after the last
    beside = series - levels[:-1]
    usual = np.zeros(len(series))  # of the weekday, beside the level
    for each in np.unique(days):
        same = np.flatnonzero((days == each) & np.isfinite(beside))
        usual[same] = _usual(beside[same])[:-1]
    expected = levels[-1] + _usual(beside[(days == weekday) & np.isfinite(beside)])[-1]
    errors = (beside - usual)[LEAST_BEFORE:]
    return SeriesForecast(expected=float(expected), errors=errors)


def _usual(beside: Numbers) -> Numbers:
    """Returns what is usual of a weekday before each of its days and after the last; 0 after fewer than 2."""
    usual = _middles(beside, SAME_WEEKDAYS)
    usual[:2] = 0.0
    return usual


def _middles(series: Numbers, num: int) -> Numbers:
    """Returns the mean of the middle half of up to `num` values before each place, and of the last ones.

    NaN stands before the first.
    """
    short = [_middle(series[:place]) for place in range(min(num, len(series) + 1))]
    if len(series) < num:
        return np.array(short)
    ordered, cut = np.sort(sliding_window_view(series, num), axis=1), num // 4
    return np.concatenate([short, ordered[:, cut : num - cut].mean(axis=1)])


def _middle(values: Numbers) -> float:
    """Returns the mean of the middle half of the values; NaN of none."""
    ordered, cut = np.sort(values), len(values) // 4
    return float(ordered[cut : len(ordered) - cut].mean()) if len(values) else float("nan")


def exceeded(errors: Numbers, chance: float) -> float:
    """Returns what a new error exceeds with that chance, as these did; of 0 or more."""
    num = max(2, int(TAIL * len(errors)))
    ordered = np.sort(errors)[::-1]
    threshold = float(ordered[num]) if num < len(ordered) else float(ordered[-1])
    total = float((ordered[:num] - threshold).sum())
    factor = float((num / (len(errors) * chance)) ** (1 / num)) - 1
    return max(0.0, threshold + total * factor)
