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
spot if it can be bought elsewhere. If training was slower than planned on one machine, other machines are
assumed to be slower by the same factor. Exceptions are machines that the job has run on, with a measured
rate, and machines with a slower device where the present device is used less than `LOW_USE`: samples come as
fast there, so an update takes longer only by the device's own time (`_by_use`). Where the batch may grow, a
rung is as fast as planned for the batches that the trainer would take there (`_growth`). Optional moves:
moves.py.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import exp, inf, log
from typing import Any, Literal

from daybreak import hooks
from daybreak.contract.backend import TICK_S
from daybreak.contract.record_types import Plan, Rental, Rung
from daybreak.contract.units import HOUR_S
from daybreak.jobs.cost_tracker import usd_per_hour
from daybreak.jobs.heartbeats import LOW_USE
from daybreak.jobs.outlook import NORMAL, Z90, Outlook, Rate, Risk, outlook, weighed
from daybreak.jobs.submissions import JobAttempt
from daybreak.machines.losses import mean_time_to_loss_s
from daybreak.machines.startup import QUEUE, start_s
from daybreak.training.batch_schedule import best_size
from daybreak.training.learning_rate import MARGIN

Standing = Literal["none", "queued", "running", "refused"]  # refused: a few minutes ago at most
PATIENCE_S = 2 * TICK_S
FORGET_S = HOUR_S  # after which a refusal no longer counts
EVEN = 0.5  # chance of being in time, or not
LEAST_SPREAD = 0.02  # lower bound of the standard deviation of the logarithm of a time


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What is known of a job when the launcher is called; times in seconds since the same moment."""

    now: float
    deadline: float
    confidence: float  # the required chance that it is done in time
    left_usd: float
    decay: float  # share of the samples over which the rate decays
    rung: Rung  # that it is on, was on last, or starts on
    state: Standing
    since: float  # when it entered that state
    seen: int = 0  # samples trained on, by the last heartbeat
    starting_s: float = 0.0  # until its machines have started
    rate: Rate | None = None  # measured on this rung
    device_use: float | None = (
        None  # share of the time that its device did not wait for samples, measured there
    )
    batch_size: int = 0  # of its newest update; 0: none is known
    largest_batch_size: int = 0  # of all its updates
    noise_scale: float | None = None  # of its gradients; None: too few measurements
    attempts: Sequence[JobAttempt] = ()  # all of the job
    refused: Mapping[Rental, float] = field(default_factory=dict)  # when each was last refused
    earlier: Mapping[Rental, Rate] = field(default_factory=dict)  # measured on rungs that it was on before
    left: Collection[Rental] = ()  # that it has run on before
    before: Rung | None = None  # the last of them, if it was left to scale up or to step down
    num_moves: int = 0  # that nothing forced (moves.py)
    to_save: bool = False  # cheaper machines are looked for
    loss_rose: bool = False  # since it left `before`


@dataclass(frozen=True, kw_only=True)
class FallbackChoice:
    """The rung to be on; None: wait. If it is a change of rung, its name, cost and reason, too."""

    rung: Rung | None
    name: Literal["", "on-demand", "next rung", "scale up", "step down", "undo"] = ""
    usd: float = 0.0
    reason: str = ""


def first(plan: Plan, *, train_until: datetime, confidence: float) -> Rung:
    """Returns what the plan itself names, as a rung."""
    spread = max(LEAST_SPREAD, log(plan.interval[1] / plan.expected_s) / Z90 if plan.expected_s else 0.0)
    longest_s = plan.expected_s * exp(NORMAL.inv_cdf(max(0.5, confidence)) * spread)
    return Rung(
        rental=plan.rental,
        expected_s=plan.expected_s,
        expected_usd=plan.expected_usd,
        latest_start=train_until - timedelta(seconds=longest_s),
        usd_per_hour=usd_per_hour(plan) / plan.rental.num_machines,
        gpus=plan.gpus,
        micro_batch_size=plan.micro_batch_size,
        sizes=plan.sizes,
    )


def choose(plan: Plan, sight: Sight) -> FallbackChoice:
    """Returns the rung to be on now."""
    if _is_in_vain(plan, sight):
        refused = {**sight.refused, sight.rung.rental: sight.now}
        moved = _choose(plan, replace(sight, state="refused", refused=refused))
        if moved.rung and moved.rung.rental != sight.rung.rental:
            return moved
    return _choose(plan, sight)


def _is_in_vain(plan: Plan, sight: Sight) -> bool:
    """Whether machines without a queue of their own were waited for longer than they take to come."""
    usual_s = sum(portion.expected_s for portion in plan.portions if portion.name == QUEUE)
    waits = sight.state == "queued" and not sight.rung.rental.is_queued
    return waits and sight.now - sight.since >= max(PATIENCE_S, 3 * usual_s)


def _choose(plan: Plan, sight: Sight) -> FallbackChoice:
    here = sight.rung
    steering = _steering(plan, sight)
    best = steering.best() if steering else here
    other = _elsewhere(plan, sight, best, steering)
    if other:
        reason = (
            f"{here.rental} cannot be had; {other.rental} takes {_rest_s(plan, sight, other):,.0f} s at most"
        )
        return FallbackChoice(rung=other, name="next rung", usd=_more_usd(plan, sight, other), reason=reason)
    if best is None or (sight.state in ("none", "refused") and is_fresh(sight, best.rental)):
        return FallbackChoice(rung=None)
    if not _can_be_bought(plan, sight, best):
        faster = _up(plan, sight, best)
        if faster:
            chance = forecast(plan, sight, best).chance
            reason = f"{best.rental} would be done in time with a chance of {chance:.0%}"
            if sight.state == "queued":
                reason = f"{best.rental} was waited for {sight.now - sight.since:,.0f} s"
            reason += f"; {faster.rental} takes {_rest_s(plan, sight, faster):,.0f} s at most"
            name: Literal["next rung", "scale up"] = "next rung" if sight.state == "queued" else "scale up"
            return FallbackChoice(rung=faster, name=name, usd=_more_usd(plan, sight, faster), reason=reason)
    if best.rental == here.rental or best.rental.strategy != "on-demand":
        return FallbackChoice(rung=best)
    return FallbackChoice(
        rung=best,
        name="on-demand",
        usd=_more_usd(plan, sight, best),
        reason=f"another loss of spot, or a longer wait for it, could not be borne: the rest takes "
        f"{_rest_s(plan, sight, best):,.0f} s at most, and {sight.deadline - sight.now:,.0f} s are left",
    )


def forecast(plan: Plan, sight: Sight, rung: Rung) -> Outlook:
    """Forecasts when the job is done on a rung, from now on."""
    as_planned = rung.rental == sight.rung.rental and plan.rental.is_spot == rung.rental.is_spot
    every_s = plan.mean_time_to_loss_s if as_planned else None
    if every_s is None:
        every_s = mean_time_to_loss_s(rung.rental)
    return outlook(
        _rate(plan, sight, rung),
        todo=plan.num_samples - sight.seen,
        left_s=sight.deadline - sight.now,
        start_s=_before_s(plan, sight, rung),
        risk=Risk(mean_time_to_loss_s=every_s, restart_s=start_s(plan), every_s=plan.checkpoint_every_s),
    )


def _rate(plan: Plan, sight: Sight, rung: Rung) -> Rate:
    """Returns samples per second on a rung, from the plan and the measurement."""
    planned = Rate(samples_per_s=_planned(plan, sight, rung), error=_spread(sight, rung))
    if rung.rental == sight.rung.rental:
        return weighed(planned, sight.rate)
    if rung.rental in sight.earlier:
        return weighed(planned, sight.earlier[rung.rental])
    return replace(planned, samples_per_s=planned.samples_per_s / _slower(plan, sight, rung))


def _before_s(plan: Plan, sight: Sight, rung: Rung) -> float:
    """Returns the seconds until training can go on there."""
    runs = sight.state == "running" and rung.rental == sight.rung.rental
    return sight.starting_s if runs else start_s(plan)


def _steering(plan: Plan, sight: Sight) -> Any:
    """Returns what chooses among spot machines, those on demand, and waiting; None for a plan not on spot."""
    made = hooks.functions("steering") if plan.rental.is_spot else ()
    return next((steering(plan, sight) for steering in made), None)


def _elsewhere(plan: Plan, sight: Sight, best: Rung | None, steering: Any) -> Rung | None:
    """Returns the rung to request instead of refused machines; None to stay, or to wait."""
    if sight.state not in ("none", "refused"):
        return None
    if steering and sight.rung.rental.is_spot and sight.rung.rental in sight.refused:
        spot: Rung | None = steering.elsewhere()
        if spot:
            return spot
    wanted = best or sight.rung  # best is None: spot is waited for
    if wanted.rental not in sight.refused:
        return None
    others = [rung for rung in rungs(plan, sight) if rung.rental != wanted.rental]
    if _can_be_bought(plan, sight, wanted):  # which the job moves to in time
        others = [rung for rung in others if rung.rental.is_spot]
    kept = [rung for rung in others if keeps(plan, sight, rung)]
    if (
        not kept and forecast(plan, sight, wanted).chance < sight.confidence
    ):  # then the largest share of the work first
        kept = sorted(others, key=lambda rung: -_share(plan, sight, rung))
    else:  # cheapest first, and on demand is not left for spot
        bought = not wanted.rental.is_spot
        kept.sort(key=lambda rung: (bought and rung.rental.is_spot, rest_usd(plan, sight, rung)))
    unasked = [rung for rung in kept if rung.rental not in sight.refused]
    if unasked:
        return unasked[0]
    cheapest_first = sorted([wanted, *kept], key=lambda rung: rest_usd(plan, sight, rung))
    oldest = min(cheapest_first, key=lambda rung: sight.refused[rung.rental])
    return None if oldest.rental == wanted.rental or is_fresh(sight, oldest.rental) else oldest


def is_fresh(sight: Sight, rental: Rental) -> bool:
    """Whether it was refused so short a time ago that it is not asked for again yet."""
    return sight.now - sight.refused.get(rental, -inf) < PATIENCE_S


def _up(plan: Plan, sight: Sight, best: Rung) -> Rung | None:
    """Returns the next rung, if this is the last moment to take it; None to stay."""
    queued = sight.state == "queued"
    if sight.state == "refused" or (queued and sight.now - sight.since < PATIENCE_S):
        return None
    late = forecast(plan, sight, best).chance < sight.confidence
    if not (late or queued):
        return None
    out = {best.rental, *sight.refused}
    later = [rung for rung in rungs(plan, sight) if rung.rental not in out]
    later = [rung for rung in later if best.rental.is_spot or not rung.rental.is_spot]
    later = [rung for rung in later if queued or rung.expected_s < best.expected_s]
    left_s = sight.deadline - sight.now
    in_time = [rung for rung in later if keeps(plan, sight, rung)]
    if in_time:
        # Each of the rungs to wait for later gets as long.
        patience_s = PATIENCE_S * (len(in_time) if queued else 1)
        last = left_s - min(_rest_s(plan, sight, rung) for rung in in_time) < patience_s
        if last or _finishes_early(plan, sight, best):
            return min(in_time, key=lambda rung: rest_usd(plan, sight, rung))
        return None
    return _best_effort(plan, sight, later, best) if late and later else None


def _best_effort(plan: Plan, sight: Sight, later: Sequence[Rung], best: Rung) -> Rung | None:
    """Returns the rung to take where none is sure to be in time; None to stay."""
    if sight.state == "queued":  # part of the work, on what is available
        return max(later, key=lambda rung: _share(plan, sight, rung))
    paid = [rung for rung in later if rest_usd(plan, sight, rung) <= sight.left_usd]
    if not paid or sight.rate is None or forecast(plan, sight, best).chance >= EVEN:
        return None
    surest = max(paid, key=lambda rung: forecast(plan, sight, rung).chance)
    return surest if forecast(plan, sight, surest).chance >= EVEN else None


def keeps(plan: Plan, sight: Sight, rung: Rung) -> bool:
    """Whether the rest fits there into the time and the budget that are left."""
    in_time = _rest_s(plan, sight, rung) <= sight.deadline - sight.now
    return in_time and rest_usd(plan, sight, rung) <= sight.left_usd


def _finishes_early(plan: Plan, sight: Sight, rung: Rung) -> bool:
    """Whether the trainer will soon let the rate decay for the deadline, as `trainer._end_in` does."""
    left_s = sight.deadline - sight.now - _before_s(plan, sight, rung) - PATIENCE_S
    # Twice the trainer's margin, as the trainer uses the rate of the last second, which is rarely the mean.
    reach = max(0.0, (1 - 2 * MARGIN) * left_s * _rate(plan, sight, rung).samples_per_s)
    end = sight.seen + reach
    return end < plan.num_samples and reach <= sight.decay * end


def _share(plan: Plan, sight: Sight, rung: Rung) -> float:
    """Returns the share of the rest that time and money suffice for on a rung."""
    start, rest_s = start_s(plan), _rest_s(plan, sight, rung, at_most=False)
    time_s = min(sight.deadline - sight.now, sight.left_usd / max(usd_per_hour(rung), 1e-9) * HOUR_S)
    return (time_s - start) / max(rest_s - start, 1e-9)


def _can_be_bought(plan: Plan, sight: Sight, rung: Rung) -> bool:
    """Returns whether a rung is on spot and the plan has the same machines on demand."""
    on_demand = rung.rental.on_demand
    return rung.rental.is_spot and any(each.rental == on_demand for each in rungs(plan, sight))


def rungs(plan: Plan, sight: Sight) -> Sequence[Rung]:
    """Returns the plan's own machines and its fallbacks, without machines that are queued for."""
    until = datetime.fromtimestamp(sight.deadline, UTC)
    ways = (first(plan, train_until=until, confidence=sight.confidence), *plan.ladder)
    return [rung for rung in ways if not rung.rental.is_queued]


