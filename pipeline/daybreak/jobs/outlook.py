"""Forecasts when training is done, and the chance that it is in time, from the heartbeats and the plan.

The time left is `todo / rate`, plus what losses of machines will cost, and is modelled as lognormal. The
rate is the mean over the heartbeats of the machines in use. Its error has three parts:

    error     of the mean so far: deviation of the means of blocks / sqrt(number of blocks), since neighbours
              are correlated (method of batch means), for the number of blocks in `BLOCKS` with the most error
    noise     still to come: the same deviation / sqrt(number of such blocks in the rest)
    doubt     whether the machine stays as fast: `DOUBT` at first, less with the root of the time measured

The plan's expectation is a second measurement, with the spread of its interval, weighted by the inverse of
the variance; where both disagree by more than that spread, the difference is taken as the plan's error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, sqrt
from statistics import NormalDist, stdev

from daybreak.machines.losses import loss
from daybreak.training.recipe import Progress

NORMAL = NormalDist()
Z90 = NORMAL.inv_cdf(0.95)  # half-width of a 90 % interval, in standard deviations
DOUBT = 0.2  # share of the throughput, before it is measured; less where earlier nights measured it
BLOCKS = (4, 6, 8, 16)
SOME_S = 120.0  # of measuring halve the doubt, four times as much halves it again
GAP = 1.5  # times the span of a heartbeat; a longer gap means that machines were lost in between


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Samples per second, with standard deviations of its logarithm."""

    samples_per_s: float
    error: float  # of the mean
    noise: float = 0.0  # of a second to come; it falls with the root of how many come

    def spread(self, horizon_s: float) -> float:
        """Returns the standard deviation of the mean rate over the next `horizon_s` seconds."""
        return sqrt(self.error**2 + self.noise**2 / max(horizon_s, 1.0))


@dataclass(frozen=True, kw_only=True)
class Risk:
    """How often machines are lost, and the time that each loss costs."""

    mean_time_to_loss_s: float
    restart_s: float
    every_s: float  # between checkpoints


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """How long the rest takes: the median, the 90 % interval, and the chance that it is in time."""

    rest_s: float
    interval: tuple[float, float]
    chance: float


def measured(beats: Sequence[Progress]) -> Rate | None:
    """Returns the rate by the heartbeats of one kind of machines; None before two of them."""
    steps = [
        (b.seen - a.seen, (b.time - a.time).total_seconds(), b.samples_per_s) for a, b in pairwise(beats)
    ]
    whole = [(n, s) for n, s, rate in steps if n > 0 and 0 < s <= GAP * n / max(rate, 1e-12)]
    if not whole:
        return None
    ran_s = sum(s for _, s in whole)
    rate = sum(n for n, _ in whole) / ran_s
    error = max(_error(whole, count) for count in BLOCKS)
    doubt = DOUBT / Z90 * sqrt(SOME_S / (SOME_S + ran_s))
    return Rate(samples_per_s=rate, error=sqrt(error**2 + doubt**2), noise=error * sqrt(ran_s))


def weighed(plan: Rate, observed: Rate | None) -> Rate:
    """Returns the mean of the plan's rate and the measured one, weighted by their precision."""
    if observed is None:
        return plan
    apart = log(observed.samples_per_s / plan.samples_per_s)
    precise = 1 / max(plan.error, abs(apart), 1e-6) ** 2, 1 / max(observed.error, 1e-6) ** 2
    share = precise[1] / sum(precise)
    return Rate(
        samples_per_s=plan.samples_per_s * exp(share * apart),
        error=sum(precise) ** -0.5,
        noise=observed.noise,
    )


def outlook(rate: Rate, *, todo: float, left_s: float, start_s: float, risk: Risk) -> Outlook:
    """Returns when `todo` samples are done, with `start_s` before the first and `left_s` to the deadline."""
    work_s = todo / rate.samples_per_s
    lost = loss(
        work_s=work_s,
        save_s=0.0,
        every_s=risk.every_s,
        restart_s=risk.restart_s,
        mean_time_to_preemption_s=risk.mean_time_to_loss_s,
    )
    rest_s = start_s + work_s * (1 + lost.share)
    if rest_s <= 0:
        return Outlook(rest_s=0.0, interval=(0.0, 0.0), chance=float(left_s >= 0))
    spread = max(1e-6, sqrt((work_s / rest_s * rate.spread(work_s)) ** 2 + (lost.deviation_s / rest_s) ** 2))
    return Outlook(
        rest_s=rest_s,
        interval=(rest_s * exp(-Z90 * spread), rest_s * exp(Z90 * spread)),
        chance=NORMAL.cdf(log(left_s / rest_s) / spread) if left_s > 0 else 0.0,
    )


def _error(steps: Sequence[tuple[int, float]], count: int) -> float:
    """Returns the standard deviation of the mean rate, from the means of `count` blocks."""
    if len(steps) < count:
        return 0.0
    means = [log(_rate(steps[i * len(steps) // count : (i + 1) * len(steps) // count])) for i in range(count)]
    return stdev(means) / sqrt(count)


def _rate(block: Sequence[tuple[int, float]]) -> float:
    return sum(n for n, _ in block) / sum(s for _, s in block)
