"""Forecasts time and cost of the rest of a job on each machine of its plan.

If training was slower than planned on one machine, other machines are assumed to be slower by the same
factor. Exceptions are machines that the job has run on, with a measured rate, and machines with a slower
device where the present device is used less than `LOW_USE`: samples come as fast there, so an update takes
longer only by the device's own time (`_by_use`). Where the batch may grow, a placement is as fast as planned
for the batches that the trainer would take there (`_growth`).
"""

from dataclasses import replace
from math import exp, log

from daybreak.contract.record_parts import Placement
from daybreak.contract.units import HOUR_S
from daybreak.jobs.cost_tracker import usd_per_hour
from daybreak.jobs.heartbeats import LOW_USE
from daybreak.jobs.observed_job import LEAST_SPREAD, ObservedJob
from daybreak.jobs.outlook import NORMAL, Outlook, Rate, Risk, outlook, weighed
from daybreak.machines.losses import mean_time_to_loss_s
from daybreak.machines.startup import start_s
from daybreak.training.batch_schedule import best_size


def forecast(job: ObservedJob, placement: Placement) -> Outlook:
    """Forecasts when the job is done on a placement, from now on."""
    as_planned = (
        placement.rental == job.placement.rental and job.plan.rental.is_spot == placement.rental.is_spot
    )
    spot = job.plan.spot if as_planned else None
    every_s = spot.mean_time_to_loss_s if spot else mean_time_to_loss_s(placement.rental)
    return outlook(
        rate_on(job, placement),
        todo=job.num_samples - job.seen,
        left_s=job.deadline - job.now,
        start_s=startup_s(job, placement),
        risk=Risk(
            mean_time_to_loss_s=every_s, restart_s=start_s(job.plan), every_s=job.plan.checkpoint_every_s
        ),
    )


def faster(job: ObservedJob) -> float:
    """Returns how many times faster than planned the samples are trained on, as measured; at least 1."""
    planned = Rate(samples_per_s=_planned(job, job.placement), error=_spread(job, job.placement))
    return max(1.0, weighed(planned, job.rate).samples_per_s / planned.samples_per_s)


def waits_for_samples(job: ObservedJob, placement: Placement) -> bool:
    """Returns whether a placement is less slow than planned, as the present device waits for samples."""
    return _by_use(job, placement) is not None


def keeps(job: ObservedJob, placement: Placement) -> bool:
    """Whether the rest fits there into the time and the budget that are left."""
    in_time = remaining_s(job, placement) <= job.deadline - job.now
    return in_time and remaining_usd(job, placement) <= job.left_usd


def affordable_share(job: ObservedJob, placement: Placement) -> float:
    """Returns the share of the rest that time and money suffice for on a placement."""
    start, rest_s = start_s(job.plan), remaining_s(job, placement, at_most=False)
    time_s = min(job.deadline - job.now, job.left_usd / max(usd_per_hour(placement), 1e-9) * HOUR_S)
    return (time_s - start) / max(rest_s - start, 1e-9)


def remaining_s(job: ObservedJob, placement: Placement, *, at_most: bool = True) -> float:
    """Returns how long the rest takes on a placement that is started now, in seconds."""
    if placement.rental in job.earlier and placement.rental != job.placement.rental:
        rate = job.earlier[placement.rental]
        work_s = (job.num_samples - job.seen) / rate.samples_per_s
        z = NORMAL.inv_cdf(max(0.5, job.confidence)) if at_most else 0.0
        return start_s(job.plan) + work_s * exp(z * rate.spread(work_s))
    whole_s = _longest_s(job, placement) if at_most else placement.expected_s
    share = (job.num_samples - job.seen) / job.plan.num_samples
    before_s = min(start_s(job.plan), whole_s)
    return before_s + (whole_s - before_s) * share * _slower(job, placement) / _growth(job, placement)


def remaining_usd(job: ObservedJob, placement: Placement) -> float:
    """Returns the dollars that the rest is expected to cost on a placement that is started now."""
    return remaining_s(job, placement, at_most=False) * usd_per_hour(placement) / HOUR_S