def named(plan: Plan, sight: Sight, rung: Rung) -> Plan:
    """Returns the plan as if it named that rung, and had the others to fall back on."""
    return replace(
        plan,
        rental=rung.rental,
        expected_s=rung.expected_s,
        expected_usd=rung.expected_usd,
        usd_per_hour=usd_per_hour(rung) / rung.rental.num_machines,
        ladder=tuple(other for other in rungs(plan, sight) if other.rental != rung.rental),
    )


def _planned(plan: Plan, sight: Sight, rung: Rung) -> float:
    """Returns the samples per second that the plan expects on a rung, in batches as there are now."""
    in_planned = plan.num_samples / max(rung.expected_s - start_s(plan), rung.expected_s / 10, 1e-9)
    return in_planned * _growth(sight, rung)


def _growth(sight: Sight, rung: Rung) -> float:
    """Returns how many times the samples per second of the planned batch size a rung has in today's.

    Where the job runs, that is the size that was measured, elsewhere what the trainer would choose there
    (batch_schedule.py), but none that it has not reached yet. 1 where sizes are not planned or not known.
    """
    times = {each.batch_size: each.update_s / each.batch_size for each in rung.sizes}
    size = sight.batch_size
    if (rung.rental != sight.rung.rental or not sight.rate) and sight.noise_scale is not None:
        most = sight.largest_batch_size
        size = best_size(rung.sizes, size=size, noise_scale=sight.noise_scale, most=most)
    return times[rung.sizes[0].batch_size] / times[size] if size in times else 1.0


