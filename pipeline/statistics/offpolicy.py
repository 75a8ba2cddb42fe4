"""How would a model do whose lists nobody has seen? Advice from what other lists were answered with.

A log has, for each exposure, the reward r of what was shown, the chance b that it was shown, and the chance
t that the new model would show it; q is a guess of its reward, v of the reward of what the model would show.
With weights w = min(t / b, cap),

    IPS    mean of w r                          (Horvitz & Thompson 1952), unbiased without the cap
    SNIPS  sum of w r / sum of w                (Swaminathan & Joachims 2015), less noisy, consistent
    DR     mean of v + w (r - q)                (Dudik, Langford & Li 2011), unbiased if q or b is right

each with a normal interval of its mean. A log tells nothing of what it never showed: where too little of
what the model would show has been shown (support), where few exposures carry all the weight (effective sample
size, Kish 1965), or where the weights do not average 1, nothing is estimated and the reason is given. It is
advice before a ramp, never a verdict. Pure: numpy and scipy only.

obp (Open Bandit Pipeline) has these estimators; its last version, 0.5.7 of April 2023, does not install on
Python 3.11, and the formulas are three lines.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

CAP = 100.0
LEAST = 1e-9  # chance of what was shown
MIN_EFFECTIVE = 100.0  # exposures of equal weight that would say as much
MIN_SUPPORT = 0.95  # of what the model would show
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean reward with its interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What a log says of a model that it has not seen; estimates are None where it says nothing."""

    ips: Estimate | None
    snips: Estimate | None
    doubly_robust: Estimate | None
    effective: float  # effective sample size of the weights
    support: float  # of the model's choices, as far as the weights tell
    clipped: float  # share of the weights that were cut to the cap
    reason: str


def advise(
    rewards: ArrayLike,
    shown: ArrayLike,
    wanted: ArrayLike,
    *,
    guess_shown: ArrayLike | None = None,
    guess_wanted: ArrayLike | None = None,
    support: float | None = None,
    alpha: float = 0.05,
    cap: float = CAP,
) -> Advice:
    """Estimates of the mean reward of a model; every log has an answer.

    Args:
        rewards: of each exposure, shape [n].
        shown: chance that what was shown was shown, above 0.
        wanted: chance that the model would have shown the same.
        guess_shown: expected reward of what was shown, for the doubly robust estimate.
        guess_wanted: expected reward of what the model would show.
        support: share of the model's choices that may have been shown; from the weights if left out.
        alpha: chance that an interval does not hold the mean.
        cap: most that a weight may be.
    """
    r, b, t = (np.asarray(values, dtype=np.float64).reshape(-1) for values in (rewards, shown, wanted))
    problem = _problem(r, b, t, cap=cap)
    if problem:
        return _none(problem)
    raw = t / b
    w = np.minimum(raw, cap)
    largest = float(w.max())
    effective = float((w / largest).sum() ** 2 / ((w / largest) @ (w / largest))) if largest else 0.0
    covered = min(float(raw.mean()), 1.0) if support is None else support
    clipped = float((raw > cap).mean())
    known = {"effective": effective, "support": covered, "clipped": clipped}
    spread = float(raw.std()) / math.sqrt(r.size)
    if covered < MIN_SUPPORT and (support is not None or raw.mean() + 3 * spread < MIN_SUPPORT):
        return _none(f"only {covered:.0%} of what the model would show was ever shown", **known)
    if effective < MIN_EFFECTIVE:
        reason = f"the weights are worth {effective:,.0f} exposures, {MIN_EFFECTIVE:,.0f} are asked for"
        return _none(reason, **known)
    if raw.mean() - 4 * spread > 1:
        return _none(
            f"the weights average {raw.mean():.2f}, not 1: the chances in the log are wrong", **known
        )
    z = -float(special.ndtri(alpha / 2))
    snips = float(w @ r / w.sum())
    residual = w * (r - snips) / w.mean()
    robust = None
    if guess_shown is not None and guess_wanted is not None:
        q, v = (np.asarray(values, dtype=np.float64).reshape(-1) for values in (guess_shown, guess_wanted))
        if q.shape == v.shape == r.shape and np.isfinite(q).all() and np.isfinite(v).all():
            robust = _mean(v + w * (r - q), z)
    at = _mean(w * r, z)
    return Advice(
        ips=at,
        snips=_around(snips, residual, z),
        doubly_robust=robust,
        reason=f"{r.size:,} exposures, worth {effective:,.0f} of the model's own"
        + (f", {clipped:.1%} of the weights cut to {cap:g}" if clipped else ""),
        **known,
    )


def _mean(values: Floats, z: float) -> Estimate:
    return _around(float(values.mean()), values - values.mean(), z)


def _around(mean: float, residual: Floats, z: float) -> Estimate:
    width = z * math.sqrt(float(residual @ residual)) / residual.size
    return Estimate(mean=mean, low=mean - width, high=mean + width)


def _problem(r: Floats, b: Floats, t: Floats, *, cap: float) -> str:
    if not r.size:
        return "the log has no exposure"
    if not r.shape == b.shape == t.shape:
        return f"{r.size:,} rewards, {b.size:,} chances of what was shown and {t.size:,} of the model"
    if not (np.isfinite(r).all() and np.isfinite(b).all() and np.isfinite(t).all()):
        return "a reward or a chance is no number"
    if not ((b >= LEAST).all() and (b <= 1).all() and (t >= 0).all() and (t <= 1).all() and cap > 0):
        return "chances are not between 0 and 1, or something was shown that could not be"
    return ""


def _none(reason: str, *, effective: float = 0.0, support: float = 0.0, clipped: float = 0.0) -> Advice:
    return Advice(
        ips=None, snips=None, doubly_robust=None, effective=effective, support=support, clipped=clipped,
        reason=f"nothing can be said: {reason}",
    )  # fmt: skip
