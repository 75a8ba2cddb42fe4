"""Compares a quantile of two arms, such as P99 latency, by a test that stays valid at any number of looks.

Of n values, the number c below the true q-quantile is binomial(n, q), whatever the values' distribution. So
every x whose count c(x) keeps the beta-binomial martingale of `srm` under 1/alpha is in an interval that
covers the quantile at all n at once (Howard & Ramdas 2022, theorem 1, with its mixture bound). Two arms have
the same quantile only if at some x neither martingale objects: the least product over x is evidence against
that (the same, section 5). Ties are given to either side as suits the null. Pure: numpy and scipy only.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from daybreak.statistics.result import Conclusion, Effect, Status
from daybreak.statistics.srm import concentration

Floats = NDArray[np.float64]


def evidence(num_below: ArrayLike, num_values: int, *, quantile: float, k: float) -> Floats:
    """Returns the log of the martingale where `num_below` values are below their quantile; same shape."""
    below = np.asarray(num_below, dtype=np.float64)
    a, b = k * quantile, k * (1 - quantile)
    prior = special.betaln(a + below, b + num_values - below) - special.betaln(a, b)
    return np.asarray(
        prior - below * math.log(quantile) - (num_values - below) * math.log1p(-quantile), dtype=np.float64
    )


def interval(
    values: ArrayLike, *, quantile: float, alpha: float, tuned_at: int = 10_000
) -> tuple[float, float]:
    """Returns ends of the quantile of `values`, shape [n], that hold at every n with chance 1 - alpha.

    An end is infinite while there are too few values for it.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64).reshape(-1))
    n = ordered.size
    k = concentration(tuned_at, alpha=alpha)
    possible = np.flatnonzero(evidence(np.arange(n + 1), n, quantile=quantile, k=k) < math.log(1 / alpha))
    first, last = int(possible[0]), int(possible[-1])
    low = float(ordered[first - 1]) if first > 0 else -math.inf
    high = float(ordered[last]) if last < n else math.inf
    return low, high


def p_value(
    ours: ArrayLike, theirs: ArrayLike, *, quantile: float, alpha: float = 0.05, tuned_at: int = 10_000
) -> float:
    """Returns the p-value of both arms, shapes [n] and [m], having the same quantile; holds at any time."""
    arms = [np.sort(np.asarray(values, dtype=np.float64).reshape(-1)) for values in (ours, theirs)]
    k = concentration(tuned_at, alpha=alpha)
    where = np.unique(np.concatenate(arms))
    total = np.zeros(2 * where.size + 1)
    for arm in arms:
        least = np.empty(2 * where.size + 1)
        below = np.searchsorted(arm, where, side="left")
        upto = np.searchsorted(arm, where, side="right")
        between = np.concatenate([[0], upto])  # x strictly between two values, or outside all
        least[0::2] = evidence(between, arm.size, quantile=quantile, k=k)
        chosen = np.clip(_mode(arm.size, quantile=quantile, k=k), below, upto)  # of the ties at x
        least[1::2] = evidence(chosen, arm.size, quantile=quantile, k=k)
        total += least
    return float(min(1.0, math.exp(-float(total.min()))))


def guard(
    challenger: ArrayLike | None,
    champion: ArrayLike | None,
    *,
    quantile: float,
    margin: float,
    alpha: float,
    min_samples: int,
    unit: str = "s",
) -> Conclusion:
    """Returns whether this quantile of the challenger is above the champion's by more than the margin.

    Lower is better: NO_WORSE within the margin, WORSE beyond it, OPEN while neither is proven. The arms are
    of different users, shapes [n] and [m]; every input has an answer, and it may be asked for at any time.
    The effect is champion - challenger, so that above 0 is better.
    """
    name = f"P{100 * quantile:g}"
    problem = _problem(challenger, champion, margin=margin, min_samples=min_samples)
    if problem is not None:
        return replace(problem, sentence=f"{name}: {problem.sentence}")
    ours, theirs = np.asarray(challenger, dtype=np.float64), np.asarray(champion, dtype=np.float64)
    mine, other = (interval(v, quantile=quantile, alpha=alpha / 2) for v in (ours, theirs))
    effect = Effect(
        mean=float(np.quantile(theirs, quantile) - np.quantile(ours, quantile)),
        low=other[0] - mine[1],
        high=other[1] - mine[0],
        sd=math.nan,
        num_samples=min(ours.size, theirs.size),
    )
    status, how = Status.OPEN, "not yet known to be within the margin"
    if effect.low > -margin:
        status, how = Status.NO_WORSE, "within the margin"
    elif effect.high < -margin:
        status, how = Status.WORSE, "more than the margin"
    rise = f"{name} is higher by {-effect.mean:.4g} {unit} (from {-effect.high:.4g} to {-effect.low:.4g})"
    return Conclusion(status=status, effect=effect, sentence=f"{rise}, {how} {margin:g} {unit}")


def _problem(
    challenger: ArrayLike | None, champion: ArrayLike | None, *, margin: float, min_samples: int
) -> Conclusion | None:
    """Returns the result where the values do not suffice for a test, or None where they do."""
    if not margin > 0:
        return _no("it has no margin; give it one above 0")
    sizes = []
    for arm, values in (("challenger", challenger), ("champion", champion)):
        if values is None:
            return _no(f"no values of the {arm}")
        array = np.asarray(values, dtype=np.float64)
        if lost := int((~np.isfinite(array)).sum()):
            status = Status.INVALID if arm == "challenger" else Status.NO_DATA
            return Conclusion(status=status, sentence=f"{lost:,} values of the {arm} are not finite")
        sizes.append(array.size)
    if min(sizes) < max(min_samples, 1):
        return _no(f"{min(sizes):,} values in the smaller arm, {min_samples:,} are asked for")
    return None


def _mode(num_values: int, *, quantile: float, k: float) -> float:
    """Returns the count at which the martingale is least."""
    counts = np.arange(num_values + 1)
    return float(counts[int(np.argmin(evidence(counts, num_values, quantile=quantile, k=k)))])


def _no(sentence: str) -> Conclusion:
    return Conclusion(status=Status.NO_DATA, sentence=sentence)
