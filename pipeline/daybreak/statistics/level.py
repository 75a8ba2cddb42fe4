"""Estimates the current level of a series of nightly means, from as few of the newest nights as suffice.

Each night has the mean of its samples and its standard error: value_i ~ N(m_i, s_i^2 + t^2), where t^2 is the
variance between nights, by the squared differences of neighbours less the errors' share (von Neumann 1941),
which a slow trend leaves alone; their median stands for their mean, since a jump leaves that alone, too. The
newest nights are averaged by precision, just as many as give the interval the half-width asked for: more
would measure a past level, fewer are too noisy. That number depends on the errors alone, not on the values.
Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, sqrt

import numpy as np
from scipy import stats

from daybreak.contract.formats import counted, decimals
from daybreak.statistics.control_chart import Mean

LEAST_NIGHTS = 5  # for a variance between nights


POWER = 0.8


@dataclass(frozen=True, kw_only=True)
class Level:
    """Where a series stands: within `mean` -+ `half_width`, each end failing with the chance asked for."""

    mean: float
    half_width: float  # infinite of a series of no night
    num_nights: int  # that were averaged

    def __str__(self) -> str:
        nights = counted(self.num_nights, "night")
        mean, low, high = decimals(self.mean, self.low, self.high, signed=True)
        return f"{mean} (from {low} to {high}, {nights})"

    @property
    def low(self) -> float:
        """Returns the lower end."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Returns the upper end."""
        return self.mean + self.half_width


def nights_to_show(difference: float, *, error: float, alpha: float, power: float = POWER) -> int:
    """Returns after how many nights of this standard error a difference is shown, with that power.

    >>> nights_to_show(0.03, error=0.02, alpha=0.025)
    4
    """
    quantiles = float(stats.norm.isf(alpha) + stats.norm.isf(1 - power))
    return max(1, ceil((quantiles * error / difference) ** 2))


def level(newest_first: Sequence[Mean], *, alpha: float, half_width: float) -> Level:
    """Returns the level of a series, to a half-width of `half_width` where it has enough nights.

    `alpha` is the chance of either end to fail.

    >>> level([Mean(value=0.1, error=0.01)] * 9, alpha=0.025, half_width=0.01).num_nights
    4
    """
    between = _between(newest_first)
    quantile = float(stats.norm.isf(alpha))
    newest = Level(mean=0.0, half_width=inf, num_nights=0)
    weight = total = 0.0
    for number, night in enumerate(newest_first, start=1):
        precision = 1 / max(between + night.error**2, 1e-24)
        weight, total = weight + precision, total + precision * night.value
        newest = Level(mean=total / weight, half_width=quantile / sqrt(weight), num_nights=number)
        if newest.half_width <= half_width:
            break
    return newest


def _between(nights: Sequence[Mean]) -> float:
    """Returns the variance between nights; 0 of fewer than `LEAST_NIGHTS`."""
    if len(nights) < LEAST_NIGHTS:
        return 0.0
    values = np.array([night.value for night in nights])
    errors = np.array([night.error for night in nights])
    apart = float(np.median(np.diff(values) ** 2)) / (2 * float(stats.chi2.median(1)))
    return max(0.0, apart - float(np.median(errors**2)))
