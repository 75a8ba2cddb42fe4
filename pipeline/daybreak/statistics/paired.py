"""Compares two models by their scores on the same samples: is the challenger better, or no worse?

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
by one-sided t-tests against the margin, with Holm's correction (1979).

Samples of one unit (a customer, an account, a document) are not independent. Where units are given, all of
this is done on one value a unit (`per_unit`), and the units are what is counted. Pure: numpy and scipy only.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from daybreak.contract.formats import counted, decimals
from daybreak.statistics.result import Conclusion, Effect, Status
from daybreak.statistics.sequential import mixture_bound, mixture_rho

POWER = 0.8
BOOTSTRAP_MOST = 10_000  # samples; above, bootstrap and normal interval agree to a hundredth of their width
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a challenger has to prove: that it is better, or (`refresh`) no worse by the margin."""

    alpha: float
    margin: float
    min_samples: int
    refresh: bool
    resamples: int = 0  # of the bootstrap, where samples are looked at once; 0: the normal interval alone
    may_lose: bool = False  # whether a refresh that is proven worse, but by less than the margin, is no worse


def interval(differences: ArrayLike, *, alpha: float, horizon: int | None, tuned_at: int = 1000) -> Effect:
    """Returns the effect of paired differences, shape [n], with an interval that holds at every n.

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


def per_unit(values: ArrayLike, units: ArrayLike | None, *, alpha: float = 0.05) -> Floats:
    """Returns a value for each unit, shape [u]: their mean is that of all samples, shape [n].

    The mean of samples is a ratio, of the units' sums to their numbers of samples. A unit's value is the mean
    plus its influence on that ratio, u / n (sum - number * mean), so that the spread of the values gives the
    standard error of samples that come in clusters (Cochran 1977, chapter 6; Deng, Knoblich & Lu 2018). Where
    a few units have most of the samples, that error is too small: so each influence is that on a mean without
    the unit (the jackknife; Bell & McCaffrey 2002), and all are widened as Student's t is with as many units
    as would tell as much if they were alike, n^2 / sum(number^2), at `alpha` for both ends.

    `units` are numbers, shape [n]; None: each sample is a unit.

    >>> per_unit([1.0, 3.0, 5.0, 3.0], [7, 7, 8, 8]).tolist()
    [1.0, 5.0]
    """
    samples: Floats = np.asarray(values, dtype=np.float64)
    if units is None or not samples.size:
        return samples
    distinct, place = np.unique(np.asarray(units), return_inverse=True)
    if distinct.size == samples.size:
        return samples
    mean = float(samples.mean())
    if distinct.size == 1:
        return np.array([mean])
    sums, sizes = np.bincount(place, weights=samples), np.bincount(place)
    influence = distinct.size / samples.size * (sums - sizes * mean) / (1 - sizes / samples.size)
    alike = max(samples.size**2 / float((sizes**2.0).sum()), 2.0)
    wider = float(stats.t.isf(alpha / 2, alike - 1) / stats.t.isf(alpha / 2, distinct.size - 1))
    return np.asarray(mean + wider * (influence - influence.mean()))


def bootstrap(differences: ArrayLike, *, alpha: float, resamples: int, seed: int = 0) -> tuple[float, float]:
    """Returns bootstrap ends of the mean of differences, shape [n]; for one look, at alpha / 2 each.

    Infinite ends where there are under two samples; the mean itself where all are the same.
    """
    values: Floats = np.asarray(differences, dtype=np.float64)
    if values.size < 2:
        return -math.inf, math.inf
    if np.ptp(values) == 0:
        return float(values[0]), float(values[0])
    ends = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=resamples,
        batch=100,
        confidence_level=1 - alpha,
        method="BCa",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(ends.low), float(ends.high)


def detectable(*, sd: float, num_samples: int, alpha: float, power: float = POWER) -> float:
    """Returns the smallest true effect that `num_samples` show with this power at the horizon.

    (t(alpha/2) + z(power)) sd / sqrt(n): the width of the interval, and room for chance below it.

    >>> round(detectable(sd=0.1, num_samples=400, alpha=0.05), 4)
    0.014
    """
    if num_samples < 2:
        return math.inf
    quantiles = stats.t.isf(alpha / 2, num_samples - 1) + stats.norm.isf(1 - power)
    return float(quantiles) * sd / math.sqrt(num_samples)


def holm(p_values: Sequence[float], *, alpha: float) -> list[bool]:
    """Returns which hypotheses are rejected, any of them falsely with chance alpha at most (Holm 1979).

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
    differences: Floats,
    slices: Mapping[str, NDArray[Any]],
    *,
    alpha: float,
    margin: float,
    min_samples: int,
    units: NDArray[Any] | None = None,
) -> list[str]:
    """Returns the slices that are worse by more than the margin, with Holm over all that are judged.

    `slices` are boolean masks, shape [n]; one with fewer than `min_samples` units is not judged.
    """
    judged, p_values = [], []
    for name, mask in slices.items():
        within = np.asarray(mask, dtype=bool)
        within_units = None if units is None else units[within]
        values = per_unit(differences[within], within_units, alpha=alpha)
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


def status_of(effect: Effect, rules: Rules) -> Status:
    """Returns what the interval of an effect proves by the rules; OPEN where it proves nothing yet."""
    threshold = -rules.margin if rules.refresh else 0.0
    if effect.high < 0 and not (rules.refresh and rules.may_lose and effect.low > threshold):
        return Status.WORSE
    if effect.low > threshold:
        return Status.NO_WORSE if rules.refresh else Status.BETTER
    return Status.OPEN


