"""Tests whether users were shared out among the arms as drawn; the test may be made all the time.

If they were not, what the arms show differs for another reason than the models (a sample ratio mismatch),
and no verdict is believed. Under the null, n users fall into arms with the shares p. The Dirichlet
distribution with parameters k p puts a prior on what the shares may be instead, and the ratio of likelihoods

    M = Gamma(k) / Gamma(k + n) * prod_a Gamma(k p_a + c_a) / (Gamma(k p_a) p_a^c_a)

is a martingale: it passes 1/alpha at any time with probability at most alpha (Lindon & Malek 2022, the
sequential chi-square; for two arms the beta-binomial mixture of Howard et al. 2021). The larger k, the
closer to p are the shares that it finds soonest. Where the chance to meet the challenger changed, users of
each chance are a test of their own, and the product of their ratios is again a martingale.
Pure: numpy and scipy only.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from daybreak.statistics.result import Conclusion, Status
from daybreak.statistics.sequential import mixture_rho

Floats = NDArray[np.float64]
ALPHA = 0.001  # a false alarm stops a whole test, so it has to be rare
TUNED_AT = 100_000  # users


def concentration(tuned_at: int, *, alpha: float) -> float:
    """Returns the k that finds soonest a mismatch which `tuned_at` users can just show."""
    return max(mixture_rho(tuned_at, alpha=alpha) - 1, 1e-3)


def log_evidence(counts: ArrayLike, shares: Sequence[float], *, concentration: float) -> Floats:
    """Returns the log of the martingale at the counts so far, shape [..., arms]; counts may be fractions.

    >>> round(float(log_evidence([135, 490], [0.2, 0.8], concentration=12.60056 / 0.16 - 1)), 5)
    -0.6941
    """
    seen, prior = np.asarray(counts, dtype=np.float64), concentration * np.asarray(shares, dtype=np.float64)
    posterior = special.gammaln(prior + seen).sum(-1) - special.gammaln(concentration + seen.sum(-1))
    before = special.gammaln(prior).sum() - special.gammaln(concentration)
    return np.asarray(posterior - before - special.xlogy(seen, shares).sum(-1))


def check(
    treated: ArrayLike, chance: ArrayLike, *, alpha: float = ALPHA, tuned_at: int = TUNED_AT
) -> Conclusion:
    """Returns MISMATCH where the arms do not fit the chances they were drawn with, else OPEN.

    False alarms over all looks together: at most alpha. NO_DATA before the first user.

    Args:
        treated: which users met the challenger, shape [n].
        chance: of each to meet it, between 0 and 1, shape [n].
        alpha: chance of a false alarm.
        tuned_at: number of users for which the test is tuned, as of `concentration`.
    """
    arm, p = np.asarray(treated, dtype=bool), np.asarray(chance, dtype=np.float64)
    if not ((p > 0) & (p < 1)).all():
        raise ValueError("a chance is not between 0 and 1")
    if not arm.size:
        return Conclusion(status=Status.NO_DATA, sentence="no user has come yet")
    k = concentration(tuned_at, alpha=alpha)
    groups = [(one, int(arm[p == one].sum()), int((p == one).sum())) for one in np.unique(p)]
    evidence = sum(
        float(log_evidence([ours, size - ours], [one, 1 - one], concentration=k))
        for one, ours, size in groups
    )
    p_value = math.exp(-max(evidence, 0.0))
    sentence = f"{int(arm.sum()):,} users met the challenger, {float(p.sum()):,.1f} were due"
    if p_value > alpha:
        return Conclusion(status=Status.OPEN, sentence=sentence, p_value=p_value)
    sentence += f" (p {p_value:.2g}); look at the assignment"
    return Conclusion(status=Status.MISMATCH, sentence=sentence, p_value=p_value)
