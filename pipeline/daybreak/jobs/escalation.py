"""Chooses where tonight's job runs, so that it is done in time and within the budget.

The rungs, in order:

    on-demand       a spot plan moves to the same machines on demand, when the extension `spot` says so
    next rung       machines are unavailable: refused, or waited for too long in a queue
    scale up        to the next rung of the plan's ladder that is faster and still has time for the rest
    finish early    the trainer lets the rate decay as late as it can (trainer._end_in), for both limits
    checkpoint      time is up, and the job has not ended: its newest good checkpoint is the model
    champion        no checkpoint: the current champion stays

"Shorten the evaluation" is not a rung: evaluation comes after `train_until`, in its own time, so a shorter
evaluation would not help training. This module decides on the first three. A faster rung is taken as late as
possible: work that may be late stays, and is measured, until `PATIENCE_S` before the last moment to start the
last rung that would be in time, or until the trainer would begin to finish early. Where no rung would be in
time with the required chance, the job moves at once to the surest rung, if that is in time more likely than
not and the current rung is not. A queue is left in the same way, early enough to wait as long for each of the
other rungs.

Refused machines are left at once, for the cheapest rung that was not refused and keeps both limits, even if
that rung is slower or costs more; a place that does not answer for `PATIENCE_S`, or three times as long as
planned, whichever is longer, counts as a refusal. If all were refused, the rung refused longest ago is tried
again, each `PATIENCE_S` later at the earliest, until the deadline, since capacity may come back. While there
is time to wait for spot, the job moves only to other spot machines, and it does not return from on demand to
spot if it can be bought elsewhere. How long the rest takes: remaining_work.py. Optional moves: moves.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

from daybreak import hooks
from daybreak.contract.record_types import Rental, Rung
from daybreak.jobs import observed_job
from daybreak.jobs.observed_job import ObservedJob, rungs
from daybreak.jobs.remaining_work import (
    affordable_share,
    extra_usd,
    forecast,
    keeps,
    rate_on,
    remaining_s,
    remaining_usd,
    startup_s,
)
from daybreak.machines.startup import QUEUE
from daybreak.training.learning_rate import MARGIN

Change = Literal["on-demand", "next rung", "scale up", "step down", "undo"]
EVEN = 0.5  # chance of being in time, or not


@dataclass(frozen=True, kw_only=True)
class FallbackChoice:
    """The rung to be on; None: wait. If it is a change of rung, its name, cost and reason, too."""

    rung: Rung | None
    name: Change | Literal[""] = ""
    usd: float = 0.0
    reason: str = ""


def forced(job: ObservedJob) -> FallbackChoice:
    """Returns the rung to be on now."""
    if _is_in_vain(job):
        refused = {**job.refused, job.rung.rental: job.now}
        moved = _forced(replace(job, state="refused", refused=refused))
        if moved.rung and moved.rung.rental != job.rung.rental:
            return moved
    return _forced(job)


def _is_in_vain(job: ObservedJob) -> bool:
    """Whether machines without a queue of their own were waited for longer than they take to come."""
    usual_s = sum(portion.expected_s for portion in job.plan.portions if portion.name == QUEUE)
    waits = job.state == "queued" and not job.rung.rental.is_queued
    return waits and job.now - job.since >= max(observed_job.PATIENCE_S, 3 * usual_s)


def _forced(job: ObservedJob) -> FallbackChoice:
    """Returns what deadline, budget and lost machines force, of a job that waits for nothing in vain."""
    steering = _steering(job)
    best = steering.best() if steering else job.rung  # None: spot is waited for
    if other := _elsewhere(job, best, steering):
        return _changed(job, other, "next rung", f"{job.rung.rental} cannot be had; {_at_most(job, other)}")
    if best is None or (job.state in ("none", "refused") and is_fresh(job, best.rental)):
        return FallbackChoice(rung=None)
    if not (steering and _can_be_bought(job, best)) and (faster := _up(job, best)):
        if job.state == "queued":
            why = f"{best.rental} was waited for {job.now - job.since:,.0f} s"
            return _changed(job, faster, "next rung", f"{why}; {_at_most(job, faster)}")
        chance = forecast(job, best).chance
        why = f"{best.rental} would be done in time with a chance of {chance:.0%}"
        return _changed(job, faster, "scale up", f"{why}; {_at_most(job, faster)}")
    if best.rental == job.rung.rental or best.rental.strategy != "on-demand":
        return FallbackChoice(rung=best)
    why = "another loss of spot, or a longer wait for it, could not be borne: the rest takes "
    why += f"{remaining_s(job, best):,.0f} s at most, and {job.deadline - job.now:,.0f} s are left"
    return _changed(job, best, "on-demand", why)


def _changed(job: ObservedJob, rung: Rung, name: Change, reason: str) -> FallbackChoice:
    """Returns the choice of another rung, with the dollars that it costs beyond the current one."""
    return FallbackChoice(rung=rung, name=name, usd=extra_usd(job, rung), reason=reason)


def _at_most(job: ObservedJob, rung: Rung) -> str:
    return f"{rung.rental} takes {remaining_s(job, rung):,.0f} s at most"


def _steering(job: ObservedJob) -> Any:
    """Returns what chooses among spot machines, those on demand, and waiting; None for a plan not on spot."""
    made = hooks.functions("steering") if job.plan.rental.is_spot else ()
    return next((steering(job) for steering in made), None)


def _elsewhere(job: ObservedJob, best: Rung | None, steering: Any) -> Rung | None:
    """Returns the rung to request instead of refused machines; None to stay, or to wait."""
    if job.state not in ("none", "refused"):
        return None
    if steering and job.rung.rental.is_spot and job.rung.rental in job.refused:
        spot: Rung | None = steering.elsewhere()
        if spot:
            return spot
    wanted = best or job.rung  # best is None: spot is waited for
    if wanted.rental not in job.refused:
        return None
    others = [rung for rung in rungs(job) if rung.rental != wanted.rental]
    if steering and _can_be_bought(job, wanted):  # which the job moves to in time
        others = [rung for rung in others if rung.rental.is_spot]
    kept = [rung for rung in others if keeps(job, rung)]
    if not kept and forecast(job, wanted).chance < job.confidence:  # then the largest share of the work first
        kept = sorted(others, key=lambda rung: -affordable_share(job, rung))
    else:  # cheapest first, and on demand is not left for spot
        bought = not wanted.rental.is_spot
        kept.sort(key=lambda rung: (bought and rung.rental.is_spot, remaining_usd(job, rung)))
    unasked = [rung for rung in kept if rung.rental not in job.refused]
    if unasked:
        return unasked[0]
    cheapest_first = sorted([wanted, *kept], key=lambda rung: remaining_usd(job, rung))
    oldest = min(cheapest_first, key=lambda rung: job.refused[rung.rental])
    return None if oldest.rental == wanted.rental or is_fresh(job, oldest.rental) else oldest


def is_fresh(job: ObservedJob, rental: Rental) -> bool:
    """Whether it was refused so short a time ago that it is not asked for again yet."""
    return job.now - job.refused.get(rental, -inf) < observed_job.PATIENCE_S


def _up(job: ObservedJob, best: Rung) -> Rung | None:
    """Returns the next rung, if this is the last moment to take it; None to stay."""
    queued = job.state == "queued"
    if job.state == "refused" or (queued and job.now - job.since < observed_job.PATIENCE_S):
        return None
    late = forecast(job, best).chance < job.confidence
    if not (late or queued):
        return None
    out = {best.rental, *job.refused}
    later = [rung for rung in rungs(job) if rung.rental not in out]
    later = [rung for rung in later if best.rental.is_spot or not rung.rental.is_spot]
    later = [rung for rung in later if queued or rung.expected_s < best.expected_s]
    left_s = job.deadline - job.now
    in_time = [rung for rung in later if keeps(job, rung)]
    if in_time:
        # Each of the rungs to wait for later gets as long.
        patience_s = observed_job.PATIENCE_S * (len(in_time) if queued else 1)
        last = left_s - min(remaining_s(job, rung) for rung in in_time) < patience_s
        if last or _finishes_early(job, best):
            return min(in_time, key=lambda rung: remaining_usd(job, rung))
        return None
    return _best_effort(job, later, best) if late and later else None


def _best_effort(job: ObservedJob, later: Sequence[Rung], best: Rung) -> Rung | None:
    """Returns the rung to take where none is sure to be in time; None to stay."""
    if job.state == "queued":  # part of the work, on what is available
        return max(later, key=lambda rung: affordable_share(job, rung))
    paid = [rung for rung in later if remaining_usd(job, rung) <= job.left_usd]
    if not paid or job.rate is None or forecast(job, best).chance >= EVEN:
        return None
    surest = max(paid, key=lambda rung: forecast(job, rung).chance)
    return surest if forecast(job, surest).chance >= EVEN else None


def _finishes_early(job: ObservedJob, rung: Rung) -> bool:
    """Whether the trainer will soon let the rate decay for the deadline, as `trainer._end_in` does."""
    left_s = job.deadline - job.now - startup_s(job, rung) - observed_job.PATIENCE_S
    # Twice the trainer's margin, as the trainer uses the rate of the last second, which is rarely the mean.
    reach = max(0.0, (1 - 2 * MARGIN) * left_s * rate_on(job, rung).samples_per_s)
    end = job.seen + reach
    return end < job.plan.num_samples and reach <= job.decay * end


def _can_be_bought(job: ObservedJob, rung: Rung) -> bool:
    """Returns whether a rung is on spot and the plan has the same machines on demand."""
    on_demand = rung.rental.on_demand
    return rung.rental.is_spot and any(each.rental == on_demand for each in rungs(job))