def judge(
    challenger: ArrayLike | None,
    champion: ArrayLike | None,
    *,
    rules: Rules,
    horizon: int | None = None,
    slices: Mapping[str, NDArray[Any]] | None = None,
    against: str = "the champion",
    units: NDArray[Any] | None = None,
) -> Conclusion:
    """Returns what paired scores, shape [n] each, prove; every input has an answer.

    `horizon` is the number of units that are coming, all of them here by default. Before it, what is not
    yet decided is OPEN; at it, INCONCLUSIVE. `units` tells which samples belong together, shape [n]; None:
    each is its own.
    """
    samples, problem = _paired(challenger, champion, slices or {}, units=units, rules=rules)
    differences = per_unit(samples, units, alpha=rules.alpha) if samples.size else samples
    planned = max(horizon or differences.size, differences.size)
    if problem is not None:
        short = problem.status is Status.NO_DATA and 0 < differences.size < planned
        return replace(problem, status=Status.OPEN) if short else problem
    effect = interval(differences, alpha=rules.alpha, horizon=planned)
    effect = replace(effect, of="sample" if units is None else "unit")
    if rules.resamples and planned == differences.size <= BOOTSTRAP_MOST:
        low, high = bootstrap(differences, alpha=rules.alpha, resamples=rules.resamples)
        effect = replace(effect, low=min(effect.low, low), high=max(effect.high, high))
    goal = (
        f"no worse than {against} by the margin {rules.margin:g}"
        if rules.refresh
        else f"better than {against}"
    )
    evidence = f"{effect}; {_power(effect, planned, rules)}"
    status = status_of(effect, rules)
    if status is Status.WORSE:
        return Conclusion(status=status, effect=effect, sentence=f"worse than {against}: {evidence}")
    bad = worse_slices(
        samples,
        slices or {},
        alpha=rules.alpha,
        margin=rules.margin,
        min_samples=rules.min_samples,
        units=units,
    )
    if bad:
        sentence = f"worse by more than the margin {rules.margin:g} on {', '.join(bad)}: {evidence}"
        return Conclusion(status=Status.WORSE, effect=effect, sentence=sentence)
    if status.is_proof:
        return Conclusion(status=status, effect=effect, sentence=f"proven {goal}: {evidence}")
    if effect.num_samples < planned:
        return Conclusion(status=Status.OPEN, effect=effect, sentence=f"not yet proven {goal}: {evidence}")
    sentence = f"inconclusive: not proven {goal}: {evidence}"
    return Conclusion(status=Status.INCONCLUSIVE, effect=effect, sentence=sentence)


def _paired(
    challenger: ArrayLike | None,
    champion: ArrayLike | None,
    slices: Mapping[str, NDArray[Any]],
    *,
    units: NDArray[Any] | None,
    rules: Rules,
) -> tuple[Floats, Conclusion | None]:
    """Returns the differences challenger - champion, and the result where they do not suffice for a test."""

    def no(status: Status, sentence: str) -> tuple[Floats, Conclusion]:
        return np.empty(0), Conclusion(status=status, sentence=sentence)

    if challenger is None or champion is None:
        return no(Status.NO_DATA, f"no scores of the {'challenger' if challenger is None else 'champion'}")
    ours: Floats = np.asarray(challenger, dtype=np.float64).reshape(-1)
    theirs: Floats = np.asarray(champion, dtype=np.float64).reshape(-1)
    if unlike := _unlike_sizes(ours, theirs, slices, units):
        return no(Status.NO_DATA, unlike)
    if lost := int((~np.isfinite(ours)).sum()):
        return no(Status.INVALID, f"{lost:,} of {ours.size:,} scores of the challenger are not finite")
    if lost := int((~np.isfinite(theirs)).sum()):
        return no(Status.NO_DATA, f"{lost:,} of {theirs.size:,} scores of the champion are not finite")
    few = None
    num_units = ours.size if units is None else np.unique(units).size
    if num_units < max(rules.min_samples, 2):
        here = counted(ours.size, "sample")
        least = f"{rules.min_samples:,}"
        if units is not None:
            here, least = f"{here} of {counted(num_units, 'unit')}", counted(rules.min_samples, "unit")
        few = Conclusion(status=Status.NO_DATA, sentence=f"{here}; gate.min_samples asks for {least}")
    return ours - theirs, few


def _unlike_sizes(
    ours: Floats, theirs: Floats, slices: Mapping[str, NDArray[Any]], units: NDArray[Any] | None
) -> str:
    """Returns what does not have an entry for each of the challenger's samples, in words; "" if all have."""
    if odd := [name for name, mask in slices.items() if np.shape(mask) != ours.shape]:
        return f"slice {odd[0]} is not a mask over the {ours.size:,} samples"
    if ours.size != theirs.size:
        return f"{ours.size:,} scores of the challenger but {theirs.size:,} of the champion"
    if units is not None and np.shape(units) != ours.shape:
        return f"{np.size(units):,} units for {ours.size:,} samples"
    return ""


def _power(effect: Effect, planned: int, rules: Rules) -> str:
    """Says which effect the samples could detect, from their spread alone, not from the measured effect."""
    least = detectable(sd=effect.sd, num_samples=planned, alpha=rules.alpha)
    could = f"{counted(planned, effect.of)} show {decimals(least)[0]} at {POWER:.0%} power".replace("%", " %")
    if rules.refresh and least > rules.margin:
        could += f", more than the margin {rules.margin:g}: hold out more days (prepare.test_days)"
    return could
