"""Is the challenger better? Per-sample scores in, effect with its interval and a judgement out.

Both models score the same samples, so the differences d_1, d_2, ... are paired: what makes a sample hard
cancels out. S_n is the sum of the first n, s their standard deviation. The interval of their mean holds at
every n at once, each end with probability 1 - alpha, so looking early or again costs nothing. With c the
boundary below, its half-width is s c / sqrt(1 - c^2): normalised by the second moment about the mean that
is tested, as Student's t is, so that an early, lucky s does no harm (de la Pena, Lai & Shao 2009):

    horizon N known     c = z(alpha/2) sqrt(N) / n    a Brownian motion passes b before time 1 with
                        probability 2 P(W_1 > b) (Levy's reflection principle), hence alpha/2
    no horizon          c = u(n) / n                  u: one-sided normal mixture (Robbins 1970;
                        Howard, Ramdas, McAuliffe & Sekhon 2021, tuned to be tightest at one n)

At n = N the first is the ordinary two-sided interval; the second is about 1.4 times as wide, the price of
having no end. An end is moved out, never in, by skewness (Johnson 1978). Both hold for large n, and nothing
is judged before `min_samples`. Measured on null streams looked at after every sample from the 30th on, at
alpha 5 %: at most 5 % pass, but 7 % where N is only 100 and the differences are strongly skewed to the left;
looked at once, as held-out scores are, at most 4 %. What is looked at once is resampled too (bootstrap,
bias-corrected and accelerated, Efron 1987), and each end is the more cautious of the two. Slices are guarded
by one-sided t-tests against the margin, with Holm's correction (1979). Pure: numpy and scipy only.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from pipeline.statistics.sequential import mixture_bound, mixture_rho

POWER = 0.8
BOOTSTRAP_MOST = 10_000  # samples; above, bootstrap and normal interval agree to a hundredth of their width
Action = Literal["promote", "reject", "wait", "no data"]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Mean difference of paired scores; `low` and `high` are each passed with probability alpha."""

    mean: float
    low: float
    high: float
    sd: float
    num_samples: int

    def __str__(self) -> str:
        return f"{self.mean:+.4f} (from {self.low:+.4f} to {self.high:+.4f}, {self.num_samples:,} samples)"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What is asked of a challenger: to be better, or (`refresh`) to be no worse by the margin."""

    alpha: float
    margin: float
    min_samples: int
    refresh: bool
    resamples: int = 0  # of the bootstrap, where samples are looked at once; 0: the normal interval alone


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What to do and why; the effect is None without evidence."""

    action: Action
    effect: Effect | None
    reason: str
    inconclusive: bool = False  # rejected for want of proof only


def interval(differences: ArrayLike, *, alpha: float, horizon: int | None, tuned_at: int = 1000) -> Effect:
    """Effect of paired differences, shape [n], with an interval that may be looked at for every n.

    `horizon` is the number of samples at which looking ends, known beforehand; None where there is no
    end, and then the interval is tightest at `tuned_at` samples. With under two samples the interval is
    infinite. Raises ValueError where a difference is not finite or n is past the horizon.
    """
    values: Floats = np.asarray(differences, dtype=np.float64)
    n = values.size
    if not np.isfinite(values).all() or (horizon is not None and n > horizon):
        raise ValueError(f"{n} differences, not all finite or past the horizon {horizon}")
    if n < 2:
        mean = float(values.mean()) if n else 0.0
        return Effect(mean=mean, low=-math.inf, high=math.inf, sd=math.inf, num_samples=n)
    mean, sd = float(values.mean()), float(values.std(ddof=1))
    if horizon is None:
        rho = mixture_rho(tuned_at, alpha=2 * alpha)
        passed = mixture_bound(n, alpha=alpha, rho=rho, sides=1) / n
    else:
        passed = -float(special.ndtri(alpha / 2)) * math.sqrt(horizon) / n
    if sd == 0 or passed >= 1:
        width = 0.0 if passed < 1 else math.inf
        return Effect(mean=mean, low=mean - width, high=mean + width, sd=sd, num_samples=n)
    width = sd * math.sqrt((n - 1) / n) * passed / math.sqrt(1 - passed**2)
    skew = float(((values - mean) ** 3).mean()) / sd**3
    lean = skew * sd * (1 / n + 2 * (width / sd) ** 2) / 6
    low, high = mean - width + min(lean, 0), mean + width + max(lean, 0)
    return Effect(mean=mean, low=low, high=high, sd=sd, num_samples=n)


def bootstrap(differences: ArrayLike, *, alpha: float, resamples: int, seed: int = 0) -> tuple[float, float]:
    """Ends of the mean of paired differences, shape [n], for looking once, each passed with chance alpha / 2.

    Infinite ends where there are under two samples; the mean itself where all are the same.
    """
    values: Floats = np.asarray(differences, dtype=np.float64)
    if values.size < 2:
        return -math.inf, math.inf
    if np.ptp(values) == 0:
        return float(values[0]), float(values[0])
    found = stats.bootstrap(
        (values,), np.mean, n_resamples=resamples, batch=100, confidence_level=1 - alpha, method="BCa",
        rng=np.random.default_rng(seed),
    ).confidence_interval  # fmt: skip
    return float(found.low), float(found.high)


def detectable(*, sd: float, num_samples: int, alpha: float, power: float = POWER) -> float:
    """Smallest true effect that `num_samples` show with this power when the horizon is reached.

    (t(alpha/2) + z(power)) sd / sqrt(n): the width of the interval, and room for chance below it.

    >>> round(detectable(sd=0.1, num_samples=400, alpha=0.05), 4)
    0.014
    """
    if num_samples < 2:
        return math.inf
    quantiles = stats.t.isf(alpha / 2, num_samples - 1) + stats.norm.isf(1 - power)
    return float(quantiles) * sd / math.sqrt(num_samples)