def extra_usd(job: ObservedJob, placement: Placement) -> float:
    """Returns the extra dollars of finishing on `placement` over finishing on the current one."""
    return remaining_usd(job, placement) - remaining_usd(job, job.placement)


def rate_on(job: ObservedJob, placement: Placement) -> Rate:
    """Returns samples per second on a placement, from the plan and the measurement."""
    planned = Rate(samples_per_s=_planned(job, placement), error=_spread(job, placement))
    if placement.rental == job.placement.rental:
        return weighed(planned, job.rate)
    if placement.rental in job.earlier:
        return weighed(planned, job.earlier[placement.rental])
    return replace(planned, samples_per_s=planned.samples_per_s / _slower(job, placement))


def startup_s(job: ObservedJob, placement: Placement) -> float:
    """Returns the seconds until training can go on there."""
    runs = job.state == "running" and placement.rental == job.placement.rental
    return job.starting_s if runs else start_s(job.plan)


def _planned(job: ObservedJob, placement: Placement) -> float:
    """Returns the samples per second that the plan expects on a placement, in batches as there are now."""
    in_planned = job.plan.num_samples / max(
        placement.expected_s - start_s(job.plan), placement.expected_s / 10, 1e-9
    )
    return in_planned * _growth(job, placement)


def _growth(job: ObservedJob, placement: Placement) -> float:
    """Returns how many times the samples per second of the planned batch size a placement has in today's.

    Where the job runs, that is the size that was measured, elsewhere what the trainer would choose there
    (batch_schedule.py), but none that it has not reached yet. 1 where sizes are not planned or not known.
    """
    times = {each.batch_size: each.update_s / each.batch_size for each in placement.sizes}
    size = job.batch_size
    if (placement.rental != job.placement.rental or not job.rate) and job.noise_scale is not None:
        most = job.largest_batch_size
        size = best_size(placement.sizes, size=size, noise_scale=job.noise_scale, most=most)
    return times[placement.sizes[0].batch_size] / times[size] if size in times else 1.0


def _slower(job: ObservedJob, placement: Placement) -> float:
    """Returns how many times longer than planned the samples take on a placement, by what was measured here.

    While all machines were there: that some are gone slows no other placement. At least 1, but where the
    device here waits for samples.
    """
    planned = Rate(samples_per_s=_planned(job, job.placement), error=_spread(job, job.placement))
    here = planned.samples_per_s / weighed(planned, job.whole_rate or job.rate).samples_per_s
    there = _by_use(job, placement)
    return max(1.0, here) if there is None else here * there


def _by_use(job: ObservedJob, placement: Placement) -> float | None:
    """Returns by how much less a slower placement slows training down than planned, 1 or less.

    With a share u of the time that the device is used here, and a device r < 1 times as fast there, an update
    takes 1 - u + u / r times as long, and max(1, u / r) times where loaders read meanwhile, not 1 / r times.
    None where the device is used enough, the placement is faster, or nothing was measured.
    """
    use, rate = job.device_use, job.rate
    faster = _planned(job, placement) / _planned(job, job.placement)
    if use is None or rate is None or use >= LOW_USE or faster >= 1:
        return None
    longer = max(1.0, use / faster) if job.plan.tuning.num_loaders else 1 - use + use / faster
    return longer * faster


def _longest_s(job: ObservedJob, placement: Placement) -> float:
    """Returns the seconds that the whole job takes on a placement at most, by its latest start."""
    return max(placement.expected_s, job.deadline - placement.latest_start.timestamp())


def _spread(job: ObservedJob, placement: Placement) -> float:
    """Returns the standard deviation of the logarithm of the time on a placement, by its latest start."""
    most = log(_longest_s(job, placement) / placement.expected_s) if placement.expected_s else 0.0
    return max(LEAST_SPREAD, most / max(0.5, NORMAL.inv_cdf(job.confidence)))
