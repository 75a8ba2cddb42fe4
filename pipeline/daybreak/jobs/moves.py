"""Decides whether a running job moves though nothing forces it: down to what costs less, or back.

What deadline and budget force comes first (escalation.py). Where that leaves the job where it is:

    step down   to the placement with the cheapest rest, spot included: where the job is ahead, or where its
                device waits for samples, so that a slower device trains about as fast (remaining_work.py).
                The new placement has to be in time with the chance that a plan needs; so has the present
                machine, in case the new one does not come, or turns out slow and is left again. The saving
                has to repay the restart `REPAYS` times, and be at least `LEAST_SHARE` of the remaining cost.
    undo        back to the placement before a step down or a scale up, if measured to cost less (to be
                faster, if the plan was to be fast or nothing costs anything), or if the loss has risen
                since. The old placement, too, has to be in time.

What a team's triggers ask for (triggers.py) comes before these two, `MOST_TRIGGERED` times at most:

    triggered move    up: to the cheapest rest among faster placements; down: among those of a lower price, or
                      slower ones of the same. The rest, its restart included, may cost as much more as the
                      trigger says: by default nothing for a step down, and what the budget leaves for a step
                      up. The new placement has to be in time, too. Nothing but a trigger, or what is forced,
                      moves the job from there.
    triggered batch   to the next size of the plan, larger or smaller, for the rest of the run, unless the
                      slower of the two makes the rest late, or dearer than the trigger says

No job moves more than `MOST_MOVES` times like this, and it returns to a placement that it has left only to
undo, or where that is spot. The rate on a placement is the measured one where the job has run there, else the
plan's, slower by as much as training was slower than planned (remaining_work.py).
"""

from collections.abc import Iterator
from dataclasses import replace
from math import exp, inf, log
from typing import Literal

from daybreak.contract.formats import dollars, duration
from daybreak.contract.record_parts import Placement
from daybreak.contract.units import HOUR_S
from daybreak.jobs import escalation
from daybreak.jobs.cost_tracker import usd_per_hour
from daybreak.jobs.escalation import FallbackChoice
from daybreak.jobs.observed_job import PATIENCE_S, ObservedJob, placements
from daybreak.jobs.remaining_work import faster, forecast, waits_for_samples
from daybreak.jobs.triggers import Fired
from daybreak.machines.startup import start_s

MOST_MOVES, MOST_TRIGGERED = 2, 6
REPAYS = 3.0  # times what the restart costs
LEAST_SHARE = 0.1  # of the dollars or seconds that are left
SURE = 0.115  # deviation of the logarithm of a rate that is known well enough: a steady one of 15 s
OF_THE_JOB = 0.5  # of the logarithm by which training is faster than planned; the rest is the machine's
TRIAL_S = 600.0  # until a machine is known to be slow, and has done next to nothing


def may_move(job: ObservedJob) -> bool:
    """Returns whether a job may move because that pays: it has moves left, and no trigger led it here."""
    return _is_known(job) and job.num_moves < MOST_MOVES and not job.is_triggered


def _is_known(job: ObservedJob) -> bool:
    """Returns whether a job runs, at a rate that is known well."""
    known = job.rate is not None and job.rate.error <= SURE
    return job.state == "running" and known


def triggered(job: ObservedJob) -> FallbackChoice | None:
    """Returns what the first trigger leads to that holds and can be followed; None: nothing."""
    if job.state != "running" or job.num_triggered >= MOST_TRIGGERED:
        return None
    return next((choice for fired in job.fired if (choice := _followed(job, fired))), None)


def _followed(job: ObservedJob, fired: Fired) -> FallbackChoice | None:
    trigger = fired.trigger
    if not _is_known(job):
        return None
    if trigger.action in ("larger batch", "smaller batch"):
        return _other_batch(job, fired)
    is_up = trigger.action == "step up"
    most_usd = trigger.most_usd if trigger.most_usd is not None else inf if is_up else 0.0
    here_usd = _rest_usd(job, job.placement)
    allowed = [
        placement
        for placement in (*placements(job), *job.plan.cheaper)
        if placement.rental not in {job.placement.rental, *job.refused}
        and (_is_above(job, placement) if is_up else _is_below(job, placement))
        and _rest_usd(job, placement) <= min(job.left_usd, here_usd + most_usd)
        and _in_time(job, placement)
        and _would_stay(job, placement)
    ]
    if not allowed:
        return None
    best_of = min(allowed, key=lambda placement: (_rest_usd(job, placement), _rest_s(job, placement)))
    return _moved(job, best_of, "triggered move", fired.why)


def _other_batch(job: ObservedJob, fired: Fired) -> FallbackChoice | None:
    """Returns the next size; None where there is none, or where the rest would be late or too dear."""
    size, is_larger = job.batch_size, fired.trigger.action == "larger batch"
    times = {each.batch_size: each.update_s / each.batch_size for each in job.placement.sizes}
    beyond = [each for each in times if (each > size if is_larger else each < size)]
    if job.rate is None or size not in times or not beyond:
        return None
    best = min(beyond) if is_larger else max(beyond)
    if best == job.asked_size:  # asked for before: the trainer has not taken it up yet, or has undone it
        return None
    rate = replace(job.rate, samples_per_s=job.rate.samples_per_s * times[size] / times[best])
    there = replace(job, batch_size=best, rate=rate)
    rest_usd, more_s = (
        _rest_usd(there, job.placement),
        _rest_s(there, job.placement) - _rest_s(job, job.placement),
    )
    usd = more_s * usd_per_hour(job.placement) / HOUR_S
    most_usd = fired.trigger.most_usd
    if most_usd is not None and usd > most_usd:
        return None
    if more_s > 0 and (rest_usd > job.left_usd or not _in_time(there, job.placement)):
        return None
    why = f"batches of {best} in place of {size}, as {fired.why}"
    return FallbackChoice(
        placement=job.placement, name="triggered batch", usd=usd, reason=why, batch_size=best
    )


