"""Tests whether the challenger is worse by more than its margin, for any values in [0, 1], at any time.

Guardrails have to act on a handful of users, where no normal approximation holds. So the test bets against
the null that the challenger's mean is above the champion's by no more than the margin (Waudby-Smith & Ramdas
2024; for two arms, Shekhar & Ramdas 2024). User k meets the challenger (A = 1) with chance p, known before
the draw, and has a value y in [0, 1], where higher is worse. With any earlier guess m of the champion's mean,

    u = (A - p) (y - m - A margin)      has the mean p (1 - p) (mean of ours - mean of theirs - margin) <= 0

and u is at least -L with L = max((1 - p)(m + margin), p (1 - m)). So for every share f of the wealth that is
staked, the product of 1 + f u / L is a supermartingale that starts at 1; the average over several f passes
1/alpha at any time with probability at most alpha (Ville's inequality). Any n, any distribution of y and any
p will do, and p may change as the traffic ramps up. Pure: numpy only.

The library confseq bets for one arm; it is no longer maintained and does not take changing chances.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from daybreak.statistics.result import Conclusion, Status

STAKES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 0.9)
ALPHA = 0.001  # a false alarm stops a whole test, so it has to be rare
Floats = NDArray[np.float64]


def log_evidence(treated: ArrayLike, chance: ArrayLike, values: ArrayLike, *, margin: float) -> Floats:
    """Returns the log of the evidence against the null after each user, shape [n].

    Arguments have the shape [n], in order of time.

    Raises ValueError where a value is outside [0, 1], a chance is not between 0 and 1, or the margin is.
    """
    arm = np.asarray(treated, dtype=bool)
    p, y = np.asarray(chance, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if not (((y >= 0) & (y <= 1)).all() and ((p > 0) & (p < 1)).all() and 0 < margin < 1):
        raise ValueError(f"values outside [0, 1], chances that are none, or the margin {margin:g}")
    if not y.size:
        return np.zeros(0)
    theirs = np.where(arm, 0.0, y).cumsum() - np.where(arm, 0.0, y)  # of those before
    guess = theirs / (1 + (~arm).cumsum() - ~arm)
    won = (arm - p) * (y - guess - arm * margin)
    most = np.maximum((1 - p) * (guess + margin), p * (1 - guess))
    return _wealth(won / most)


def _wealth(won: Floats) -> Floats:
    """Returns the log of the wealth after each bet, the average over all stakes; `won` is at least -1."""
    wealth = np.log1p(np.multiply.outer(STAKES, won)).cumsum(axis=1)
    top = wealth.max(axis=0)
    return np.asarray(top + np.log(np.exp(wealth - top).mean(axis=0)))


def paired_alarm(ours: ArrayLike, theirs: ArrayLike, *, margin: float, alpha: float = ALPHA) -> Conclusion:
    """Returns WORSE where our values were ever proven above theirs on the same users by more than the margin.

    Each user has both values, in [0, 1], where higher is worse. Under the null their difference less the
    margin has a mean of at most 0, and it is at least -(1 + margin), so the same stakes bet on it.

    Args:
        ours: of the challenger, shape [n], in order of time.
        theirs: of the champion, shape [n].
        margin: between 0 and 1.
        alpha: chance of a false alarm, over all looks together.
    """
    difference = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    if not difference.size:
        return Conclusion(status=Status.NO_DATA, sentence="no user has come yet", p_value=1.0)
    if not (np.abs(difference) <= 1).all() or not 0 < margin < 1:
        raise ValueError(f"values outside [0, 1], or the margin {margin:g}")
    return _conclusion(_wealth((difference - margin) / (1 + margin)), margin=margin, alpha=alpha)


def alarm(
    treated: ArrayLike,
    chance: ArrayLike,
    values: ArrayLike,
    *,
    margin: float,
    alpha: float = ALPHA,
    num_tests: int = 1,
) -> Conclusion:
    """Returns WORSE where the challenger was ever proven worse by more than the margin, else OPEN.

    Arguments as of `log_evidence`. False alarms over all looks together: at most alpha, also of `num_tests`
    that are made together (Bonferroni). NO_DATA before the first user. Bets have no interval, so the result
    has no effect.
    """
    evidence = log_evidence(treated, chance, values, margin=margin)
    if not evidence.size:
        return Conclusion(status=Status.NO_DATA, sentence="no user has come yet", p_value=1.0)
    return _conclusion(evidence, margin=margin, alpha=alpha, num_tests=num_tests)


def _conclusion(evidence: Floats, *, margin: float, alpha: float, num_tests: int = 1) -> Conclusion:
    p_value = min(num_tests * math.exp(-float(evidence.max())), 1.0)
    if p_value > alpha:
        return Conclusion(
            status=Status.OPEN, sentence=f"not proven worse by more than {margin:g}", p_value=p_value
        )
    sentence = f"worse by more than {margin:g} (p {p_value:.2g})"
    return Conclusion(status=Status.WORSE, sentence=sentence, p_value=p_value)
