"""Tests a daily series for a trend over its last weeks.

A line and a level for each weekday are fitted by least squares, with values clipped at three robust standard
deviations from the fit (Huber 1964). Successive errors are correlated: the variance of the slope is widened
by (1 + r) / (1 - r), where r is their first-order correlation, corrected for its bias downwards (Kendall
1954), and the degrees of freedom fall by as much. A series that wanders by itself, as with the seasons, has
slopes beyond their errors in earlier windows as well: the error is widened by their root mean square. Windows
just before the last one, as far as all have its direction, may hold the same trend, and are left out. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile
from math import sqrt

import numpy as np
from numpy.typing import NDArray

CLIPPED = 3.0  # robust standard deviations
ROUNDS = 3  # of clipping
MOST_CORRELATED = 0.97
STRIDE = 30  # days between earlier windows
LEAST_ERROR = 1e-12

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TrendLine:
    """A line through the days of a window, in units of the series."""

    before: float  # the line's value on the first day
    now: float  # and on the last
    per_day: float  # from one value to the next, where days are missing
    error: float  # standard error of `per_day`
    freedom: float  # degrees of freedom

    @property
    def chance(self) -> float:
        """Returns the chance that a series without a trend has a slope as far from 0, on either side."""
        from scipy import stats

        return float(2 * stats.t.sf(abs(self.per_day) / max(self.error, LEAST_ERROR), self.freedom))


def trend(values: Sequence[float], weekdays: Sequence[int], *, window: int) -> TrendLine:
    """Returns the line through the last `window` values, one a day, the newest last.

    Args:
        values: at least `window`; those before show how far the series wanders.
        weekdays: of these days, from 0 to 6.
        window: days, of two weeks at least.
    """
    series, days = np.asarray(values, dtype=np.float64), np.asarray(weekdays)
    ends = range(len(series), window - 1, -1)
    tonight = _line(series[-window:], days[-window:])
    earlier = [_line(series[end - window : end], days[end - window : end]) for end in ends[window::STRIDE]]
    others = dropwhile(lambda one: one.per_day * tonight.per_day > 0, earlier)
    wandered = [(one.per_day / max(one.error, LEAST_ERROR)) ** 2 for one in others]
    wider = max(1.0, sqrt(float(np.mean(wandered)))) if wandered else 1.0
    return TrendLine(
        before=tonight.before,
        now=tonight.now,
        per_day=tonight.per_day,
        error=tonight.error * wider,
        freedom=tonight.freedom,
    )


def _line(series: Numbers, days: NDArray[np.int64]) -> TrendLine:
    num = len(series)
    since = np.arange(num) - (num - 1) / 2
    levels = (days[:, None] == np.unique(days)[None, :]).astype(np.float64)
    terms = np.column_stack([since, levels])
    solved = np.linalg.pinv(terms)
    clipped = series
    for _ in range(ROUNDS):
        fitted = terms @ (solved @ clipped)
        beside = series - fitted
        spread = 1.4826 * float(np.median(np.abs(beside - np.median(beside))))
        clipped = fitted + np.clip(beside, -CLIPPED * spread, CLIPPED * spread) if spread else series
    slope = float((solved @ clipped)[0])
    errors = clipped - terms @ (solved @ clipped)
    num_terms, total = terms.shape[1], float(errors @ errors)
    alike = float(errors[1:] @ errors[:-1]) / total if total else 0.0
    alike = (num * alike + num_terms / 2) / (num - num_terms / 2 - 2)
    alike = min(MOST_CORRELATED, max(0.0, alike))
    wider = (1 + alike) / (1 - alike)
    variance = total / (num - num_terms) * float(solved[0] @ solved[0]) * wider
    middle, half = float(clipped.mean()), slope * (num - 1) / 2
    return TrendLine(
        before=middle - half,
        now=middle + half,
        per_day=slope,
        error=sqrt(variance),
        freedom=max(3.0, (num - num_terms) / wider),
    )
