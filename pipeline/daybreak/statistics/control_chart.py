"""Holds tonight's mean against those of earlier nights: a control chart of means of samples.

Means differ by their samples and by the night: value_i ~ N(m, t^2 + s_i^2), where s_i is the standard error
of night i and t^2 the variance between nights, by the moments of DerSimonian and Laird (1986), both of the
`RECENT` newest nights. If nights were normal, a new one would lie within m -+ q * sqrt(t^2 + s^2 + var(m))
with the probability of q, a quantile of Student's t with n - 1 degrees of freedom: the prediction interval of
a random-effects model (Higgins, Thompson and Spiegelhalter 2009). But nights are skewed, as a few days have a
storm or a sale, and of lognormal ones five times as many lie outside. So each earlier night is held against
those before it, too, and on the side of their skewness g the band reaches further, by g (q^2 - 1) / 6
(Cornish & Fisher 1938): twice that while there are few nights, which show about half of it. A night beyond
its own limits counts as at them, so that a broken day does not widen the limits of a year. Until `LASTING`
nights in a row were beyond theirs, none of these counts at all: else a broken night would make its own
repetition look usual the night after. With fewer than a dozen nights, the band is wide: at 7, a night that
is off by 6 spreads is inside it more often than not. Pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from daybreak.statistics.forecast_limits import Numbers

RECENT = 28  # nights that say where the mean is, and how much nights differ
LEAST = 7  # nights that a further one is held against
LASTING = 3  # nights in a row beyond their limits that are taken for the new normal


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
    """Returns the band expected of a mean with standard error `error`.

    `past` are two or more earlier means, newest first; the more, the better is their skewness known.
    """
    values = np.array([mean.value for mean in past][::-1])
    errors = np.array([mean.error for mean in past][::-1])
    first = min(LEAST, len(past))
    centre, spreads = _recent(values[:first], errors[:first])
    off = np.empty(len(past))  # by how many spreads each night was, at most as far as its own limits
    off[:first] = (values[:first] - centre) / spreads(errors[:first])
    beyond = np.zeros(len(past), dtype=bool)
    for place in range(first, len(past)):
        usual = _usual(beyond[:place])
        centre, spreads = _recent(values[usual], errors[usual])
        below, above = _limits(off[usual], alpha=alpha)
        so_far = (values[place] - centre) / spreads(errors[place])
        off[place] = np.clip(so_far, -below, above)
        beyond[place] = so_far != off[place]
    usual = _usual(beyond)
    centre, spreads = _recent(values[usual], errors[usual])
    below, above = _limits(off[usual], alpha=alpha)
    spread = float(spreads(np.array(error)))
    return ControlBand(
        low=centre - below * spread, high=centre + above * spread, num_nights=min(len(usual), RECENT)
    )


def _usual(beyond: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Returns the places of the nights that count, by whether each was beyond its limits."""
    newest = np.arange(len(beyond)) >= len(beyond) - LASTING
    waits = beyond & newest
    return np.flatnonzero(~waits if waits.sum() < LASTING else np.ones_like(waits))


def _recent(values: Numbers, errors: Numbers) -> tuple[float, Callable[[Numbers], Numbers]]:
    """Returns the mean of the newest nights, and the spread of further ones by their standard errors."""
    values, errors = values[-RECENT:], errors[-RECENT:]
    between = _between(values, errors)
    weights = 1 / np.maximum(between + errors**2, 1e-24)
    total = float(weights.sum())
    centre = float((weights * values).sum() / total)
    return centre, lambda error: np.sqrt(np.maximum(between + error**2, 1e-24) + 1 / total)


def _limits(off: Numbers, *, alpha: float) -> tuple[float, float]:
    """Returns by how many spreads a night may be off, below and above, after nights that were so far off."""
    num = len(off)
    reach = _student(alpha, min(num, RECENT) - 1)
    apart = off - off.mean()
    scale = float(np.square(apart).mean())
    if num < 3 or scale < 1e-12:
        return reach, reach
    skewness = float((apart**3).mean()) / scale**1.5 * sqrt(num * (num - 1)) / (num - 2)
    wider = skewness * (1 + RECENT / max(num, RECENT)) * (reach**2 - 1) / 6
    return reach + max(0.0, -wider), reach + max(0.0, wider)


@cache
def _student(alpha: float, freedom: int) -> float:
    return float(stats.t.ppf(1 - alpha / 2, freedom))


def _between(values: Numbers, errors: Numbers) -> float:
    """Returns the variance between nights beyond that of their samples, by the method of moments."""
    if not errors.all():
        return float(values.var(ddof=1))
    weights = 1 / errors**2
    centre = (weights * values).sum() / weights.sum()
    excess = float((weights * (values - centre) ** 2).sum()) - (len(values) - 1)
    return max(0.0, excess / float(weights.sum() - (weights**2).sum() / weights.sum()))