def _slower(plan: Plan, sight: Sight, rung: Rung) -> float:
    """Returns how many times longer than planned the samples take on a rung, by what was measured here.

    At least 1, but where the device here waits for samples.
    """
    planned = Rate(samples_per_s=_planned(plan, sight, sight.rung), error=_spread(sight, sight.rung))
    here = planned.samples_per_s / weighed(planned, sight.rate).samples_per_s
    there = _by_use(plan, sight, rung)
    return max(1.0, here) if there is None else here * there


def waits_for_samples(plan: Plan, sight: Sight, rung: Rung) -> bool:
    """Returns whether a rung slows a job down less than planned, as its device here waits for samples."""
    return _by_use(plan, sight, rung) is not None


def _by_use(plan: Plan, sight: Sight, rung: Rung) -> float | None:
    """Returns by how much less a slower rung slows training down than planned, 1 or less.

    With a share u of the time that the device is used here, and a device r < 1 times as fast there, an update
    takes 1 - u + u / r times as long, and max(1, u / r) times where loaders read meanwhile, not 1 / r times.
    None where the device is used enough, the rung is faster, or nothing was measured.
    """
    use, rate = sight.device_use, sight.rate
    faster = _planned(plan, sight, rung) / _planned(plan, sight, sight.rung)
    if use is None or rate is None or use >= LOW_USE or faster >= 1:
        return None
    longer = max(1.0, use / faster) if plan.tuning.num_loaders else 1 - use + use / faster
    return longer * faster