def holm(p_values: Sequence[float], *, alpha: float) -> list[bool]:
    """Which hypotheses are rejected with a chance of any false rejection of at most alpha (Holm 1979).

    >>> holm([0.01, 0.04, 0.03], alpha=0.05)
    [True, False, False]
    """
    rejected = [False] * len(p_values)
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] > alpha / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected


def worse_slices(
    differences: Floats, slices: Mapping[str, NDArray[Any]], *, alpha: float, margin: float, min_samples: int
) -> list[str]:
    """Names of the slices that are worse by more than the margin, with Holm over all that are judged.

    `slices` are boolean masks, shape [n]; one with fewer than `min_samples` samples is not judged.
    """
    judged, p_values = [], []
    for name, mask in slices.items():
        values = differences[np.asarray(mask, dtype=bool)]
        if values.size < min_samples:
            continue
        excess, sd = float(values.mean()) + margin, float(values.std(ddof=1))
        judged.append(name)
        if sd == 0:
            p_values.append(float(excess >= 0))
        else:
            p_values.append(float(stats.t.cdf(excess * math.sqrt(values.size) / sd, values.size - 1)))
    rejected = holm(p_values, alpha=alpha)
    return [name for name, worse in zip(judged, rejected, strict=True) if worse]


def judge(
    challenger: ArrayLike | None,
    champion: ArrayLike | None,
    *,
    rules: Rules,
    horizon: int | None = None,
    slices: Mapping[str, NDArray[Any]] | None = None,
    against: str = "the champion",
) -> Judgement:
    """Judge paired scores, shape [n] each; every input has an answer.

    `horizon` is the number of samples that are coming, all of them here by default. Before it, what is not
    yet decided waits; at it, an inconclusive comparison is a rejection, since the champion stays.
    """
    differences, problem = _paired(challenger, champion, slices or {}, min_samples=rules.min_samples)
    planned = max(horizon or differences.size, differences.size)
    if problem is not None:
        short = problem.action == "no data" and 0 < differences.size < planned
        return replace(problem, action="wait") if short else problem
    effect = interval(differences, alpha=rules.alpha, horizon=planned)
    if rules.resamples and planned == differences.size <= BOOTSTRAP_MOST:
        low, high = bootstrap(differences, alpha=rules.alpha, resamples=rules.resamples)
        effect = replace(effect, low=min(effect.low, low), high=max(effect.high, high))
    power = _power(effect, planned, rules)
    threshold = -rules.margin if rules.refresh else 0.0
    asked = (
        f"no worse than {against} by the margin {rules.margin:g}"
        if rules.refresh
        else f"better than {against}"
    )
    told = f"{effect}; {power}"
    if effect.high < 0:
        return Judgement(action="reject", effect=effect, reason=f"worse than {against}: {told}")
    bad = worse_slices(
        differences, slices or {}, alpha=rules.alpha, margin=rules.margin, min_samples=rules.min_samples
    )
    if bad:
        reason = f"worse by more than the margin {rules.margin:g} on {', '.join(bad)}: {told}"
        return Judgement(action="reject", effect=effect, reason=reason)
    if effect.low > threshold:
        return Judgement(action="promote", effect=effect, reason=f"proven {asked}: {told}")
    if effect.num_samples < planned:
        return Judgement(action="wait", effect=effect, reason=f"not yet proven {asked}: {told}")
    reason = f"inconclusive: not proven {asked}: {told}"
    return Judgement(action="reject", effect=effect, reason=reason, inconclusive=True)


def _paired(
    challenger: ArrayLike | None,
    champion: ArrayLike | None,
    slices: Mapping[str, NDArray[Any]],
    *,
    min_samples: int,
) -> tuple[Floats, Judgement | None]:
    """Differences challenger - champion, and the judgement where they do not suffice for one."""

    def no(action: Action, reason: str) -> tuple[Floats, Judgement]:
        return np.empty(0), Judgement(action=action, effect=None, reason=reason)

    if challenger is None or champion is None:
        return no("no data", f"no scores of the {'challenger' if challenger is None else 'champion'}")
    ours: Floats = np.asarray(challenger, dtype=np.float64).reshape(-1)
    theirs: Floats = np.asarray(champion, dtype=np.float64).reshape(-1)
    if odd := [name for name, mask in slices.items() if np.shape(mask) != ours.shape]:
        return no("no data", f"slice {odd[0]} is no mask over the {ours.size:,} samples")
    if ours.size != theirs.size:
        return no("no data", f"{ours.size:,} scores of the challenger but {theirs.size:,} of the champion")
    if lost := int((~np.isfinite(ours)).sum()):
        return no("reject", f"{lost:,} of {ours.size:,} scores of the challenger are not finite")
    if lost := int((~np.isfinite(theirs)).sum()):
        return no("no data", f"{lost:,} of {theirs.size:,} scores of the champion are not finite")
    few = None
    if ours.size < max(min_samples, 2):
        reason = f"{ours.size:,} samples; gate.min_samples asks for {min_samples:,}"
        few = Judgement(action="no data", effect=None, reason=reason)
    return ours - theirs, few


def _power(effect: Effect, planned: int, rules: Rules) -> str:
    """What the samples could have shown; the spread is used, not the effect, so it is no result."""
    least = detectable(sd=effect.sd, num_samples=planned, alpha=rules.alpha)
    could = f"{planned:,} samples show {least:.4f} at {POWER:.0%} power".replace("%", " %")
    if rules.refresh and least > rules.margin:
        could += f", more than the margin {rules.margin:g}: hold out more days (prepare.test_days)"
    return could
