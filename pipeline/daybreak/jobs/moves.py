"""Decides whether a running job moves though nothing forces it: down to what costs less, or back.

What deadline and budget force comes first (escalation.py). Where that leaves the job where it is:

    step down   to the rung with the cheapest rest, spot included: where the job is ahead, or where its device
                waits for samples, so that a slower device trains about as fast (escalation._by_use). The new
                rung has to be in time with the chance that a plan needs; so has the present machine, in case
                the new one does not come, or turns out slow and is left again. The saving has to repay the
                restart `REPAYS` times, and be at least `LEAST_SHARE` of the remaining cost.
    undo        back to the rung before a step down or a scale up, if measured to cost less (to be faster, if
                the plan was to be fast or nothing costs anything), or if the loss has risen since. The old
                rung, too, has to be in time.

No job moves more than `MOST_MOVES` times like this, and it returns to a rung that it has left only to undo,
or where that is spot. The rate on a rung is the measured one where the job has run there, else the plan's,
slower by as much as training was slower than planned (escalation.py).
"""

from collections.abc import Iterator
from dataclasses import replace
from math import exp, log
from typing import Literal

from daybreak.contract.formats import dollars, duration
from daybreak.contract.record_types import Plan, Rung
from daybreak.contract.units import HOUR_S
from daybreak.jobs import escalation
from daybreak.jobs.cost_tracker import usd_per_hour
from daybreak.jobs.escalation import PATIENCE_S, FallbackChoice, Sight, forecast
from daybreak.machines.startup import start_s

MOST_MOVES = 2
REPAYS = 3.0  # times what the restart costs
LEAST_SHARE = 0.1  # of the dollars or seconds that are left
SURE = 0.115  # deviation of the logarithm of a rate that is known well enough: a steady one of 15 s
OF_THE_JOB = 0.5  # of the logarithm by which training is faster than planned; the rest is the machine's
TRIAL_S = 600.0  # until a machine is known to be slow, and has done next to nothing


def choose(plan: Plan, sight: Sight) -> FallbackChoice:
    """Returns the rung to be on now: what is forced, else what pays."""
    forced = escalation.choose(plan, sight)
    stays = forced.rung is not None and forced.rung.rental == sight.rung.rental
    known = sight.rate is not None and sight.rate.error <= SURE
    if sight.state != "running" or not known or sight.num_moves >= MOST_MOVES:
        return forced
    if not stays and forced.name != "scale up":
        return forced
    return _undo(plan, sight) or (_step_down(plan, sight) if stays else None) or forced


def _undo(plan: Plan, sight: Sight) -> FallbackChoice | None:
    """Returns the rung before, where the move from it did not pay or hurt the loss; None to stay."""
    before = sight.before
    if before is None or before.rental not in sight.earlier or before.rental in sight.refused:
        return None
    if not _in_time(plan, sight, before) or _rest_usd(plan, sight, before) > sight.left_usd:
        return None
    costs = sight.to_save and usd_per_hour(sight.rung) > 0
    if sight.loss_rose:
        why = "the loss has risen since it left there"
    elif costs and _pays(plan, sight, before):
        why = f"the rest costs {_beside(plan, sight, before)} as measured on both"
    elif not costs and _is_faster(plan, sight, before):
        there, here = (_rest_s(plan, sight, rung) for rung in (before, sight.rung))
        why = f"the rest takes {duration(there)} there and {duration(here)} here, as measured on both"
    else:
        return None
    return _moved(plan, sight, before, "undo", why)


def _step_down(plan: Plan, sight: Sight) -> FallbackChoice | None:
    """Returns the rung on which the rest costs least, where that pays for the restart; None to stay."""
    if not sight.to_save:
        return None
    paying = [
        rung
        for rung in _others(plan, sight)
        if _pays(plan, sight, rung)
        and _in_time(plan, sight, rung)
        and _could_return(plan, sight)
        and _would_stay(plan, sight, rung)
    ]
    if not paying:
        return None
    best = min(paying, key=lambda rung: _rest_usd(plan, sight, rung))
    cause = "it is ahead"
    if sight.device_use is not None and escalation.waits_for_samples(plan, sight, best):
        cause = f"its device waits for samples {1 - sight.device_use:.0%} of the time"
    why = f"{cause}: the rest takes {duration(_rest_s(plan, sight, best))} there, of "
    why += f"{duration(sight.deadline - sight.now)} left, and costs {_beside(plan, sight, best)}"
    return _moved(plan, sight, best, "step down", why)


