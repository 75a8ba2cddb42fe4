"""How long until the first step? Waiting for a machine, starting it, and bringing image and data to it.

Medians of what was seen of rented machines; each may take several times as long on a bad night, a queue most
of all, so their intervals are wide until nights have told: then all of it is taken as so many times longer as
the median of those nights was.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log
from statistics import NormalDist, median
from typing import Literal

from pipeline.contract.machine import Machine

Kind = Literal["local", "cpu", "gpu", "tpu"]

Z90 = NormalDist().inv_cdf(0.95)  # half-width of a 90 % interval, in standard deviations
PULL_BYTES_PER_S = 200e6  # arrays from a bucket
IMAGE_BYTES_PER_S = 100e6  # with unpacking
IMAGE_BYTES = {"local": 0.0, "cpu": 6e9, "gpu": 12e9, "tpu": 9e9}
QUEUE_S = {"local": 0.0, "cpu": 30.0, "gpu": 60.0, "tpu": 180.0}
BOOT_S = {"local": 8.0, "cpu": 90.0, "gpu": 120.0, "tpu": 150.0}  # machine, processes, imports
IN_RUN_S = 3.0  # from the start of the worker to its first step, which Training.elapsed_s has in it
QUEUE, START, DATA = BEFORE_WORK = "queue", "start-up", "data"  # parts of an estimate
TWICE, FIVEFOLD = log(2.0) / Z90, log(5.0) / Z90  # spreads of 90 % within such a factor
PSEUDO_NIGHTS = 2  # that differ by a factor of two, with which the doubt about nights to come begins


@dataclass(frozen=True, kw_only=True)
class Part:
    """Seconds (median) of one thing that takes time, and the standard deviation of their logarithm."""

    seconds: float
    spread: float
    name: str = "training"  # or queue, start-up, data, all-reduce

    def times(self, factor: float) -> "Part":
        """So many of it, as late together."""
        return Part(seconds=self.seconds * factor, spread=self.spread, name=self.name)


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Seconds (median) before the first step, what of them a restart takes again, and their spreads."""

    queue_s: float
    start_s: float  # machine, image, processes
    pull_s: float  # arrays
    queue_spread: float = FIVEFOLD
    spread: float = TWICE  # of the other two

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.queue_s + self.start_s + self.pull_s

    @property
    def restart_s(self) -> float:
        """Seconds from a preemption to the next step."""
        return self.seconds


def kind_of(machine: Machine) -> Kind:
    """What sort of machine it is."""
    if machine.is_local:
        return "local"
    if machine.is_tpu:
        return "tpu"
    return "gpu" if machine.num_devices else "cpu"


def wait(machine: Machine, *, num_bytes: float, told: Sequence[float] = ()) -> Wait:
    """What comes before the first step, with `num_bytes` of arrays.

    `told` is what it took on earlier nights with that machine, as times of what is expected without them.
    """
    kind = kind_of(machine)
    times, spread = typical(told)
    plain = Wait(
        queue_s=times * QUEUE_S[kind],
        start_s=times * (BOOT_S[kind] + IMAGE_BYTES[kind] / IMAGE_BYTES_PER_S),
        pull_s=0.0 if kind == "local" else times * num_bytes / PULL_BYTES_PER_S,
    )
    return replace(plain, queue_spread=spread, spread=spread) if told else plain


def typical(took: Sequence[float]) -> tuple[float, float]:
    """The median of what nights took, and the deviation of the logarithm of the next; 1 without any.

    As if `PSEUDO_NIGHTS` more had differed by a factor of two. One that was stopped and went on a day later
    counts as five times off, so that it does not make all to come uncertain.
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
