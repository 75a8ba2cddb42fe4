"""Fits the lifetimes of spot machines, with censoring, by the survival curve that predicts best.

A machine that its user stopped would have lived at least as long: it is censored, not preempted, and leaving
such machines out or counting them as preempted biases every curve. A machine that was preempted at age t
contributes log h(t) - H(t) to the log-likelihood, one that was stopped -H(t). The family (`survival`) is
chosen by the log-likelihood of machines that were held out, so the family with most parameters has no
advantage.

Nelson-Aalen's estimate becomes a curve by a hazard that is constant between quantiles of the preemptions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from daybreak.contract.units import HOUR_S
from daybreak.extensions.spot.survival import (
    LEAST,
    PUBLISHED,
    Bathtub,
    Exponential,
    Lifetime,
    Piecewise,
    Weibull,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

NUM_FOLDS = 5
NUM_PIECES = 8


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Lifetimes in seconds, and whether each ended by a preemption; the others are censored."""

    lived_s: "Floats"
    preempted: "NDArray[np.bool_]"

    def cut(self, age_s: float) -> "Observed":
        """Returns the lifetimes censored at that age, such as at a rule that ends machines after 24 hours."""
        import numpy as np

        return Observed(
            lived_s=np.minimum(self.lived_s, age_s), preempted=self.preempted & (self.lived_s < age_s)
        )

    def where(self, chosen: "NDArray[np.bool_]") -> "Observed":
        """Returns the lifetimes that the mask `chosen` selects."""
        return Observed(lived_s=self.lived_s[chosen], preempted=self.preempted[chosen])


@dataclass(frozen=True, kw_only=True)
class LifetimeFit:
    """The family that best predicts held-out machines, fitted to all machines, and the score of each family.

    A score is the mean log-likelihood of a held-out machine, time in hours.
    """

    best: Lifetime
    fitted: dict[str, Lifetime]
    scores: dict[str, float]


def choose(observed: Observed, *, seed: int = 0, published: Sequence[Lifetime] = ()) -> LifetimeFit:
    """Fits all families and scores them on held-out folds; `published` curves are scored as they are."""
    import numpy as np

    fold = np.random.default_rng(seed).permutation(len(observed.lived_s)) % NUM_FOLDS
    fits = [{fit: fit(observed.where(fold != k)) for fit in FITS} for k in range(NUM_FOLDS)]
    scores = {}
    for fit in FITS:
        parts = [log_likelihood(fits[k][fit], observed.where(fold == k)) for k in range(NUM_FOLDS)]
        scores[fits[0][fit].name] = sum(parts) / len(observed.lived_s)
    scores |= {curve.name: log_likelihood(curve, observed) / len(observed.lived_s) for curve in published}
    fitted = {curve.name: curve for curve in (fit(observed) for fit in FITS)}
    return LifetimeFit(best=fitted[max(fitted, key=scores.__getitem__)], fitted=fitted, scores=scores)


def log_likelihood(lifetime: Lifetime, observed: Observed) -> float:
    """Returns the log-likelihood of all observed lifetimes together, with time in hours."""
    import numpy as np

    hazard = lifetime.hazard_per_s(observed.lived_s) * HOUR_S
    gone = np.where(observed.preempted, np.log(np.maximum(hazard, LEAST)), 0.0)
    return float(np.sum(gone - lifetime.cumulative(observed.lived_s)))


def fit_exponential(observed: Observed) -> Exponential:
    """Returns the fit, time lived over preemptions plus one half, which is finite without preemptions."""
    return Exponential(mean_s=float(observed.lived_s.sum() / (observed.preempted.sum() + 0.5)))


def fit_weibull(observed: Observed) -> Weibull:
    """Returns the fit by maximum likelihood (scipy)."""
    from scipy.stats import CensoredData, weibull_min

    data = CensoredData.right_censored(observed.lived_s / HOUR_S, ~observed.preempted)
    shape, _, scale = weibull_min.fit(data, floc=0)
    return Weibull(shape=float(shape), scale_s=float(scale) * HOUR_S)


def fit_bathtub(observed: Observed) -> Bathtub:
    """Returns the fit by maximum likelihood, starting from the published values."""
    import numpy as np
    from scipy.optimize import minimize

    def curve(x: "Floats") -> Bathtub:
        early, late, end = np.exp(x[1:]) * HOUR_S
        return Bathtub(
            share=float(1 / (1 + np.exp(-x[0]))), early_s=float(early), late_s=float(late), end_s=float(end)
        )

    hours = PUBLISHED.early_s / HOUR_S, PUBLISHED.late_s / HOUR_S, PUBLISHED.end_s / HOUR_S
    first = np.append(np.log(PUBLISHED.share / (1 - PUBLISHED.share)), np.log(hours))
    hour = np.log([0.02, 200.0])
    fit = minimize(
        lambda x: -log_likelihood(curve(x), observed),
        first,
        method="Nelder-Mead",
        bounds=[(-6.0, 6.0), hour, hour, hour],
        options={"maxiter": 600, "xatol": 1e-3, "fatol": 1e-3},
    )
    return curve(fit.x)


def fit_piecewise(observed: Observed) -> Piecewise:
    """Returns the hazard between quantiles of the preemptions: preemptions plus one half, over time lived.

    That is the rise of the Nelson-Aalen estimate over a piece, divided by its length.
    """
    import numpy as np

    gone_s = observed.lived_s[observed.preempted]
    inner = np.linspace(0, 1, NUM_PIECES + 1)[1:-1]
    from_s = np.unique(np.append(0.0, np.quantile(gone_s, inner) if len(gone_s) else inner[:0]))
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