def faster(plan: Plan, sight: Sight) -> float:
    """Returns how many times faster than planned the samples are trained on, as measured; at least 1."""
    planned = Rate(samples_per_s=_planned(plan, sight, sight.rung), error=_spread(sight, sight.rung))
    return max(1.0, weighed(planned, sight.rate).samples_per_s / planned.samples_per_s)


def _longest_s(sight: Sight, rung: Rung) -> float:
    """Returns the seconds that the whole job takes on a rung at most, by its latest start."""
    return max(rung.expected_s, sight.deadline - rung.latest_start.timestamp())


def _spread(sight: Sight, rung: Rung) -> float:
    """Returns the standard deviation of the logarithm of the time on a rung, by its latest start."""
    most = log(_longest_s(sight, rung) / rung.expected_s) if rung.expected_s else 0.0
    return max(LEAST_SPREAD, most / max(0.5, NORMAL.inv_cdf(sight.confidence)))


def _rest_s(plan: Plan, sight: Sight, rung: Rung, *, at_most: bool = True) -> float:
    """Returns how long the rest takes on a rung that is started now, in seconds."""
    if rung.rental in sight.earlier and rung.rental != sight.rung.rental:
        rate = sight.earlier[rung.rental]
        work_s = (plan.num_samples - sight.seen) / rate.samples_per_s
        z = NORMAL.inv_cdf(max(0.5, sight.confidence)) if at_most else 0.0
        return start_s(plan) + work_s * exp(z * rate.spread(work_s))
    whole_s = _longest_s(sight, rung) if at_most else rung.expected_s
    share = 1 - sight.seen / plan.num_samples
    before_s = min(start_s(plan), whole_s)
    return before_s + (whole_s - before_s) * share * _slower(plan, sight, rung) / _growth(sight, rung)


def rest_usd(plan: Plan, sight: Sight, rung: Rung) -> float:
    """Returns the dollars that the rest is expected to cost on a rung that is started now."""
    return _rest_s(plan, sight, rung, at_most=False) * usd_per_hour(rung) / HOUR_S


def _more_usd(plan: Plan, sight: Sight, rung: Rung) -> float:
    """Returns the extra dollars of finishing on `rung` over finishing on the current one."""
    return rest_usd(plan, sight, rung) - rest_usd(plan, sight, sight.rung)
