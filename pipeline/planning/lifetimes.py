"""How long does a spot machine live, and how long will this one still? Lifetimes with censoring.

A machine that its user stopped had lived at least so long: it is censored, not preempted, and leaving such
machines out or counting them as preempted bends every curve. A family is its cumulative hazard H(t): what is
left of a fleet at age t is S(t) = exp(-H(t)), and a machine that was preempted at t contributes
log h(t) - H(t) to the log-likelihood, one that was stopped -H(t). The family is chosen by the log-likelihood of
machines that were held out, so the one with most parameters has no head start.

Families: exponential (no memory), Weibull, the bathtub of Kadupitiya et al. (HPDC'20),
F(t) = A (1 - e^(-t/tau1) + e^((t-b)/tau2)), and Nelson-Aalen's estimate with the hazard constant between
quantiles of the preemptions. Kaplan-Meier gives the curve to look at, with its interval; it has no density.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

HOUR_S = 3600.0
NUM_FOLDS = 5
NUM_PIECES = 8
LEAST = 1e-12  # survival below counts as this: a curve that ends says that nothing outlives it
GRID = 400  # points of a numerical integral


class Lifetime(Protocol):
    """A distribution of lifetimes, by its hazard at an age."""

    @property
    def name(self) -> str:
        """Of the family."""

    def cumulative(self, age_s: "Floats") -> "Floats":
        """H(t): the hazard up to an age, added up."""

    def hazard_per_s(self, age_s: "Floats") -> "Floats":
        """h(t): preemptions per second among machines of that age."""


@dataclass(frozen=True, kw_only=True)
class Exponential:
    """No memory: as many go in the first hour as in any other."""

    mean_s: float
    name: str = "exponential"

    def cumulative(self, age_s: "Floats") -> "Floats":
        """See `Lifetime`."""
        return age_s / self.mean_s

    def hazard_per_s(self, age_s: "Floats") -> "Floats":
        """See `Lifetime`."""
        return age_s * 0 + 1 / self.mean_s


@dataclass(frozen=True, kw_only=True)
class Weibull:
    """H(t) = (t / scale)^shape: a shape below one means that the young are in most danger."""

    shape: float
    scale_s: float
    name: str = "Weibull"

    def cumulative(self, age_s: "Floats") -> "Floats":
        """See `Lifetime`."""
        return (age_s / self.scale_s) ** self.shape

    def hazard_per_s(self, age_s: "Floats") -> "Floats":
        """See `Lifetime`."""
        import numpy as np

        share = np.maximum(age_s, 1e-3) / self.scale_s
        return self.shape / self.scale_s * share ** (self.shape - 1)


@dataclass(frozen=True, kw_only=True)
class Bathtub:
    """The young and the old are in danger (Kadupitiya et al., HPDC'20); all is over where F reaches one."""

    share: float  # A
    early_s: float  # tau1
    late_s: float  # tau2
    end_s: float  # b
    name: str = "bathtub"

    def cumulative(self, age_s: "Floats") -> "Floats":
        """See `Lifetime`."""
        import numpy as np

        return -np.log(np.maximum(1 - self._gone(age_s), LEAST))

    def hazard_per_s(self, age_s: "Floats") -> "Floats":
        """See `Lifetime`."""
        import numpy as np

        early = np.exp(-age_s / self.early_s) / self.early_s
        late = np.exp(np.minimum((age_s - self.end_s) / self.late_s, 50.0)) / self.late_s
        left = 1 - self._gone(age_s)
        # Past the end of the curve nothing is alive that could be preempted.
        return np.where(left > LEAST, self.share * (early + late) / np.maximum(left, LEAST), 0.0)

    def _gone(self, age_s: "Floats") -> "Floats":
        import numpy as np

        late = np.exp(np.minimum((age_s - self.end_s) / self.late_s, 50.0))
        return self.share * (1 - np.exp(-age_s / self.early_s) + late)


@dataclass(frozen=True, kw_only=True)
class Piecewise:
    """A constant hazard from each age on until the next; the last one for ever (Nelson-Aalen in steps)."""

    from_s: tuple[float, ...]
    per_s: tuple[float, ...]
    name: str = "Nelson-Aalen"

    def cumulative(self, age_s: "Floats") -> "Floats":
        """See `Lifetime`."""
        import numpy as np

        ends = np.append(self.from_s[1:], np.inf)
        lived = np.clip(np.asarray(age_s)[..., None] - np.asarray(self.from_s), 0.0, ends - self.from_s)
        return np.asarray(lived @ np.asarray(self.per_s))

    def hazard_per_s(self, age_s: "Floats") -> "Floats":
        """See `Lifetime`."""
        import numpy as np

        return np.asarray(self.per_s)[np.searchsorted(self.from_s, age_s, side="right") - 1]


PUBLISHED = Bathtub(
    share=0.414, early_s=0.9 * HOUR_S, late_s=0.76 * HOUR_S, end_s=24 * HOUR_S, name="published bathtub"
)
# Fitted as `fit_piecewise` does to 1,442 preemptible machines of 2019 (kadupitiya/goog-preemption-data), cut at
# the 24 hours that such machines were allowed and spot machines are not.
MEASURED = Piecewise(
    from_s=(0.0, 268.0, 685.0, 1822.0, 3490.0, 7050.0, 13077.0, 40177.0),
    per_s=(108.1e-6, 81.5e-6, 34.91e-6, 28.16e-6, 16.37e-6, 11.42e-6, 3.222e-6, 2.507e-6),
    name="measured in 2019",
)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Lifetimes in seconds, and for each whether it was ended by a preemption; else it is censored."""

    lived_s: "Floats"
    preempted: "NDArray[np.bool_]"

    def cut(self, age_s: float) -> "Observed":
        """As if nobody had looked after that age: to leave out what happens by rule, as a limit of 24 hours."""
        import numpy as np

        return Observed(
            lived_s=np.minimum(self.lived_s, age_s), preempted=self.preempted & (self.lived_s < age_s)
        )

    def where(self, chosen: "NDArray[np.bool_]") -> "Observed":
        """Some of them."""
        return Observed(lived_s=self.lived_s[chosen], preempted=self.preempted[chosen])


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The family that says most about machines it has not seen, fitted to all, and the score of each family.

    A score is the mean log-likelihood of a held-out machine, time in hours.
    """

    best: Lifetime
    fitted: dict[str, Lifetime]
    scores: dict[str, float]


def choose(observed: Observed, *, seed: int = 0, published: Sequence[Lifetime] = ()) -> Choice:
    """Fit all families and score them on held-out folds; `published` curves are scored as they are."""
    import numpy as np

    fold = np.random.default_rng(seed).permutation(len(observed.lived_s)) % NUM_FOLDS
    fits = [{fit: fit(observed.where(fold != k)) for fit in FITS} for k in range(NUM_FOLDS)]
    scores = {}
    for fit in FITS:
        parts = [log_likelihood(fits[k][fit], observed.where(fold == k)) for k in range(NUM_FOLDS)]
        scores[fits[0][fit].name] = sum(parts) / len(observed.lived_s)
    scores |= {curve.name: log_likelihood(curve, observed) / len(observed.lived_s) for curve in published}
    fitted = {curve.name: curve for curve in (fit(observed) for fit in FITS)}
    return Choice(best=fitted[max(fitted, key=scores.__getitem__)], fitted=fitted, scores=scores)


def log_likelihood(lifetime: Lifetime, observed: Observed) -> float:
    """Of all of them together, with time in hours."""
    import numpy as np

    hazard = lifetime.hazard_per_s(observed.lived_s) * HOUR_S
    gone = np.where(observed.preempted, np.log(np.maximum(hazard, LEAST)), 0.0)
    return float(np.sum(gone - lifetime.cumulative(observed.lived_s)))


def fit_exponential(observed: Observed) -> Exponential:
    """Time lived over preemptions; half a preemption more, so that none seen is not for ever."""
    return Exponential(mean_s=float(observed.lived_s.sum() / (observed.preempted.sum() + 0.5)))


def fit_weibull(observed: Observed) -> Weibull:
    """By maximum likelihood (scipy)."""
    from scipy.stats import CensoredData, weibull_min

    data = CensoredData.right_censored(observed.lived_s / HOUR_S, ~observed.preempted)
    shape, _, scale = weibull_min.fit(data, floc=0)
    return Weibull(shape=float(shape), scale_s=float(scale) * HOUR_S)


def fit_bathtub(observed: Observed) -> Bathtub:
    """By maximum likelihood, from the published values on."""
    import numpy as np
    from scipy.optimize import minimize

    def curve(x: "Floats") -> Bathtub:
        early, late, end = np.exp(x[1:]) * HOUR_S
        return Bathtub(share=float(1 / (1 + np.exp(-x[0]))), early_s=float(early), late_s=float(late),
                       end_s=float(end))  # fmt: skip

    hours = PUBLISHED.early_s / HOUR_S, PUBLISHED.late_s / HOUR_S, PUBLISHED.end_s / HOUR_S
    first = np.append(np.log(PUBLISHED.share / (1 - PUBLISHED.share)), np.log(hours))
    hour = np.log([0.02, 200.0])
    found = minimize(
        lambda x: -log_likelihood(curve(x), observed), first, method="Nelder-Mead",
        bounds=[(-6.0, 6.0), hour, hour, hour], options={"maxiter": 600, "xatol": 1e-3, "fatol": 1e-3},
    )  # fmt: skip
    return curve(found.x)


def fit_piecewise(observed: Observed) -> Piecewise:
    """Preemptions over time lived, between quantiles of the preemptions; each as if half of one more was seen.

    That is the rise of the Nelson-Aalen estimate over a piece, divided by its length.
    """
    import numpy as np

    gone_s = observed.lived_s[observed.preempted]
    inner = np.quantile(gone_s, np.linspace(0, 1, NUM_PIECES + 1)[1:-1]) if len(gone_s) else []
    from_s = np.unique(np.append(0.0, inner))
    ends = np.append(from_s[1:], np.inf)
    lived = np.clip(observed.lived_s[:, None] - from_s, 0.0, ends - from_s).sum(axis=0)
    number = np.histogram(gone_s, np.append(from_s, np.inf))[0]
    mean_s = fit_exponential(observed).mean_s
    per_s = (number + 0.5) / (lived + 0.5 * mean_s)
    return Piecewise(from_s=tuple(map(float, from_s)), per_s=tuple(map(float, per_s)))


FITS: tuple[Callable[[Observed], Lifetime], ...] = (
    fit_exponential,
    fit_weibull,
    fit_bathtub,
    fit_piecewise,
)


def kaplan_meier(observed: Observed, *, confidence: float = 0.9) -> "tuple[Floats, Floats, Floats, Floats]":
    """Ages in seconds, the share that survives each, and its interval (scipy)."""
    import numpy as np
    from scipy.stats import CensoredData, ecdf

    survival = ecdf(CensoredData.right_censored(observed.lived_s, ~observed.preempted)).sf
    with warnings.catch_warnings():
        # Where none or all are left there is no interval; scipy warns and says nan.
        warnings.simplefilter("ignore", RuntimeWarning)
        interval = survival.confidence_interval(confidence)
    low, high = (np.nan_to_num(side.probabilities, nan=0.0) for side in (interval.low, interval.high))
    return survival.quantiles, survival.probabilities, low, high


def nelson_aalen(observed: Observed) -> "tuple[Floats, Floats]":
    """Ages of preemptions in seconds, and the cumulative hazard at each: sums of 1 / machines still there."""
    import numpy as np

    ages, number = np.unique(observed.lived_s[observed.preempted], return_counts=True)
    there = len(observed.lived_s) - np.searchsorted(np.sort(observed.lived_s), ages)
    return ages, np.cumsum(number / there)


def survival(lifetime: Lifetime, age_s: "Floats") -> "Floats":
    """Share of machines that live longer."""
    import numpy as np

    return np.asarray(np.exp(-lifetime.cumulative(age_s)))


def expected_remaining_s(lifetime: Lifetime, *, age_s: float, horizon_s: float) -> float:
    """Mean time that a machine of this age still lives, of the next `horizon_s` at most."""
    import numpy as np

    ages = age_s + np.linspace(0.0, horizon_s, GRID)
    left = np.exp(lifetime.cumulative(ages[:1])[0] - lifetime.cumulative(ages))
    return float(np.trapezoid(left, ages))


def draw_s(lifetime: Lifetime, chances: "Floats", *, longest_s: float) -> "Floats":
    """Lifetimes that are as likely as these chances of living longer, up to `longest_s`."""
    import numpy as np

    ages = np.append(0.0, np.geomspace(1.0, longest_s, 4 * GRID))
    hazards = np.maximum.accumulate(lifetime.cumulative(ages))
    return np.interp(-np.log(chances), hazards, ages)
