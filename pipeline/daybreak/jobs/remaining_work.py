"""Forecasts time and cost of the rest of a job on each machine of its plan.

If training was slower than planned on one machine, other machines are assumed to be slower by the same
factor. Exceptions are machines that the job has run on, with a measured rate, and machines with a slower
device where the present device is used less than `LOW_USE`: samples come as fast there, so an update takes
longer only by the device's own time (`_by_use`). Where the batch may grow, a rung is as fast as planned for
the batches that the trainer would take there (`_growth`).
"""

from dataclasses import replace
from math import exp, log

from daybreak.contract.record_types import Rung
from daybreak.contract.units import HOUR_S
from daybreak.jobs.cost_tracker import usd_per_hour
from daybreak.jobs.heartbeats import LOW_USE
from daybreak.jobs.observed_job import LEAST_SPREAD, ObservedJob
from daybreak.jobs.outlook import NORMAL, Outlook, Rate, Risk, outlook, weighed
from daybreak.machines.losses import mean_time_to_loss_s
from daybreak.machines.startup import start_s
from daybreak.training.batch_schedule import best_size


def forecast(job: ObservedJob, rung: Rung) -> Outlook:
    """Forecasts when the job is done on a rung, from now on."""
    as_planned = rung.rental == job.rung.rental and job.plan.rental.is_spot == rung.rental.is_spot
    every_s = job.plan.mean_time_to_loss_s if as_planned else None
    if every_s is None:
        every_s = mean_time_to_loss_s(rung.rental)
    return outlook(
        rate_on(job, rung),
        todo=job.plan.num_samples - job.seen,
        left_s=job.deadline - job.now,
        start_s=startup_s(job, rung),
        risk=Risk(
            mean_time_to_loss_s=every_s, restart_s=start_s(job.plan), every_s=job.plan.checkpoint_every_s
        ),
    )


def faster(job: ObservedJob) -> float:
    """Returns how many times faster than planned the samples are trained on, as measured; at least 1."""
    planned = Rate(samples_per_s=_planned(job, job.rung), error=_spread(job, job.rung))
    return max(1.0, weighed(planned, job.rate).samples_per_s / planned.samples_per_s)


def waits_for_samples(job: ObservedJob, rung: Rung) -> bool:
    """Returns whether a rung slows a job down less than planned, as its device here waits for samples."""
    return _by_use(job, rung) is not None


def keeps(job: ObservedJob, rung: Rung) -> bool:
    """Whether the rest fits there into the time and the budget that are left."""
    in_time = remaining_s(job, rung) <= job.deadline - job.now
    return in_time and remaining_usd(job, rung) <= job.left_usd


def affordable_share(job: ObservedJob, rung: Rung) -> float:
    """Returns the share of the rest that time and money suffice for on a rung."""
    start, rest_s = start_s(job.plan), remaining_s(job, rung, at_most=False)
    time_s = min(job.deadline - job.now, job.left_usd / max(usd_per_hour(rung), 1e-9) * HOUR_S)
    return (time_s - start) / max(rest_s - start, 1e-9)


def remaining_s(job: ObservedJob, rung: Rung, *, at_most: bool = True) -> float:
    """Returns how long the rest takes on a rung that is started now, in seconds."""
    if rung.rental in job.earlier and rung.rental != job.rung.rental:
        rate = job.earlier[rung.rental]
        work_s = (job.plan.num_samples - job.seen) / rate.samples_per_s
        z = NORMAL.inv_cdf(max(0.5, job.confidence)) if at_most else 0.0
        return start_s(job.plan) + work_s * exp(z * rate.spread(work_s))
    whole_s = _longest_s(job, rung) if at_most else rung.expected_s
    share = 1 - job.seen / job.plan.num_samples
    before_s = min(start_s(job.plan), whole_s)
    return before_s + (whole_s - before_s) * share * _slower(job, rung) / _growth(job, rung)


