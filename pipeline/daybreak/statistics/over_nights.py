"""Tests whether one recipe is better than another by the mean differences of several nights, at any night.

What one night's samples say holds for that night alone: weather, a holiday or a campaign favours one of two
recipes for a whole day. So here a night is one observation, the mean difference d_k of all its samples, and
the spread of the observations, whatever it comes from, is what an effect is held against. Nights in sequence
are alike, as their training windows overlap and seasons last, so with an unknown correlation r of neighbours

    d_k = m + e_k,   e_k = r e_(k-1) + s u_k,   u_k standard normal

The evidence against "the effect is m at most" is a likelihood ratio of all that does not depend on the unit
of the score (Perez-Ortiz, Lardy, de Heide & Grunwald 2024): above the line the mean over the correlations in
`CORRELATIONS` and over effects (d - m) / s > 0, half-normal with variance 1 / PRIOR; below the line no
effect, with the correlation that makes it largest. For each correlation of the null hypothesis that is a test
martingale, so by Ville's inequality it passes 1 / alpha on any night, ever, with probability at most alpha: a
strong effect ends early, and looking each night costs nothing. Correlations are learned by the same ratio.
Pure: numpy and scipy only.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from daybreak.statistics.result import Effect

CORRELATIONS = (0.0, 0.2, 0.4)  # of neighbouring nights; 28 pairs of recipes on a year of flights: up to 0.2
PRIOR = 1.0  # nights of no effect that the prior of the effect amounts to
Floats = NDArray[np.float64]


def effect_over_nights(means: Sequence[float], *, alpha: float) -> Effect:
    """Returns the mean effect of nights, oldest first, with an interval that holds on every night at once.

    Each end fails with probability `alpha`. Under two nights the interval is infinite. Raises ValueError
    where a mean is not finite.
    """
    values: Floats = np.asarray(means, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"{values.size} nights, not all of a finite mean")
    mean = float(values.mean()) if values.size else 0.0
    sd = float(values.std(ddof=1)) if values.size > 1 else math.inf
    low = high = -math.inf
    if 0.0 < sd < math.inf:  # without any spread, scores are too coarse to show it
        low = sd * _lower_end((values - mean) / sd, alpha=alpha)
        high = sd * _lower_end((mean - values) / sd, alpha=alpha)
    return Effect(mean=mean, low=mean + low, high=mean - high, sd=sd, num_samples=values.size, of="night")


def log_evidence(values: Floats) -> float:
    """Returns the log of the evidence that the mean of values, shape [n], is above 0."""
    n = values.size
    first = np.sqrt(1 - np.square(CORRELATIONS))
    whole, null = [], []
    for correlation, scale in zip(CORRELATIONS, first, strict=True):
        white = np.concatenate(([scale * values[0]], values[1:] - correlation * values[:-1]))
        design = np.concatenate(([scale], np.full(n - 1, 1 - correlation)))
        total, weight = float(design @ white), float(design @ design) + PRIOR
        square = max(float(white @ white), 1e-300)
        rest = max(square - total**2 / weight, 1e-300)
        above = stats.t.logcdf(total / math.sqrt(weight * rest / n), n)
        null.append(math.log(scale) - n / 2 * math.log(square))
        mixed = math.log(2) + above + (math.log(PRIOR) - math.log(weight)) / 2
        whole.append(math.log(scale) + mixed - n / 2 * math.log(rest))
    return float(special.logsumexp(whole)) - math.log(len(CORRELATIONS)) - max(null)


def _lower_end(values: Floats, *, alpha: float) -> float:
    """Returns the largest mean that the evidence is against, of values of mean 0 and spread 1."""

    def excess(below: float) -> float:
        return log_evidence(values + below) + math.log(alpha)

    furthest = 1.0
    while excess(furthest) < 0:
        furthest *= 2
        if furthest > 1e9:
            return -math.inf
    return -float(optimize.brentq(excess, 0.0, furthest)) if excess(0.0) < 0 else 0.0
