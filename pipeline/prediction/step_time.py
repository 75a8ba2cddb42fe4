"""Defines the form of an update's time, and the prior of its constants before anything is measured.

The form is that of Pollux (OSDI'21). With m samples a pass and s passes an update, on N machines with K
workers,

    T = (s - 1) G + (G^g + S^g)^(1/g),   G = (a + b m) * e^(c (1 - 1/w)),   S = a_N (K / 2)^p_N,   g >= 1

G computes gradients (w: most workers on one machine, which share its buses), S sums them: nothing for one
worker, and with constants of its own on one machine, on two, and on more. Powers of K instead of Pollux'
straight lines, which grow too fast beyond what was measured. Constants are logarithms, so all are positive.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.prediction.measurements import Measurement, Setting

Array = NDArray[np.float64]

# Constants of the form, as logarithms except for the powers and the sharing.
FIXED, PER_SAMPLE, ONE, ONE_POWER, TWO, TWO_POWER, MANY, MANY_POWER, OVERLAP, SHARING = range(10)
SCALES = (FIXED, PER_SAMPLE, MANY)  # of the job and the machine; all others carry over to other jobs


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Mean and deviation of the constants before anything is measured; ONE and TWO relative to MANY."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def moments(self) -> tuple[Array, Array]:
        """Returns mean and covariance of the constants themselves."""
        mix = np.eye(len(self.mean))
        mix[ONE, MANY] = mix[TWO, MANY] = 1.0
        return mix @ np.array(self.mean), mix @ np.diag(np.square(self.deviation)) @ mix.T

    def scaled(self, changes: dict[int, tuple[float, float]]) -> "Prior":
        """Returns the prior with other means and deviations for some constants."""
        mean, deviation = list(self.mean), list(self.deviation)
        for place, (value, spread) in changes.items():
            mean[place], deviation[place] = value, spread
        return Prior(mean=tuple(mean), deviation=tuple(deviation))


# Before any job is known. The first two and MANY are set from the measurements.
UNINFORMED = Prior(
    mean=(0.0, 0.0, -2.0, 0.4, 0.2, 0.4, 0.0, 0.3, 0.5, 0.1),
    deviation=(2.0, 2.0, 1.5, 0.3, 0.5, 0.3, 2.0, 0.2, 0.8, 0.1),
)
# `learn` over bert, cifar10, imagenet and ncf of the Pollux traces (bench_throughput.py prints it).
LEARNED = Prior(
    mean=(0.0, 0.0, -1.4, 0.58, 0.27, 0.44, 0.0, 0.32, 0.46, 0.09),
    deviation=(2.0, 2.0, 0.9, 0.21, 0.31, 0.17, 2.0, 0.13, 0.8, 0.09),
)


@dataclass(frozen=True)
class Points:
    """Settings as arrays."""

    workers: Array  # K
    machines: Array  # N
    most: Array  # w
    micro: Array  # m
    passes: Array  # s
    placement: NDArray[np.str_]

    @classmethod
    def of(cls, settings: Sequence[Setting]) -> "Points":
        """Returns the settings as arrays, one entry each."""
        names = ["".join(map(str, s.workers)) for s in settings]
        return cls(
            np.array([s.num_workers for s in settings], float),
            np.array([len(s.workers) for s in settings], float),
            np.array([max(s.workers) for s in settings], float),
            np.array([s.micro_batch_size for s in settings], float),
            np.array([s.num_passes for s in settings], float),
            np.array(names),
        )


def form(constants: Array, at: Points) -> tuple[Array, Array]:
    """Returns log T of the form, and the share of T that depends on summing gradients.

    `constants` is [..., constants]; both results are [..., points].
    """
    c = np.moveaxis(constants, -1, 0)[..., None]
    two = np.log(np.maximum(at.workers, 2) / 2)
    power = 1 + np.exp(c[OVERLAP])
    compute = np.log(np.exp(c[FIXED]) + np.exp(c[PER_SAMPLE]) * at.micro) + c[SHARING] * (1 - 1 / at.most)
    few = np.where(at.machines == 1, c[ONE] + c[ONE_POWER] * two, c[TWO] + c[TWO_POWER] * two)
    sync = np.where(at.machines > 2, c[MANY] + c[MANY_POWER] * two, few)
    sync = np.where(at.workers == 1, -50.0, sync)
    last = np.logaddexp(power * compute, power * sync)
    share = np.exp(power * sync - last)
    before = np.log(np.maximum(at.passes - 1, 1e-30)) + compute
    total = np.logaddexp(before, last / power)
    return total, share * np.exp(last / power - total)


def slopes(constants: Array, at: Points) -> Array:
    """Returns the derivatives of log T by the constants, [points, constants]."""
    step = 1e-4 * np.eye(len(constants))
    up, down = form(constants + np.stack([step, -step]), at)[0]
    derivatives: Array = (up - down).T / 2e-4
    return derivatives


def centred(prior: Prior, measurements: Sequence[Measurement]) -> Prior:
    """Returns the prior with scales that fit the measurements: a third of a step for each part.

    Raises ValueError without measurements.
    """
    if not measurements:
        raise ValueError("there are no measurements to take the scales of a prior from")
    step = float(np.median(np.log([each.step_s / each.num_passes for each in measurements])))
    micro = float(np.mean(np.log([each.micro_batch_size for each in measurements])))
    return prior.scaled({FIXED: (step - 1, 2.0), PER_SAMPLE: (step - micro - 1, 2.0), MANY: (step - 1, 2.0)})
