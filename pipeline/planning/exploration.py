"""Which scale to train at tonight: the best that is known, or one that may turn out better?

Retraining repeats every night, so a night is a measurement that was to be paid anyway: only what it costs
more than the best known scale is the price of exploring. A scale is worth that if what it may save, over the
nights that will profit, is more (expected improvement, Mockus 1975), and if the price is left of
`plan.explore_usd`. A search that Scavenger (CCGrid'23) does in one go over four corners is so spread over
nights, and stops by itself once nothing promises enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtr, ndtri

from pipeline.planning.quality import Array, Run, Scale, TimeToQuality

NIGHTS_AHEAD = 30  # that profit from a better scale
CERTAIN = 0.95  # that exploring costs no more than what is left for it


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What is to be least: dollars or hours; and the hours that there are."""

    objective: Literal["cost", "time"] = "cost"
    usd_per_worker_hour: float
    deadline_hours: float = float("inf")
    confidence: float = 0.9  # of being done by then


@dataclass(frozen=True, kw_only=True)
class Step:
    """The scale for tonight, and what that costs beyond the best that is known."""

    scale: Scale
    best: Scale  # by what is known
    explore_usd: float  # expected; 0 where the best is taken
    reason: str


def next_step(model: TimeToQuality, runs: Sequence[Run], aim: Aim, *, explore_usd: float) -> Step:
    """The scale to train at tonight, given the runs of earlier nights and what is left to explore with.

    Raises ValueError without any run.
    """
    forecast = model.given(runs)
    workers: Array = np.array([scale.num_workers for scale in model.scales], np.float64)
    usd = forecast.hours * workers * aim.usd_per_worker_hour
    value = usd if aim.objective == "cost" else forecast.hours
    spread = forecast.spread
    late_hours = forecast.hours * np.exp(ndtri(aim.confidence) * spread)
    in_time = late_hours <= aim.deadline_hours
    safe = np.flatnonzero(in_time) if in_time.any() else np.array([int(np.argmin(late_hours))])
    best = int(safe[np.argmin(value[safe])])
    chance = ndtr((np.log(aim.deadline_hours) - np.log(forecast.hours)) / spread)
    saved = chance * _improvement(value, spread, value[best])
    price = np.maximum(0.0, usd - usd[best])
    # Of hours there is no price, so an hour saved is worth what an hour of the best scale costs.
    rate = 1.0 if aim.objective == "cost" else workers[best] * aim.usd_per_worker_hour
    gain = NIGHTS_AHEAD * saved * rate - price
    dear = usd * np.exp(ndtri(CERTAIN) * spread) - usd[best]  # what it may come to
    gain[(dear > explore_usd) | (forecast.hours > aim.deadline_hours)] = -np.inf
    gain[best] = 0.0
    taken = int(np.argmax(gain))
    return Step(
        scale=model.scales[taken],
        best=model.scales[best],
        explore_usd=float(price[taken]),
        reason=_reason(model.scales[taken], float(saved[taken]), float(price[taken]), aim, forecast.prior)
        if taken != best
        else f"nothing promises more than it costs to try; {forecast.prior}",
    )


def _improvement(value: Array, spread: Array, best: float) -> Array:
    """Expected amount by which a lognormal value is below the best: E[max(0, best - V)]."""
    apart = np.log(best / value) / spread
    told: Array = best * ndtr(apart) - value * np.exp(spread**2 / 2) * ndtr(apart - spread)
    return np.maximum(told, 0.0)


def _reason(scale: Scale, saved: float, price: float, aim: Aim, prior: str) -> str:
    gain = f"${saved:.2f}" if aim.objective == "cost" else f"{saved:.2f} h"
    return (
        f"a batch of {scale.batch_size} on {scale.num_workers} workers may save {gain} a night, "
        f"and trying costs ${price:.2f}; {prior}"
    )
