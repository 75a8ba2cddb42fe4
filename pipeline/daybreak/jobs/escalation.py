"""Chooses where tonight's job runs, so that it is done in time and within the budget.

The fallbacks, in order:

    on-demand       a spot plan moves to the same machines on demand, when the extension `spot` says so
    next fallback   machines are unavailable: refused, or waited for too long in a queue
    scale up        to the next of the plan's fallbacks that is faster and still has time for the rest
    finish early    the trainer lets the rate decay as late as it can (trainer._end_in), for both limits
    checkpoint      time is up, and the job has not ended: its newest good checkpoint is the model
    champion        no checkpoint: the current champion stays

"Shorten the evaluation" is not a fallback: evaluation comes after `train_until`, in its own time, so a
shorter evaluation would not help training. This module decides on the first three. A faster placement is
taken as late as possible: work that may be late stays, and is measured, until `PATIENCE_S` before the last
moment to start the last placement that would be in time, or until the trainer would begin to finish early.
Where no placement would be in time with the required chance, the job moves at once to the surest placement,
if that is in time more likely than not and the current placement is not. A queue is left in the same way,
early enough to wait as long for each of the other placements.

Refused machines are left at once, for the cheapest placement that was not refused and keeps both limits, even
if that placement is slower or costs more; a place that does not answer for `PATIENCE_S`, or three times as
long as planned, whichever is longer, counts as a refusal. If all were refused, the placement refused longest
ago is tried again, each `PATIENCE_S` later at the earliest, until the deadline, since capacity may come back.
While there is time to wait for spot, the job moves only to other spot machines, and it does not return from
on demand to spot if it can be bought elsewhere. How long the rest takes: remaining_work.py. Optional moves:
moves.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

from daybreak import hooks
from daybreak.contract.record_parts import Placement, Rental
from daybreak.jobs import observed_job
from daybreak.jobs.observed_job import ObservedJob, placements
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

Change = Literal[
    "on-demand", "next fallback", "scale up", "step down", "undo", "triggered move", "triggered batch"
]
EVEN = 0.5  # chance of being in time, or not


@dataclass(frozen=True, kw_only=True)
class FallbackChoice:
    """The placement to be on; None: wait. If something changes, its name, cost and reason, too."""

    placement: Placement | None
    name: Change | Literal[""] = ""
    usd: float = 0.0
    reason: str = ""
    batch_size: int = 0  # to train with from now on; 0: as it is


def forced(job: ObservedJob) -> FallbackChoice:
    """Returns the placement to be on now."""
    if _is_in_vain(job):
        refused = {**job.refused, job.placement.rental: job.now}
        moved = _forced(replace(job, state="refused", refused=refused))
        if moved.placement and moved.placement.rental != job.placement.rental:
            return moved
    return _forced(job)


def _is_in_vain(job: ObservedJob) -> bool:
    """Whether machines without a queue of their own were waited for longer than they take to come."""
    usual_s = sum(portion.expected_s for portion in job.plan.forecast.portions if portion.name == QUEUE)
    waits = job.state == "queued" and not job.placement.rental.is_queued
    return waits and job.now - job.since >= max(observed_job.PATIENCE_S, 3 * usual_s)


def _forced(job: ObservedJob) -> FallbackChoice:
    """Returns what deadline, budget and lost machines force, of a job that waits for nothing in vain."""
    steering = _steering(job)
    best = steering.best() if steering else job.placement  # None: spot is waited for
    if other := _elsewhere(job, best, steering):
        return _changed(
            job, other, "next fallback", f"{job.placement.rental} cannot be had; {_at_most(job, other)}"
        )
    if best is None or (job.state in ("none", "refused") and is_fresh(job, best.rental)):
        return FallbackChoice(placement=None)
    if not (steering and _can_be_bought(job, best)) and (faster := _up(job, best)):
        if job.state == "queued":
            why = f"{best.rental} was waited for {job.now - job.since:,.0f} s"
            return _changed(job, faster, "next fallback", f"{why}; {_at_most(job, faster)}")
        chance = forecast(job, best).chance
        why = f"{best.rental} would be done in time with a chance of {chance:.0%}"
        return _changed(job, faster, "scale up", f"{why}; {_at_most(job, faster)}")
    if best.rental == job.placement.rental or best.rental.strategy != "on-demand":
        return FallbackChoice(placement=best)
    why = "another loss of spot, or a longer wait for it, could not be borne: the rest takes "
    why += f"{remaining_s(job, best):,.0f} s at most, and {job.deadline - job.now:,.0f} s are left"
    return _changed(job, best, "on-demand", why)


def _changed(job: ObservedJob, placement: Placement, name: Change, reason: str) -> FallbackChoice:
    """Returns the choice of another placement, with the dollars that it costs beyond the current one."""
    return FallbackChoice(placement=placement, name=name, usd=extra_usd(job, placement), reason=reason)


def _at_most(job: ObservedJob, placement: Placement) -> str:
    return f"{placement.rental} takes {remaining_s(job, placement):,.0f} s at most"


def _steering(job: ObservedJob) -> Any:
    """Returns what chooses among spot machines, those on demand, and waiting; None for a plan not on spot."""
    made = hooks.functions("steering") if job.plan.rental.is_spot else ()
    return next((steering(job) for steering in made), None)


def _elsewhere(job: ObservedJob, best: Placement | None, steering: Any) -> Placement | None:
    """Returns the placement to request instead of refused machines; None to stay, or to wait."""
    if job.state not in ("none", "refused"):
        return None
    if steering and job.placement.rental.is_spot and job.placement.rental in job.refused:
        spot: Placement | None = steering.elsewhere()
        if spot:
            return spot
    wanted = best or job.placement  # best is None: spot is waited for
    if wanted.rental not in job.refused:
        return None
    others = [placement for placement in placements(job) if placement.rental != wanted.rental]
    if steering and _can_be_bought(job, wanted):  # which the job moves to in time
        others = [placement for placement in others if placement.rental.is_spot]
    kept = [placement for placement in others if keeps(job, placement)]
    if not kept and forecast(job, wanted).chance < job.confidence:  # then the largest share of the work first
        kept = sorted(others, key=lambda placement: -affordable_share(job, placement))
    else:  # cheapest first, and on demand is not left for spot
        bought = not wanted.rental.is_spot
        kept.sort(key=lambda placement: (bought and placement.rental.is_spot, remaining_usd(job, placement)))
    unasked = [placement for placement in kept if placement.rental not in job.refused]
    if unasked:
        return unasked[0]
    cheapest_first = sorted([wanted, *kept], key=lambda placement: remaining_usd(job, placement))
    oldest = min(cheapest_first, key=lambda placement: job.refused[placement.rental])
    return None if oldest.rental == wanted.rental or is_fresh(job, oldest.rental) else oldest


def is_fresh(job: ObservedJob, rental: Rental) -> bool:
    """Whether it was refused so short a time ago that it is not asked for again yet."""
    return job.now - job.refused.get(rental, -inf) < observed_job.PATIENCE_S


def _up(job: ObservedJob, best: Placement) -> Placement | None:
    """Returns the next placement, if this is the last moment to take it; None to stay."""
    queued = job.state == "queued"
    if job.state == "refused" or (queued and job.now - job.since < observed_job.PATIENCE_S):
        return None
    late = forecast(job, best).chance < job.confidence
    if not (late or queued):
        return None
    out = {best.rental, *job.refused}
    later = [placement for placement in placements(job) if placement.rental not in out]
    later = [placement for placement in later if best.rental.is_spot or not placement.rental.is_spot]
    later = [placement for placement in later if queued or placement.expected_s < best.expected_s]
    left_s = job.deadline - job.now
    in_time = [placement for placement in later if keeps(job, placement)]
    if in_time:
        # Each of the placements to wait for later gets as long.
        patience_s = observed_job.PATIENCE_S * (len(in_time) if queued else 1)
        last = left_s - min(remaining_s(job, placement) for placement in in_time) < patience_s
        if last or _finishes_early(job, best):
            return min(in_time, key=lambda placement: remaining_usd(job, placement))
        return None
    return _best_effort(job, later, best) if late and later else None


def _best_effort(job: ObservedJob, later: Sequence[Placement], best: Placement) -> Placement | None:
    """Returns the placement to take where none is sure to be in time; None to stay."""
    if job.state == "queued":  # part of the work, on what is available
        return max(later, key=lambda placement: affordable_share(job, placement))
    paid = [placement for placement in later if remaining_usd(job, placement) <= job.left_usd]
    if not paid or job.rate is None or forecast(job, best).chance >= EVEN:
        return None
    surest = max(paid, key=lambda placement: forecast(job, placement).chance)
    return surest if forecast(job, surest).chance >= EVEN else None


def _finishes_early(job: ObservedJob, placement: Placement) -> bool:
    """Whether the trainer will soon let the rate decay for the deadline, as `trainer._end_in` does."""
    left_s = job.deadline - job.now - startup_s(job, placement) - observed_job.PATIENCE_S
    # Twice the trainer's margin, as the trainer uses the rate of the last second, which is rarely the mean.
    reach = max(0.0, (1 - 2 * MARGIN) * left_s * rate_on(job, placement).samples_per_s)
    end = job.seen + reach
    return end < job.num_samples and reach <= job.decay * end


def _can_be_bought(job: ObservedJob, placement: Placement) -> bool:
    """Returns whether a placement is on spot and the plan has the same machines on demand."""
    on_demand = placement.rental.on_demand
    return placement.rental.is_spot and any(each.rental == on_demand for each in placements(job))