def remaining_usd(job: ObservedJob, rung: Rung) -> float:
    """Returns the dollars that the rest is expected to cost on a rung that is started now."""
    return remaining_s(job, rung, at_most=False) * usd_per_hour(rung) / HOUR_S


def extra_usd(job: ObservedJob, rung: Rung) -> float:
    """Returns the extra dollars of finishing on `rung` over finishing on the current one."""
    return remaining_usd(job, rung) - remaining_usd(job, job.rung)


def rate_on(job: ObservedJob, rung: Rung) -> Rate:
    """Returns samples per second on a rung, from the plan and the measurement."""
    planned = Rate(samples_per_s=_planned(job, rung), error=_spread(job, rung))
    if rung.rental == job.rung.rental:
        return weighed(planned, job.rate)
    if rung.rental in job.earlier:
        return weighed(planned, job.earlier[rung.rental])
    return replace(planned, samples_per_s=planned.samples_per_s / _slower(job, rung))


def startup_s(job: ObservedJob, rung: Rung) -> float:
    """Returns the seconds until training can go on there."""
    runs = job.state == "running" and rung.rental == job.rung.rental
    return job.starting_s if runs else start_s(job.plan)


def _planned(job: ObservedJob, rung: Rung) -> float:
    """Returns the samples per second that the plan expects on a rung, in batches as there are now."""
    in_planned = job.plan.num_samples / max(rung.expected_s - start_s(job.plan), rung.expected_s / 10, 1e-9)
    return in_planned * _growth(job, rung)


def _growth(job: ObservedJob, rung: Rung) -> float:
    """Returns how many times the samples per second of the planned batch size a rung has in today's.

    Where the job runs, that is the size that was measured, elsewhere what the trainer would choose there
    (batch_schedule.py), but none that it has not reached yet. 1 where sizes are not planned or not known.
    """
    times = {each.batch_size: each.update_s / each.batch_size for each in rung.sizes}
    size = job.batch_size
    if (rung.rental != job.rung.rental or not job.rate) and job.noise_scale is not None:
        most = job.largest_batch_size
        size = best_size(rung.sizes, size=size, noise_scale=job.noise_scale, most=most)
    return times[rung.sizes[0].batch_size] / times[size] if size in times else 1.0


def _slower(job: ObservedJob, rung: Rung) -> float:
    """Returns how many times longer than planned the samples take on a rung, by what was measured here.

    At least 1, but where the device here waits for samples.
    """
    planned = Rate(samples_per_s=_planned(job, job.rung), error=_spread(job, job.rung))
    here = planned.samples_per_s / weighed(planned, job.rate).samples_per_s
    there = _by_use(job, rung)
    return max(1.0, here) if there is None else here * there


def _by_use(job: ObservedJob, rung: Rung) -> float | None:
    """Returns by how much less a slower rung slows training down than planned, 1 or less.

    With a share u of the time that the device is used here, and a device r < 1 times as fast there, an update
    takes 1 - u + u / r times as long, and max(1, u / r) times where loaders read meanwhile, not 1 / r times.
    None where the device is used enough, the rung is faster, or nothing was measured.
    """
    use, rate = job.device_use, job.rate
    faster = _planned(job, rung) / _planned(job, job.rung)
    if use is None or rate is None or use >= LOW_USE or faster >= 1:
        return None
    longer = max(1.0, use / faster) if job.plan.tuning.num_loaders else 1 - use + use / faster
    return longer * faster


def _longest_s(job: ObservedJob, rung: Rung) -> float:
    """Returns the seconds that the whole job takes on a rung at most, by its latest start."""
    return max(rung.expected_s, job.deadline - rung.latest_start.timestamp())


def _spread(job: ObservedJob, rung: Rung) -> float:
    """Returns the standard deviation of the logarithm of the time on a rung, by its latest start."""
    most = log(_longest_s(job, rung) / rung.expected_s) if rung.expected_s else 0.0
    return max(LEAST_SPREAD, most / max(0.5, NORMAL.inv_cdf(job.confidence)))
