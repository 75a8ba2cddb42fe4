"""Defines the form of an update's time on a machine: the mean of the model in throughput.py.

The form is that of Pollux (OSDI'21). With m samples a pass and s passes an update, on N machines with K
workers,

    T = (s - 1) G + (G^g + S^g)^(1/g),   G = (a + b m) w^c,   S = a_N (K / 2)^p_N,   g >= 1

G is the time to compute gradients (w: most workers on one machine, which share its memory and buses), S the
time to sum them: 0 for one worker, with separate constants for one machine, two, and more. Powers of K
replace Pollux' straight lines, which grow too fast beyond the measurements. Constants are logarithms, so all
are positive.

Workers that average every h updates (Setting.sync) send c = 3 times as much then: S becomes c S / h. Nothing
of it is hidden, as nothing else is done meanwhile (g = 1). Without a barrier it is sent beside all passes of
the next h updates, and what takes longer counts: (s^8 G^8 + (c S / h)^8)^(1/8).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daybreak.prediction.measurements import StepSetting
from daybreak.prediction.priors import NAMES

Array = NDArray[np.float64]

# Constants of the form, as logarithms except for the powers and the sharing.
FIXED, PER_SAMPLE, ONE, ONE_POWER, TWO, TWO_POWER, MANY, MANY_POWER, OVERLAP, SHARING = range(len(NAMES))

BESIDE = 8.0  # power of a sum that is nearly the longer of two times

# ONE and TWO are known relative to MANY: the three share what a network is worth.
MIX: Array = np.eye(len(NAMES))
MIX[ONE, MANY] = MIX[TWO, MANY] = 1.0


@dataclass(frozen=True)
class Points:
    """Settings as arrays, one entry each."""

    workers: Array  # K
    machines: Array  # N
    most: Array  # w
    micro: Array  # m
    passes: Array  # s
    placement: NDArray[np.str_]
    machine: NDArray[np.int_]  # which kind of machine, by number
    sent: Array  # log of bytes sent per update / bytes of the gradients; 0 where gradients are summed
    apart: NDArray[np.bool_]  # workers average now and then
    late: NDArray[np.bool_]  # without a barrier

    @classmethod
    def of(cls, settings: Sequence[StepSetting], machines: Sequence[int]) -> "Points":
        """Returns the settings as arrays."""
        return cls(
            np.array([s.num_workers for s in settings], float),
            np.array([len(s.workers) for s in settings], float),
            np.array([max(s.workers) for s in settings], float),
            np.array([s.micro_batch_size for s in settings], float),
            np.array([s.num_passes for s in settings], float),
            np.array(["+".join(map(str, s.workers)) for s in settings]),
            np.array(machines, int),
            np.log([s.sent for s in settings]),
            np.array([s.sync.every > 1 for s in settings]),
            np.array([s.sync.is_late for s in settings]),
        )


def form(constants: Array, at: Points) -> tuple[Array, Array]:
    """Returns log T of the form, and the share of T that depends on summing gradients.

    `constants` is [..., points, constants]; both results are [..., points].
    """
    c = np.moveaxis(constants, -1, 0)
    two = np.log(np.maximum(at.workers, 2) / 2)
    power = np.where(at.apart, np.where(at.late, BESIDE, 1.0), 1 + np.exp(c[OVERLAP]))
    compute = np.log(np.exp(c[FIXED]) + np.exp(c[PER_SAMPLE]) * at.micro) + c[SHARING] * np.log(at.most)
    few = np.where(at.machines == 1, c[ONE] + c[ONE_POWER] * two, c[TWO] + c[TWO_POWER] * two)
    sync = np.where(at.machines > 2, c[MANY] + c[MANY_POWER] * two, few)
    sync = np.where(at.workers == 1, -50.0, sync + at.sent)
    beside = np.where(at.late, at.passes, 1.0)  # passes while sums are sent
    last = np.logaddexp(power * (compute + np.log(beside)), power * sync)
    share = np.exp(power * sync - last)
    before = np.log(np.maximum(at.passes - beside, 1e-30)) + compute
    total = np.logaddexp(before, last / power)
    return total, share * np.exp(last / power - total)


def slopes(constants: Array, at: Points) -> Array:
    """Returns the derivatives of log T by the constants, both [points, constants]."""
    step = 1e-4 * np.eye(constants.shape[-1])[:, None]
    up, down = form(constants + np.stack([step, -step]), at)[0]
    derivatives: Array = (up - down).T / 2e-4
    return derivatives
