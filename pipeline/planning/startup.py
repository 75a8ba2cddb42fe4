"""How long until the first step? Waiting for a machine, starting it, and bringing image and data to it.

Medians of what was seen of rented machines; each may take several times as long on a bad night, a queue most
of all, so their intervals are wide until nights have told.
"""

from dataclasses import dataclass
from math import log
from statistics import NormalDist
from typing import Literal

from pipeline.planning.catalog import LOCAL, Machine

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


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Seconds (median) before the first step, what of them a restart takes again, and their spreads."""

    queue_s: float
    start_s: float  # machine, image, processes
    pull_s: float  # arrays

    @property
    def restart_s(self) -> float:
        """Seconds from a preemption to the next step."""
        return self.queue_s + self.start_s + self.pull_s


def kind_of(machine: Machine) -> Kind:
    """What sort of machine it is."""
    if machine.name == LOCAL:
        return "local"
    if machine.is_tpu:
        return "tpu"
    return "gpu" if machine.num_devices else "cpu"


def wait(machine: Machine, *, num_bytes: float) -> Wait:
    """What comes before the first step, with `num_bytes` of arrays."""
    kind = kind_of(machine)
    return Wait(
        queue_s=QUEUE_S[kind],
        start_s=BOOT_S[kind] + IMAGE_BYTES[kind] / IMAGE_BYTES_PER_S,
        pull_s=0.0 if kind == "local" else num_bytes / PULL_BYTES_PER_S,
    )
