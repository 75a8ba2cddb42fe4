"""Which scale to train at tonight: the best that is known, or one that may turn out better?

Retraining repeats every night, so a night is a measurement that was to be paid anyway: only what it costs
more than the best known scale is the price of exploring. A scale is worth that if what it may save, over the
nights that will profit, is more (expected improvement, Mockus 1975), and if the price is left of
`plan.explore_usd`. A search that Scavenger (CCGrid'23) does in one go over four corners is so spread over
nights, and stops by itself once nothing promises enough.

What is known of the ways there are comes as `Prospects`: of a real night's candidates (`of_ways`, by profile,
roofline, and what history.py and efficiency.py learned of the nights), or of the scales of one machine of
which nothing but runs is known (`of_scales`, by quality.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from pipeline.contract.units import HOUR_S
from pipeline.prediction.calibration import NIGHTS_AHEAD
from pipeline.prediction.quality import Array, Run, TimeToQuality

CERTAIN = 0.95  # that exploring costs no more than what is left for it, and no more than the budget

LEAST = 0.005  # of the best's dollars or hours: what is expected to save less is not worth another way

Objective = Literal["cost", "time"]


@dataclass(frozen=True, kw_only=True)
class Prospects:
    """What is expected of some ways to run the job, an entry each."""

    names: Sequence[str]
    hours: Array  # to the quality, median
    usd: Array
    spread: Array  # deviation of the logarithm of both, that nights may take away
    late: Array  # times as dear as expected tonight, at most with CERTAIN
    saving: Array  # chance that what may be saved can be had, as it is in time
    allowed: NDArray[np.bool_]  # tonight
    best: int  # place of the best that is known
    basis: str = ""  # what all this rests on


@dataclass(frozen=True, kw_only=True)
class Step:
    """The way for tonight by its place, and what that costs beyond the best that is known."""

    taken: int
    best: int  # by what is known
    explore_usd: float  # expected; 0 where the best is taken
    reason: str


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What is to be least over scales: dollars or hours; and the hours that there are."""

    objective: Objective = "cost"
    usd_per_worker_hour: float
    deadline_hours: float = float("inf")
    confidence: float = 0.9  # of being done by then


class Weighed(Protocol):
    """A feasible way to run the job, as the search weighs it."""

    @property
    def expected_s(self) -> float:
        """Median of the time."""

    @property
    def expected_usd(self) -> float:
        """Dollars for that time."""

    def time_s(self, chance: float) -> float:
        """Seconds in which it is done with this chance."""


def of_ways(
    ranked: Sequence[Weighed],
    *,
    names: Sequence[str],
    doubts: Sequence[float],
    num_nights: Sequence[int],
    budget_usd: float,
) -> Prospects:
    """Prospects of the feasible candidates of a night, the best first; none of them risks the deadline.

    `doubts` are deviations of the logarithm of the samples that the quality needs, against the best's.
    `num_nights` is how often each was run: what is still uncertain then, another night will hardly take away.
    """
    hours: Array = np.array([way.expected_s / HOUR_S for way in ranked], np.float64)
    usd: Array = np.array([way.expected_usd for way in ranked], np.float64)
    late: Array = np.array([way.time_s(CERTAIN) / HOUR_S for way in ranked], np.float64) / hours
    spread = np.hypot(np.log(late) / ndtri(CERTAIN), doubts) / (1 + np.asarray(num_nights, np.float64))
    return Prospects(
        names=names,
        hours=hours,
        usd=usd,
        spread=np.maximum(spread, 1e-6),
        late=late,
        saving=np.ones(len(ranked)),
        allowed=usd * late <= budget_usd,
        best=0,
    )


def of_scales(model: TimeToQuality, runs: Sequence[Run], aim: Aim) -> Prospects:
    """Prospects of scales of which nothing but these runs is known; ValueError without any run."""
    forecast = model.given(runs)
    hours, spread = forecast.hours, forecast.spread
    workers: Array = np.array([scale.num_workers for scale in model.scales], np.float64)
    usd = hours * workers * aim.usd_per_worker_hour
    late_hours = hours * np.exp(ndtri(aim.confidence) * spread)
    in_time = late_hours <= aim.deadline_hours
    safe = np.flatnonzero(in_time) if in_time.any() else np.array([int(np.argmin(late_hours))])
    value = usd if aim.objective == "cost" else hours
    return Prospects(
        names=[f"a batch of {scale.batch_size} on {scale.num_workers} workers" for scale in model.scales],
        hours=hours,
        usd=usd,
        spread=spread,
        late=np.exp(ndtri(CERTAIN) * spread),
        saving=ndtr((np.log(aim.deadline_hours) - np.log(hours)) / spread),
        allowed=hours <= aim.deadline_hours,
        best=int(safe[np.argmin(value[safe])]),
        basis=forecast.prior,
    )


def next_step(known: Prospects, *, objective: Objective, explore_usd: float) -> Step:
    """The way for tonight, given what is known and what is left to explore with."""
    best = known.best
    value = known.usd if objective == "cost" else known.hours
    saved = known.saving * _improvement(value, known.spread, float(value[best]))
    # Of hours there is no price, so an hour saved is worth what an hour of the best costs.
    rate = 1.0 if objective == "cost" else float(known.usd[best] / known.hours[best]) or 1.0
    price = np.maximum(0.0, known.usd - known.usd[best])
    dear = known.usd * known.late - known.usd[best]  # what it may come to
    gain = np.where(known.allowed & (dear <= explore_usd), NIGHTS_AHEAD * rate * saved - price, -np.inf)
    gain[saved < LEAST * value[best]] = -np.inf
    gain[best] = 0.0
    taken = int(np.argmax(gain))
    told = "nothing promises more than it costs to try"
    if taken != best:
        may = f"${saved[taken]:.2f}" if objective == "cost" else f"{saved[taken]:.2f} h"
        told = f"{known.names[taken]} may save {may} a night, and trying costs ${price[taken]:.2f}"
    return Step(
        taken=taken,
        best=best,
        explore_usd=float(price[taken]),
        reason=f"{told}; {known.basis}" if known.basis else told,
    )


def _improvement(value: Array, spread: Array, best: float) -> Array:
    """Expected amount by which a lognormal value is below the best: E[max(0, best - V)]."""
    if best <= 0:  # nothing is cheaper than for nothing
        return np.zeros(len(value))
    apart = np.log(best / np.maximum(value, 1e-9 * best)) / spread
    told: Array = best * ndtr(apart) - value * np.exp(spread**2 / 2) * ndtr(apart - spread)
    return np.maximum(told, 0.0)