def _others(plan: Plan, sight: Sight) -> Iterator[Rung]:
    """Yields the rungs that the job has not run on, or that are spot, and that were not refused of late."""
    left = (rental for rental in sight.left if not rental.is_spot)
    out = {sight.rung.rental, *left, *sight.refused}
    for rung in (*escalation.rungs(plan, sight), *plan.cheaper):
        if rung.rental not in out:
            yield rung


def _in_time(plan: Plan, sight: Sight, rung: Rung) -> bool:
    return forecast(plan, sight, rung).chance >= sight.confidence


def _could_return(plan: Plan, sight: Sight) -> bool:
    """Returns whether this rung would still be in time if the other one did not come, or were slow."""
    lost_s = PATIENCE_S + TRIAL_S + 2 * start_s(plan)
    return _in_time(plan, replace(sight, deadline=sight.deadline - lost_s), sight.rung)


def _would_stay(plan: Plan, sight: Sight, rung: Rung) -> bool:
    """Returns whether nothing would force the job off that rung at once."""
    rates = {**sight.earlier, sight.rung.rental: sight.rate} if sight.rate else sight.earlier
    there = replace(
        sight, rung=rung, state="running", since=sight.now, starting_s=start_s(plan), rate=None, earlier=rates
    )
    choice = escalation.choose(plan, there)
    return choice.rung is not None and choice.rung.rental == rung.rental


def _pays(plan: Plan, sight: Sight, rung: Rung) -> bool:
    """Returns whether the rest costs so much less there that the move repays its restart with a margin."""
    here_usd = _rest_usd(plan, sight, sight.rung)
    restart_usd = start_s(plan) * usd_per_hour(rung) / HOUR_S
    saved_usd = here_usd - _rest_usd(plan, sight, rung)
    return saved_usd > 0 and saved_usd >= max(REPAYS * restart_usd, LEAST_SHARE * here_usd)


def _is_faster(plan: Plan, sight: Sight, rung: Rung) -> bool:
    here_s, there_s = (_rest_s(plan, sight, each) for each in (sight.rung, rung))
    return here_s - there_s >= max(REPAYS * start_s(plan), LEAST_SHARE * here_s)


def _rest_usd(plan: Plan, sight: Sight, rung: Rung) -> float:
    """Returns what the rest is expected to cost on a rung, its start included."""
    return _rest_s(plan, sight, rung) * usd_per_hour(rung) / HOUR_S


def _rest_s(plan: Plan, sight: Sight, rung: Rung) -> float:
    """Returns the expected seconds; elsewhere a job is faster than planned by the share `OF_THE_JOB`."""
    rest_s = forecast(plan, sight, rung).rest_s
    measured = rung.rental == sight.rung.rental or rung.rental in sight.earlier
    if measured or escalation.waits_for_samples(plan, sight, rung):
        return rest_s
    of_the_job = exp(OF_THE_JOB * log(escalation.faster(plan, sight)))
    return start_s(plan) + (rest_s - start_s(plan)) / of_the_job


def _beside(plan: Plan, sight: Sight, rung: Rung) -> str:
    there_usd, here_usd = (_rest_usd(plan, sight, each) for each in (rung, sight.rung))
    return f"{dollars(there_usd)} there and {dollars(here_usd)} on {sight.rung.rental},"


def _moved(
    plan: Plan, sight: Sight, rung: Rung, name: Literal["step down", "undo"], why: str
) -> FallbackChoice:
    more_usd = _rest_usd(plan, sight, rung) - _rest_usd(plan, sight, sight.rung)
    return FallbackChoice(
        rung=rung, name=name, usd=more_usd, reason=f"to {rung.rental}, as {why.rstrip(',')}"
    )