def _is_above(job: ObservedJob, placement: Placement) -> bool:
    return placement.expected_s < job.placement.expected_s


def _is_below(job: ObservedJob, placement: Placement) -> bool:
    here, there = ((usd_per_hour(each), -each.expected_s) for each in (job.placement, placement))
    return there < here


def undo(job: ObservedJob) -> FallbackChoice | None:
    """Returns the placement before, where the move from it did not pay or hurt the loss; None to stay."""
    before = job.before
    if before is None or before.rental not in job.earlier or before.rental in job.refused:
        return None
    if not _in_time(job, before) or _rest_usd(job, before) > job.left_usd:
        return None
    costs = job.to_save and usd_per_hour(job.placement) > 0
    if job.loss_rose:
        why = "the loss has risen since it left there"
    elif costs and _pays(job, before):
        why = f"the rest costs {_beside(job, before)} as measured on both"
    elif not costs and _is_faster(job, before):
        there, here = (_rest_s(job, placement) for placement in (before, job.placement))
        why = f"the rest takes {duration(there)} there and {duration(here)} here, as measured on both"
    else:
        return None
    return _moved(job, before, "undo", why)


def step_down(job: ObservedJob) -> FallbackChoice | None:
    """Returns the placement on which the rest costs least, where that pays for the restart; None to stay."""
    if not job.to_save:
        return None
    paying = [
        placement
        for placement in _others(job)
        if _pays(job, placement)
        and _in_time(job, placement)
        and _could_return(job)
        and _would_stay(job, placement)
    ]
    if not paying:
        return None
    best = min(paying, key=lambda placement: _rest_usd(job, placement))
    cause = "it is ahead"
    if job.device_use is not None and waits_for_samples(job, best):
        cause = f"its device waits for samples {1 - job.device_use:.0%} of the time"
    why = f"{cause}: the rest takes {duration(_rest_s(job, best))} there, of "
    why += f"{duration(job.deadline - job.now)} left, and costs {_beside(job, best)}"
    return _moved(job, best, "step down", why)


def _others(job: ObservedJob) -> Iterator[Placement]:
    """Yields the placements that were not refused lately and that are spot or new to the job."""
    left = (rental for rental in job.left if not rental.is_spot)
    out = {job.placement.rental, *left, *job.refused}
    for placement in (*placements(job), *job.plan.cheaper):
        if placement.rental not in out:
            yield placement


def _in_time(job: ObservedJob, placement: Placement) -> bool:
    return forecast(job, placement).chance >= job.confidence


def _could_return(job: ObservedJob) -> bool:
    """Returns whether this placement would still be in time if the other one did not come, or were slow."""
    lost_s = PATIENCE_S + TRIAL_S + 2 * start_s(job.plan)
    return _in_time(replace(job, deadline=job.deadline - lost_s), job.placement)


def _would_stay(job: ObservedJob, placement: Placement) -> bool:
    """Returns whether nothing would force the job off that placement at once."""
    rates = {**job.earlier, job.placement.rental: job.rate} if job.rate else job.earlier
    there = replace(
        job,
        placement=placement,
        state="running",
        since=job.now,
        starting_s=start_s(job.plan),
        rate=None,
        earlier=rates,
    )
    choice = escalation.forced(there)
    return choice.placement is not None and choice.placement.rental == placement.rental


def _pays(job: ObservedJob, placement: Placement) -> bool:
    """Returns whether the rest costs so much less there that the move repays its restart with a margin."""
    here_usd = _rest_usd(job, job.placement)
    restart_usd = start_s(job.plan) * usd_per_hour(placement) / HOUR_S
    saved_usd = here_usd - _rest_usd(job, placement)
    return saved_usd > 0 and saved_usd >= max(REPAYS * restart_usd, LEAST_SHARE * here_usd)


def _is_faster(job: ObservedJob, placement: Placement) -> bool:
    here_s, there_s = (_rest_s(job, each) for each in (job.placement, placement))
    return here_s - there_s >= max(REPAYS * start_s(job.plan), LEAST_SHARE * here_s)


def _rest_usd(job: ObservedJob, placement: Placement) -> float:
    """Returns what the rest is expected to cost on a placement, its start included."""
    return _rest_s(job, placement) * usd_per_hour(placement) / HOUR_S


def _rest_s(job: ObservedJob, placement: Placement) -> float:
    """Returns the expected seconds; elsewhere a job is faster than planned by the share `OF_THE_JOB`."""
    rest_s = forecast(job, placement).rest_s
    measured = placement.rental == job.placement.rental or placement.rental in job.earlier
    if measured or waits_for_samples(job, placement):
        return rest_s
    of_the_job = exp(OF_THE_JOB * log(faster(job)))
    return start_s(job.plan) + (rest_s - start_s(job.plan)) / of_the_job


def _beside(job: ObservedJob, placement: Placement) -> str:
    there_usd, here_usd = (_rest_usd(job, each) for each in (placement, job.placement))
    return f"{dollars(there_usd)} there and {dollars(here_usd)} on {job.placement.rental},"


def _moved(
    job: ObservedJob, placement: Placement, name: Literal["step down", "undo", "triggered move"], why: str
) -> FallbackChoice:
    more_usd = _rest_usd(job, placement) - _rest_usd(job, job.placement)
    return FallbackChoice(
        placement=placement, name=name, usd=more_usd, reason=f"to {placement.rental}, as {why.rstrip(',')}"
    )
