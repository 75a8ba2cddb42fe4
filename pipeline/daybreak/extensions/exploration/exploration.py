"""Decides whether tonight trains at the best known scale or at one that may turn out better.

Retraining repeats every night, so a night is a measurement that is paid for anyway: the price of exploring is
only what it costs beyond the best known scale. A scale is worth that price if its expected saving, over the
nights that will profit, is larger (expected improvement, Mockus 1975), and if that much of `plan.explore_usd`
is left. The search that Scavenger (CCGrid'23) does in one go over four corners is thus spread over nights,
and stops by itself once nothing promises enough.

A way that may be late is tried, too, if the launcher can save the night (trials.py); tonight then costs what
that is expected to cost. It saves something only if it turns out to be in time with the chance that a plan
needs, so no other improvement counts (constrained expected improvement, Schonlau 1998; Gardner 2014). The
best known way is always in time with that chance.

`Prospects` hold what is known of the ways to run the job: of a night's candidates by profile, roofline, and
what ledger_history.py and efficiency.py learned from the nights.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from daybreak.contract.record_parts import EVERY_UPDATE, Sync
from daybreak.contract.units import HOUR_S
from daybreak.extensions.exploration.trials import CERTAIN, Trial, trial_of
from daybreak.planning.candidates import TrainingTask
from daybreak.planning.fallback import Weighed
from daybreak.planning.search import Candidate, PlanChoice, PlanLimits, distinct_name, frontier
from daybreak.prediction.calibration import NIGHTS_AHEAD

if TYPE_CHECKING:  # pydantic takes longer to import than a plan to make
    from daybreak.contract.sections import PlanParams

LEAST = 0.005  # least expected saving that is worth another way, as a share of the best's cost or time

Array = NDArray[np.float64]
Objective = Literal["cost", "time"]


@dataclass(frozen=True, kw_only=True)
class Prospects:
    """What is expected of some ways to run the job, one entry each."""

    names: Sequence[str]
    hours: Array  # to the quality, median
    usd: Array
    spread: Array  # deviation of the logarithm of both, which nights may reduce
    most_hours: Array  # at most, to be in time with the chance that a plan needs; inf: it already is
    tonight_usd: Array  # expected
    worst_usd: Array  # tonight, with a chance of CERTAIN
    allowed: NDArray[np.bool_]  # tonight
    best: int  # index of the best known way


@dataclass(frozen=True, kw_only=True)
class ExplorationStep:
    """The way for tonight by its index, and its extra cost over the best known way."""

    taken: int
    best: int  # index of the best known way
    explore_usd: float  # expected; 0 where the best is taken
    reason: str


def of_ways(
    ranked: Sequence[Weighed],
    *,
    names: Sequence[str],
    doubts: Sequence[float],
    num_nights: Sequence[int],
    budget_usd: float,
    trials: Sequence[Trial[Weighed]] = (),
) -> Prospects:
    """Returns the prospects of a night's feasible candidates, best first, then of the ways of trials.

    `doubts` are deviations of the logarithm of the samples that the quality needs, against the best's.
    `num_nights` is how often each was run: another night hardly reduces what is still uncertain after those.
    """
    ways = [*ranked, *(trial.way for trial in trials)]
    nights = 1 + np.asarray(num_nights, np.float64)
    hours: Array = np.array([way.expected_s / HOUR_S for way in ways], np.float64)
    usd: Array = np.array([way.expected_usd for way in ways], np.float64)
    late: Array = np.array([way.time_s(CERTAIN) / HOUR_S for way in ways], np.float64) / hours
    of_time = np.log(late) / ndtri(CERTAIN)
    spread = np.hypot(of_time, doubts) / nights
    # What nights leave uncertain still has to fit between the time and the deadline.
    lasting = of_time * np.sqrt(1 - nights**-2.0)
    margins = [(inf, 0.0)] * len(ranked) + [(t.deadline_s, float(ndtri(t.confidence))) for t in trials]
    deadline_s, z = np.array(margins, np.float64).reshape(-1, 2).T
    tonight_usd, worst_usd = usd.copy(), usd * late
    tonight_usd[len(ranked) :] = [trial.expected_usd for trial in trials]
    worst_usd[len(ranked) :] = [trial.worst_usd for trial in trials]
    return Prospects(
        names=names,
        hours=hours,
        usd=usd,
        spread=np.maximum(spread, 1e-6),
        most_hours=deadline_s / HOUR_S * np.exp(-z * lasting),
        tonight_usd=tonight_usd,
        worst_usd=worst_usd,
        allowed=worst_usd <= budget_usd,
        best=0,
    )


def next_step(known: Prospects, *, objective: Objective, explore_usd: float) -> ExplorationStep:
    """Returns the way for tonight, given what is known and what is left to spend on exploring."""
    best = known.best
    value = known.usd if objective == "cost" else known.hours
    most = np.minimum(value[best], value / known.hours * known.most_hours)
    saved = _improvement(value, known.spread, most=most, best=float(value[best]))
    # Hours have no price of their own, so an hour saved is worth what an hour of the best costs.
    rate = 1.0 if objective == "cost" else float(known.usd[best] / known.hours[best]) or 1.0
    price = np.maximum(0.0, known.tonight_usd - known.usd[best])
    worst = known.worst_usd - known.usd[best]  # most that exploring may cost
    gain = np.where(known.allowed & (worst <= explore_usd), NIGHTS_AHEAD * rate * saved - price, -np.inf)
    gain[saved < LEAST * value[best]] = -np.inf
    gain[best] = 0.0
    taken = int(np.argmax(gain))
    reason = "nothing promises more than it costs to try"
    if taken != best:
        may = f"${saved[taken]:.2f}" if objective == "cost" else f"{saved[taken]:.2f} h"
        reason = f"{known.names[taken]} may save {may} a night, and trying costs ${price[taken]:.2f}"
    return ExplorationStep(
        taken=taken,
        best=best,
        explore_usd=float(price[taken]),
        reason=reason,
    )


def _improvement(value: Array, spread: Array, *, most: Array, best: float) -> Array:
    """Returns what lognormal values up to `most` are below the best: E[(best - V) 1{V <= most}].

    `most` is at most the best; with the best it is the expected improvement.
    """
    if best <= 0:  # nothing is cheaper than free
        return np.zeros(len(value))
    apart = np.log(np.maximum(most, 1e-9 * best) / np.maximum(value, 1e-9 * best)) / spread
    expected: Array = best * ndtr(apart) - value * np.exp(spread**2 / 2) * ndtr(apart - spread)
    return np.maximum(expected, 0.0)


def explored(
    choice: PlanChoice,
    offered: Sequence[Candidate],
    limits: PlanLimits,
    params: "PlanParams",
    *,
    job: TrainingTask,
    left_usd: float,
) -> tuple[PlanChoice, float]:
    """Returns the choice with the way to explore tonight as its best, and the extra dollars of exploring.

    The extra is negative where a way that may be late is cheaper when it is in time.
    """
    priced = params.ranking == "time" and params.usd_per_hour_saved is not None
    ranked = [each for each in choice.ranked if not each.rental.others]
    if params.ranking == "knee" or priced or left_usd <= 0 or choice.best is not ranked[0]:
        return choice, 0.0
    trials = _trials(offered, ranked, limits, sync=job.sync)
    ways = [*ranked, *(trial.way for trial in trials)]
    if len(ways) < 2:
        return choice, 0.0
    runs = job.known.runs if job.known else {}
    base = choice.best.estimate.batch_size
    # What another batch size reaches can only be compared with a size that was run.
    comparable = base in job.efficiency.batch_sizes
    known = of_ways(
        ranked,
        names=[distinct_name(c, choice.best) for c in ways],
        doubts=[job.efficiency.spread(c.estimate.batch_size, base) * comparable for c in ways],
        num_nights=[
            runs.get((c.machine.name, c.estimate.batch_size, c.rental.num_machines), 0) for c in ways
        ],
        budget_usd=limits.budget_usd,
        trials=trials,
    )
    step = next_step(known, objective=params.ranking, explore_usd=left_usd)
    if step.taken == step.best:
        return choice, 0.0
    taken = ways[step.taken]
    rest = (each for each in choice.ranked if each is not taken)
    reason = (
        f"{distinct_name(choice.best, taken)} is the best that is known, but tonight explores: {step.reason}"
    )
    reason += f", of ${left_usd:.2f} left of plan.explore_usd"
    if step.taken >= len(ranked):
        rescue = trials[step.taken - len(ranked)].rescue
        reason += f"; if it turns out to be late, {distinct_name(rescue, taken)} takes over in time"
    more_usd = taken.expected_usd - choice.best.expected_usd
    return replace(choice, best=taken, ranked=(taken, *rest), runner_up=reason), more_usd


def _trials(
    offered: Iterable[Candidate], ranked: Sequence[Candidate], limits: PlanLimits, *, sync: Sync | None
) -> list[Trial[Candidate]]:
    """Returns the trials of ways on demand that may be late; a fallback of the plan could save each night.

    `ranked` are the feasible candidates; `sync` is the job's. Spot is late by its losses, not by its rate.
    """
    rescues: dict[tuple[int, Sync], list[Candidate]] = {}
    for each in ranked:
        if _is_fallback(each):
            rescues.setdefault((each.estimate.batch_size, each.estimate.sync), []).append(each)
    by_checkpoint = {checkpoint: frontier(each) for checkpoint, each in rescues.items()}
    late = (
        each
        for each in offered
        if _is_fallback(each)
        and not limits.in_time(each)
        and limits.in_budget(each)
        and (sync is not None or each.estimate.sync == EVERY_UPDATE)
    )
    tried = (
        trial_of(
            each,
            by_checkpoint.get((each.estimate.batch_size, each.estimate.sync), ()),
            deadline_s=limits.deadline_s,
            confidence=limits.confidence,
        )
        for each in late
    )
    return [trial for trial in tried if trial]


def _is_fallback(candidate: Candidate) -> bool:
    """Returns whether machines of one kind are rented on demand, and at once."""
    return candidate.rental.strategy == "on-demand" and not (candidate.hindrance or candidate.rental.others)
