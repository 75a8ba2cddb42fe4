"""Which scale to train at tonight: the best that is known, or one that may turn out better?

Retraining repeats every night, so a night is a measurement that was to be paid anyway: only what it costs
more than the best known scale is the price of exploring. A scale is worth that if what it may save, over the
nights that will profit, is more (expected improvement, Mockus 1975), and if the price is left of
`plan.explore_usd`. A search that Scavenger (CCGrid'23) does in one go over four corners is so spread over
nights, and stops by itself once nothing promises enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from pipeline.planning.history import NIGHTS_AHEAD
from pipeline.planning.quality import Array, Run, Scale, TimeToQuality

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


class Weighed(Protocol):
    """A way to run the job, as the search weighs it: an Estimate, or what holds one."""

    @property
    def expected_s(self) -> float:
        """Median of the time."""

    @property
    def expected_usd(self) -> float:
        """Dollars for that time."""

    def time_s(self, chance: float) -> float:
        """Seconds in which it is done with this chance."""


W = TypeVar("W", bound=Weighed)


def worth_trying(
    ranked: Sequence[W], *, objective: Literal["cost", "time"], explore_usd: float
) -> tuple[W, float, str] | None:
    """The feasible way to try tonight, what that is expected to cost beyond the best, and why; or None.

    `ranked` has the feasible ways, the best first.
    """
    hours: Array = np.array([way.expected_s / 3600 for way in ranked], np.float64)
    usd: Array = np.array([way.expected_usd for way in ranked], np.float64)
    late: Array = np.array([way.time_s(CERTAIN) / 3600 for way in ranked], np.float64)
    spread = np.maximum(np.log(late / hours) / ndtri(CERTAIN), 1e-6)
    value = usd if objective == "cost" else hours
    if not len(ranked) or value[0] <= 0:  # nothing is cheaper than for nothing
        return None
    rate = 1.0 if objective == "cost" else float(usd[0] / hours[0])
    saved = _improvement(value, spread, float(value[0]))
    taken, price = _taken(usd, spread, saved * rate, best=0, allowed=None, explore_usd=explore_usd)
    if taken == 0:
        return None
    return ranked[taken], price, _told(objective, float(saved[taken]), price)


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
    # Of hours there is no price, so an hour saved is worth what an hour of the best scale costs.
    rate = 1.0 if aim.objective == "cost" else float(workers[best] * aim.usd_per_worker_hour)
    in_reach = forecast.hours <= aim.deadline_hours
    taken, price = _taken(usd, spread, saved * rate, best=best, allowed=in_reach, explore_usd=explore_usd)
    scale = model.scales[taken]
    told = f"a batch of {scale.batch_size} on {scale.num_workers} workers "
    told += _told(aim.objective, float(saved[taken]), price)
    return Step(
        scale=scale,
        best=model.scales[best],
        explore_usd=price,
        reason=f"{'nothing promises more than it costs to try' if taken == best else told}; {forecast.prior}",
    )


def _taken(
    usd: Array,
    spread: Array,
    saved_usd: Array,
    *,
    best: int,
    allowed: NDArray[np.bool_] | None,
    explore_usd: float,
) -> tuple[int, float]:
    """Place of what is worth most over the nights ahead, and its price; the best where nothing is."""
    price = np.maximum(0.0, usd - usd[best])
    dear = usd * np.exp(ndtri(CERTAIN) * spread) - usd[best]  # what it may come to
    gain = np.where(dear > explore_usd, -np.inf, NIGHTS_AHEAD * saved_usd - price)
    if allowed is not None:
        gain[~allowed] = -np.inf
    gain[best] = 0.0
    taken = int(np.argmax(gain))
    return taken, float(price[taken])


def _improvement(value: Array, spread: Array, best: float) -> Array:
    """Expected amount by which a lognormal value is below the best: E[max(0, best - V)]."""
    apart = np.log(best / value) / spread
    told: Array = best * ndtr(apart) - value * np.exp(spread**2 / 2) * ndtr(apart - spread)
    return np.maximum(told, 0.0)


def _told(objective: str, saved: float, price: float) -> str:
    gain = f"${saved:.2f}" if objective == "cost" else f"{saved:.2f} h"
    return f"may save {gain} a night, and trying costs ${price:.2f}"
