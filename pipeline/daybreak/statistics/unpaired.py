"""Compares two models that meet different users; the effect may be looked at all the time.

User k met the challenger (A = 1) with chance p, known beforehand, and scored y. With m the mean of y among
the users of the same chance,

    U = sum of u, u = (A - p)(y - m)      T = sum of p (1 - p)      effect = U / T

weights each user by how much was left to chance (overlap weights, Li, Morgan & Zaslavsky 2018): a ramp from
1 % to 50 % needs no weights of 100, and hours of different traffic are never mixed up with the arms, since
within each the arms were drawn alike. Given what came before, u - p (1 - p) effect has mean 0 and variance
p (1 - p) s^2. So its sum is followed on the clock T by the normal mixture of `sequential`, as paired
differences are by `paired`: the effect is out of the interval where

    |U - T effect| > c sqrt(T V),   V = sum of (u - p (1 - p) effect)^2,   c = mixture_bound(T) / T

V at the effect that is tested, as Student's t has it: a quadratic, solved for both ends. Where the looks are
planned (`group_bounds` of `sequential`), c = z / sqrt(T) with their bound z. An end is moved out, never in,
by skewness (Johnson 1978). It holds for large n: `gate.min_samples` users of either arm are asked for, and
`benchmarks/bench_gate.py` looks at simulated nights that ramp up.

What was known of a user before the test says part of the score, whichever model the user meets. Taking that
part away (`adjusted`; CUPED: Deng, Xu, Kohavi & Walker 2013) leaves the effect as it is, with less noise.
Pure.
"""

import math
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from daybreak.statistics.paired import POWER
from daybreak.statistics.result import Effect
from daybreak.statistics.sequential import mixture_bound, mixture_rho

TUNED_AT = 250.0  # T of a thousand users at halves
LEAST_KNOWN = 30  # users of whom something is known before the test, for a regression on it
Floats = NDArray[np.float64]


def effect(
    treated: ArrayLike,
    chance: ArrayLike,
    values: ArrayLike,
    *,
    alpha: float,
    tuned_at: float = TUNED_AT,
    bound: float | None = None,
) -> Effect:
    """Returns mean of the challenger's users - mean of the champion's; each end fails with chance alpha.

    Args:
        treated: which users met the challenger, shape [n], in order of time.
        chance: of each to meet it, between 0 and 1, shape [n].
        values: score of each, shape [n].
        alpha: chance that an end is ever wrong, at whatever look.
        tuned_at: T at which the interval is to be tightest; fixed before the first user comes.
        bound: z of a planned look, to which alpha has been spent already; None: looks come at any time.
    """
    arm = np.asarray(treated, dtype=bool)
    p, y = np.asarray(chance, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if not (np.isfinite(y).all() and ((p > 0) & (p < 1)).all()):
        raise ValueError(f"{y.size} values, not all finite, or chances that are none")
    unit = _unit(y)
    u, weight = _centred(arm, p, y / unit)
    of_users = partial(Effect, num_samples=y.size, of="user")
    clock = float(weight.sum())
    if clock <= 0 or arm.all() or not arm.any():
        return of_users(mean=0.0, low=-math.inf, high=math.inf, sd=math.inf)
    total = float(u.sum())
    mean = total / clock
    rest = u - weight * mean
    sd = math.sqrt(float(rest @ rest) / clock)
    c = half_width(clock, alpha=alpha, tuned_at=tuned_at) if bound is None else bound / math.sqrt(clock)
    square = clock**2 - c**2 * clock * float(weight @ weight)
    if square <= 0:
        return of_users(mean=mean * unit, low=-math.inf, high=math.inf, sd=sd * unit)
    middle = total * clock - c**2 * clock * float(u @ weight)
    last = total**2 - c**2 * clock * float(u @ u)
    root = math.sqrt(max(middle**2 - square * last, 0.0))
    low, high = (middle - root) / square, (middle + root) / square
    if sd > 0:
        skew = float((rest**3).sum()) / clock / sd**3
        lean = skew * sd * (1 / clock + 2 * ((high - low) / 2 / sd) ** 2) / 6
        low, high = low + min(lean, 0.0), high + max(lean, 0.0)
    return of_users(mean=mean * unit, low=low * unit, high=high * unit, sd=sd * unit)


def adjusted(values: ArrayLike, before: ArrayLike, chance: ArrayLike) -> tuple[Floats, float]:
    """Returns the scores less their prediction from earlier scores, and the share of variance it explains.

    Args:
        values: score of each user, shape [n].
        before: score of each user before the test, shape [n]; NaN where unknown.
        chance: probability of each user to meet the challenger, shape [n]; it changed over time, so the
            regression is within groups of equal probability.
    """
    y, x, p = (np.asarray(one, dtype=np.float64) for one in (values, before, chance))
    known = np.isfinite(x)
    unit, x = _unit(y), x / _unit(x[known])
    if known.sum() < LEAST_KNOWN or not x[known].std() > 0:
        return y, 0.0
    covariates = np.stack([np.where(known, x, x[known].mean()), known.astype(np.float64)], axis=1)
    centred_y, centred = y / unit, covariates.copy()
    for one in np.unique(p):
        among = p == one
        centred_y[among] -= centred_y[among].mean()
        centred[among] -= covariates[among].mean(axis=0)
    slopes = np.linalg.lstsq(centred, centred_y, rcond=None)[0]
    foretold, spread = centred @ slopes, float(centred_y @ centred_y)
    return y - unit * foretold, float(foretold @ foretold) / spread if spread > 0 else 0.0


def half_width(clock: float, *, alpha: float, tuned_at: float) -> float:
    """Returns half of the interval at T = clock, in standard deviations of a score; holds for large T."""
    rho = mixture_rho(tuned_at, alpha=2 * alpha)
    return mixture_bound(clock, alpha=alpha, rho=rho, sides=1) / clock


def detectable(
    *, sd: float, clock: float, alpha: float, power: float = POWER, bound: float | None = None
) -> float:
    """Returns the smallest true effect shown with this power by T = clock, where the interval is tightest.

    `bound` is the z of the last planned look; None where looks come at any time.

    >>> round(detectable(sd=0.25, clock=2500, alpha=0.05), 4)
    0.018
    """
    if clock <= 0:
        return math.inf
    room = -float(special.ndtri(1 - power)) / math.sqrt(clock)
    width = half_width(clock, alpha=alpha, tuned_at=clock) if bound is None else bound / math.sqrt(clock)
    return sd * (width + room)


def _unit(values: Floats) -> float:
    """Returns the power of two below the largest value; in this unit no square of it overflows."""
    exponent = math.frexp(float(np.abs(values).max(initial=0.0)))[1] - 1
    return 2.0 ** max(exponent, -1000)


def _centred(arm: NDArray[np.bool_], p: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Returns u and p (1 - p) of each user, the latter less its own part in the mean."""
    u, weight = np.zeros_like(y), np.zeros_like(y)
    for one in np.unique(p):
        among = p == one
        size = int(among.sum())
        u[among] = (arm[among] - one) * (y[among] - y[among].mean())
        weight[among] = one * (1 - one) * (size - 1) / size
    return u, weight
