"""Holds tonight's mean against those of earlier nights: a control chart of means of samples.

Means differ by their samples and by the night: value_i ~ N(m, t^2 + s_i^2), where s_i is the standard error
of night i and t^2 the variance between nights, by the moments of DerSimonian and Laird (1986). A new night
lies within m -+ q * sqrt(t^2 + s^2 + var(m)) with the probability of q, a quantile of Student's t with n - 1
degrees of freedom: the prediction interval of a random-effects model (Higgins, Thompson and Spiegelhalter
2009). Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from scipy import stats


@dataclass(frozen=True, kw_only=True)
class Mean:
    """The mean of a night's samples, and its standard error."""

    value: float
    error: float


@dataclass(frozen=True, kw_only=True)
class ControlBand:
    """What is expected of a new mean: it lies between `low` and `high` but for a share `alpha` of nights."""

    low: float
    high: float
    num_nights: int

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def expected(past: Sequence[Mean], *, error: float, alpha: float) -> ControlBand:
    """Returns the band expected of a mean with standard error `error`, from two or more earlier means."""
    values = np.array([mean.value for mean in past])
    errors = np.array([mean.error for mean in past])
    between = _between(values, errors)
    variances = np.maximum(between + errors**2, 1e-24)
    weights = 1 / variances
    centre = float((weights * values).sum() / weights.sum())
    spread = sqrt(between + error**2 + 1 / float(weights.sum()))
    reach = float(stats.t.ppf(1 - alpha / 2, len(past) - 1)) * spread
    return ControlBand(low=centre - reach, high=centre + reach, num_nights=len(past))


def _between(
    values: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    errors: "np.ndarray[tuple[int], np.dtype[np.float64]]",
) -> float:
    """Returns the variance between nights beyond that of their samples, by the method of moments."""
    if not errors.all():
        return float(values.var(ddof=1))
    weights = 1 / errors**2
    centre = (weights * values).sum() / weights.sum()
    excess = float((weights * (values - centre) ** 2).sum()) - (len(values) - 1)
    return max(0.0, excess / float(weights.sum() - (weights**2).sum() / weights.sum()))
