"""Computes how often machines are lost, what that costs, and how often to save.

Losses are taken as memoryless: one in the mean time of a machine, so n machines lose one n times as often.
`MEAN_TIME_TO_PREEMPTION_S` is the maximum-likelihood mean of an exponential lifetime with censoring, total
hours lived / number of preemptions, over 1,442 preemptible machines of 2019 (kadupitiya/goog-preemption-data,
of which 725 were stopped by their users and count as censored). Where nights have seen how long spot machines
live, the extension `spot` says it instead.
"""

from dataclasses import dataclass
from math import sqrt

from daybreak.contract.record_parts import Rental
from daybreak.contract.units import HOUR_S

MEAN_TIME_TO_PREEMPTION_S = 16.9 * HOUR_S
# Meta's Llama 3 report: 419 unexpected interruptions in 54 days on 16,384 devices, per machine of 8.
MEAN_TIME_TO_FAILURE_S = 54 * 24 * HOUR_S * 16_384 / 8 / 419
# One's own machine is also rebooted, filled up and interrupted by people: about once a day.
MEAN_TIME_TO_INTERRUPTION_S = 24 * HOUR_S


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Share of time lost on top of the work, and the standard deviation of what is lost in seconds."""

    share: float
    deviation_s: float


def mean_time_to_loss_s(rental: Rental) -> float:
    """Returns the mean seconds until one of the machines is lost.

    >>> two = Rental(machine="g2-standard-8", num_machines=2, region="us-central1", strategy="spot")
    >>> mean_time_to_loss_s(two) == MEAN_TIME_TO_PREEMPTION_S / 2
    True
    """
    one_s = MEAN_TIME_TO_INTERRUPTION_S if rental.is_local else MEAN_TIME_TO_FAILURE_S
    return (MEAN_TIME_TO_PREEMPTION_S if rental.is_spot else one_s) / rental.num_machines


def checkpoint_interval_s(*, save_s: float, mean_time_to_preemption_s: float) -> float:
    """Returns the time between checkpoints that loses least, in seconds.

    Saving too often wastes `save_s`, too rarely wastes half an interval per preemption; the sum
    is least at sqrt(2 * save_s * mean_time_to_preemption_s) (Young 1974).

    >>> round(checkpoint_interval_s(save_s=4, mean_time_to_preemption_s=7200))
    240
    """
    return sqrt(2 * save_s * mean_time_to_preemption_s)


def loss(
    *,
    work_s: float,
    save_s: float,
    every_s: float,
    restart_s: float,
    mean_time_to_preemption_s: float,
) -> Loss:
    """Returns what saving and preemptions add to `work_s` seconds of training.

    Each interval pays one save; each preemption pays a restart and half an interval of lost work. The
    number of preemptions in T seconds is Poisson with mean T / mean_time_to_preemption_s, and the
    lost work is uniform over an interval, so the variance is mean number * E[loss^2].

    >>> lost = loss(work_s=3600, save_s=4, every_s=240, restart_s=60, mean_time_to_preemption_s=7200)
    >>> round(lost.share, 4)
    0.0417
    """
    each_s = restart_s + every_s / 2
    square = restart_s**2 + restart_s * every_s + every_s**2 / 3
    number = work_s / mean_time_to_preemption_s
    return Loss(
        share=save_s / every_s + each_s / mean_time_to_preemption_s,
        deviation_s=sqrt(number * square),
    )
