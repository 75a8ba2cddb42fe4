"""Predicts how long the first step takes: waiting for a machine, starting it, and pulling image and data.

The constants are medians observed on rented machines; each may take several times as long on a bad night, a
queue most of all, so the intervals are wide until nights have been observed: then all of them are multiplied
by the median ratio of those nights.

Several machines are asked for at once, and the first step waits for the slowest of them to start and to pull
the data: of n equal lognormal times, the one at the p-quantile of the largest is at p**(1/n) of each.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, hypot, log
from statistics import NormalDist, median
from typing import Literal

from daybreak.contract.machine import Machine
from daybreak.contract.record_types import Plan

Kind = Literal["local", "cpu", "gpu", "tpu"]

Z90 = NormalDist().inv_cdf(0.95)  # half-width of a 90 % interval, in standard deviations
PULL_BYTES_PER_S = 200e6  # arrays from a bucket
IMAGE_BYTES_PER_S = 100e6  # with unpacking
IMAGE_BYTES = {"local": 0.0, "cpu": 6e9, "gpu": 12e9, "tpu": 9e9}
QUEUE_S = {"local": 0.0, "cpu": 30.0, "gpu": 60.0, "tpu": 180.0}
BOOT_S = {"local": 8.0, "cpu": 90.0, "gpu": 120.0, "tpu": 150.0}  # machine, processes, imports
IN_RUN_S = 3.0  # from the start of the worker to its first step, which Training.elapsed_s includes
QUEUE, START, DATA = BEFORE_WORK = "queue", "start-up", "data"  # parts of an estimate
TWICE, FIVEFOLD = log(2.0) / Z90, log(5.0) / Z90  # spreads with 90 % within such a factor
RESTART_S = 840.0  # 95th percentile of a start: twice the median of the slowest kind, without data
PSEUDO_NIGHTS = 2  # nights of the prior, which differ by a factor of two


@dataclass(frozen=True, kw_only=True)
class StartupPart:
    """Seconds (median) of one thing that takes time, and the standard deviation of their logarithm."""

    seconds: float
    spread: float
    name: str = "training"  # or queue, start-up, data, all-reduce

    def times(self, factor: float) -> "StartupPart":
        """Returns this part `factor` times, with fully correlated delays."""
        return StartupPart(seconds=self.seconds * factor, spread=self.spread, name=self.name)


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Seconds (median) before the first step, and their spreads."""

    queue_s: float
    start_s: float  # machine, image, processes
    pull_s: float  # arrays
    queue_spread: float = FIVEFOLD
    spread: float = TWICE  # of the other two

    @property
    def seconds(self) -> float:
        """Returns the seconds of all parts."""
        return self.queue_s + self.start_s + self.pull_s

    @property
    def restart_s(self) -> float:
        """Returns the seconds from a preemption to the next step."""
        return self.seconds


def start_s(plan: Plan) -> float:
    """Returns how long a start is expected to take until training goes on, in seconds."""
    return sum(portion.expected_s for portion in plan.forecast.portions if portion.name in BEFORE_WORK)


def restart_s(plan: Plan) -> float:
    """Returns the 95th percentile of seconds from a start until work resumes, fetching the data included."""
    return max(RESTART_S, 2 * start_s(plan))


def kind_of(machine: Machine) -> Kind:
    """Returns the kind of a machine."""
    if machine.is_local:
        return "local"
    if machine.is_tpu:
        return "tpu"
    return "gpu" if machine.num_devices else "cpu"


def wait(machine: Machine, *, num_bytes: float, num_machines: int = 1, ratios: Sequence[float] = ()) -> Wait:
    """Returns the time before the first step, with `num_bytes` of arrays, of the slowest of the machines.

    `ratios` are the times of earlier nights with that machine, over what is expected without them.
    """
    return waits(machine, num_bytes=num_bytes, counts=(num_machines,), ratios=ratios)[0]


def waits(
    machine: Machine, *, num_bytes: float, counts: Sequence[int], ratios: Sequence[float] = ()
) -> list[Wait]:
    """Returns the time before the first step for each number of machines; see `wait`."""
    kind = kind_of(machine)
    factor, spread = typical(ratios)
    boot_s = factor * (BOOT_S[kind] + IMAGE_BYTES[kind] / IMAGE_BYTES_PER_S)
    pull_s = 0.0 if kind == "local" else factor * num_bytes / PULL_BYTES_PER_S
    return [
        Wait(
            queue_s=factor * QUEUE_S[kind],
            start_s=later * boot_s,
            pull_s=later * pull_s,
            queue_spread=spread if ratios else FIVEFOLD,
            spread=spread if ratios else spread_of_slowest,
        )
        for later, spread_of_slowest in map(slowest, counts)
    ]


def num_devices(names: str) -> int:
    """Returns how many devices are named, in the words of training/devices.py.

    >>> num_devices("4 x NVIDIA L4 + Tesla T4")
    5
    """
    counts = (re.match(r"(\d+) x ", each) for each in names.split(" + "))
    return sum(int(count[1]) if count else 1 for count in counts)


@cache
def slowest(num_machines: int) -> tuple[float, float]:
    """Returns the median of the slowest of `num_machines` starts, relative to one, and its spread (log).

    >>> [round(slowest(number)[0], 2) for number in (1, 2, 8, 32)]
    [1.0, 1.26, 1.79, 2.35]
    """
    middle, late = (NormalDist().inv_cdf(chance ** (1 / num_machines)) for chance in (0.5, 0.95))
    return exp(middle * TWICE), (late - middle) / Z90 * TWICE


def typical(took: Sequence[float]) -> tuple[float, float]:
    """Returns the median of what nights took, 1 without any, and the deviation of the next night's logarithm.

    The prior is `PSEUDO_NIGHTS` nights that differ by a factor of two. An outlier, such as a night that was
    stopped and resumed a day later, counts as off by a factor of five at most, so that it does not widen all
    later predictions.
    """
    logs = [log(each) for each in took]
    if not logs:
        return 1.0, FIVEFOLD
    middle, number = median(logs), len(logs)
    apart = (min(abs(each - middle), Z90 * FIVEFOLD) for each in logs)
    night = (
        (PSEUDO_NIGHTS * TWICE**2 + sum(each**2 for each in apart)) / (PSEUDO_NIGHTS + number - 1)
    ) ** 0.5
    return exp(middle), hypot(night, night / number**0.5)
