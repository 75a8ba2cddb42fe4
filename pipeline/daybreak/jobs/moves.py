"""Decides whether a running job moves though nothing forces it: down to what costs less, or back.

What deadline and budget force comes first (escalation.py). Where that leaves the job where it is:

    step down   to the rung with the cheapest rest, spot included: where the job is ahead, or where its device
                waits for samples, so that a slower device trains about as fast (remaining_work.py). The new
                rung has to be in time with the chance that a plan needs; so has the present machine, in case
                the new one does not come, or turns out slow and is left again. The saving has to repay the
                restart `REPAYS` times, and be at least `LEAST_SHARE` of the remaining cost.
    undo        back to the rung before a step down or a scale up, if measured to cost less (to be faster, if
                the plan was to be fast or nothing costs anything), or if the loss has risen since. The old
                rung, too, has to be in time.

No job moves more than `MOST_MOVES` times like this, and it returns to a rung that it has left only to undo,
or where that is spot. The rate on a rung is the measured one where the job has run there, else the plan's,
slower by as much as training was slower than planned (remaining_work.py).
"""

from collections.abc import Iterator
from dataclasses import replace
from math import exp, log
from typing import Literal

from daybreak.contract.formats import dollars, duration
from daybreak.contract.record_types import Rung
from daybreak.contract.units import HOUR_S
from daybreak.jobs import escalation
from daybreak.jobs.cost_tracker import usd_per_hour
from daybreak.jobs.escalation import FallbackChoice
from daybreak.jobs.observed_job import PATIENCE_S, ObservedJob, rungs
from daybreak.jobs.remaining_work import faster, forecast, waits_for_samples
from daybreak.machines.startup import start_s

MOST_MOVES = 2
REPAYS = 3.0  # times what the restart costs
LEAST_SHARE = 0.1  # of the dollars or seconds that are left
SURE = 0.115  # deviation of the logarithm of a rate that is known well enough: a steady one of 15 s
OF_THE_JOB = 0.5  # of the logarithm by which training is faster than planned; the rest is the machine's
TRIAL_S = 600.0  # until a machine is known to be slow, and has done next to nothing


def may_move(job: ObservedJob) -> bool:
    """Returns whether a job runs, at a rate that is known well, and has moves left."""
    known = job.rate is not None and job.rate.error <= SURE
    return job.state == "running" and known and job.num_moves < MOST_MOVES


def undo(job: ObservedJob) -> FallbackChoice | None:
    """Returns the rung before, where the move from it did not pay or hurt the loss; None to stay."""
    before = job.before
    if before is None or before.rental not in job.earlier or before.rental in job.refused:
        return None
    if not _in_time(job, before) or _rest_usd(job, before) > job.left_usd:
        return None
    costs = job.to_save and usd_per_hour(job.rung) > 0
    if job.loss_rose:
        why = "the loss has risen since it left there"
    elif costs and _pays(job, before):
        why = f"the rest costs {_beside(job, before)} as measured on both"
    elif not costs and _is_faster(job, before):
        there, here = (_rest_s(job, rung) for rung in (before, job.rung))
        why = f"the rest takes {duration(there)} there and {duration(here)} here, as measured on both"
    else:
        return None
    return _moved(job, before, "undo", why)


def step_down(job: ObservedJob) -> FallbackChoice | None:
    """Returns the rung on which the rest costs least, where that pays for the restart; None to stay."""
    if not job.to_save:
        return None
    paying = [
        rung
        for rung in _others(job)
        if _pays(job, rung) and _in_time(job, rung) and _could_return(job) and _would_stay(job, rung)
    ]
    if not paying:
        return None
    best = min(paying, key=lambda rung: _rest_usd(job, rung))
    cause = "it is ahead"
    if job.device_use is not None and waits_for_samples(job, best):
        cause = f"its device waits for samples {1 - job.device_use:.0%} of the time"
    why = f"{cause}: the rest takes {duration(_rest_s(job, best))} there, of "
    why += f"{duration(job.deadline - job.now)} left, and costs {_beside(job, best)}"
    return _moved(job, best, "step down", why)


def _others(job: ObservedJob) -> Iterator[Rung]:
    """Yields the rungs that the job has not run on, or that are spot, and that were not refused of late."""
    left = (rental for rental in job.left if not rental.is_spot)
    out = {job.rung.rental, *left, *job.refused}
    for rung in (*rungs(job), *job.plan.cheaper):
        if rung.rental not in out:
            yield rung


def _in_time(job: ObservedJob, rung: Rung) -> bool:
    return forecast(job, rung).chance >= job.confidence


def _could_return(job: ObservedJob) -> bool:
    """Returns whether this rung would still be in time if the other one did not come, or were slow."""
    lost_s = PATIENCE_S + TRIAL_S + 2 * start_s(job.plan)
    return _in_time(replace(job, deadline=job.deadline - lost_s), job.rung)


def _would_stay(job: ObservedJob, rung: Rung) -> bool:
    """Returns whether nothing would force the job off that rung at once."""
    rates = {**job.earlier, job.rung.rental: job.rate} if job.rate else job.earlier
    there = replace(
        job, rung=rung, state="running", since=job.now, starting_s=start_s(job.plan), rate=None, earlier=rates
    )
    choice = escalation.forced(there)
    return choice.rung is not None and choice.rung.rental == rung.rental


def _pays(job: ObservedJob, rung: Rung) -> bool:
    """Returns whether the rest costs so much less there that the move repays its restart with a margin."""
    here_usd = _rest_usd(job, job.rung)
    restart_usd = start_s(job.plan) * usd_per_hour(rung) / HOUR_S
    saved_usd = here_usd - _rest_usd(job, rung)
    return saved_usd > 0 and saved_usd >= max(REPAYS * restart_usd, LEAST_SHARE * here_usd)


def _is_faster(job: ObservedJob, rung: Rung) -> bool:
    here_s, there_s = (_rest_s(job, each) for each in (job.rung, rung))
    return here_s - there_s >= max(REPAYS * start_s(job.plan), LEAST_SHARE * here_s)


def _rest_usd(job: ObservedJob, rung: Rung) -> float:
    """Returns what the rest is expected to cost on a rung, its start included."""
    return _rest_s(job, rung) * usd_per_hour(rung) / HOUR_S


def _rest_s(job: ObservedJob, rung: Rung) -> float:
    """Returns the expected seconds; elsewhere a job is faster than planned by the share `OF_THE_JOB`."""
    rest_s = forecast(job, rung).rest_s
    measured = rung.rental == job.rung.rental or rung.rental in job.earlier
    if measured or waits_for_samples(job, rung):
        return rest_s
    of_the_job = exp(OF_THE_JOB * log(faster(job)))
    return start_s(job.plan) + (rest_s - start_s(job.plan)) / of_the_job


def _beside(job: ObservedJob, rung: Rung) -> str:
    there_usd, here_usd = (_rest_usd(job, each) for each in (rung, job.rung))
    return f"{dollars(there_usd)} there and {dollars(here_usd)} on {job.rung.rental},"


def _moved(job: ObservedJob, rung: Rung, name: Literal["step down", "undo"], why: str) -> FallbackChoice:
    more_usd = _rest_usd(job, rung) - _rest_usd(job, job.rung)
    return FallbackChoice(
        rung=rung, name=name, usd=more_usd, reason=f"to {rung.rental}, as {why.rstrip(',')}"
    )
