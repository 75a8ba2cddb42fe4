"""Holds measured steps, and rejects those that no machine can achieve.

Measurements come from profiles, logs and earlier nights, and now and then one is wrong: a clock jumped, a
step was skipped, a unit was mixed up. Such a row may claim 150 times the throughput of as many single
devices, and one of them spoils a fit. These bounds hold on any machine:

    a step takes more than zero seconds, and at least flops / peak rate where both are known;
    R workers do at most `SUPERLINEAR` * R times what a single one does (caches may help a little).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

SUPERLINEAR = 1.5  # seen at most 1.02 in 5,503 steps (Pollux, OSDI'21)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a step is taken: workers on each machine, samples per worker and pass, and passes per update."""

    workers: tuple[int, ...]  # on each machine, one number a machine
    micro_batch_size: float
    num_passes: int = 1

    @property
    def num_workers(self) -> int:
        """Workers on all machines."""
        return sum(self.workers)

    @property
    def batch_size(self) -> float:
        """Samples of an update."""
        return self.num_workers * self.micro_batch_size * self.num_passes


@dataclass(frozen=True, kw_only=True)
class Measurement(Setting):
    """Seconds of an update in a setting."""

    step_s: float

    @property
    def samples_per_s(self) -> float:
        """Throughput of all workers."""
        return self.batch_size / self.step_s


def believable(
    measurements: Sequence[Measurement], *, least_s_per_sample: float = 0.0
) -> tuple[list[Measurement], list[str]]:
    """Returns the measurements that can be true, and a sentence for each that cannot.

    `least_s_per_sample` is what a device needs at its peak rate, 0 where that is not known.
    """
    kept: list[Measurement] = []
    rejected: list[str] = []
    for each in measurements:
        reason = _impossible(each, least_s_per_sample)
        if reason:
            rejected.append(f"{_name(each)} is left out: {reason}")
        else:
            kept.append(each)
    rate = _single_rate(kept)
    if rate is None:
        return kept, rejected
    linear: list[Measurement] = []
    for each in kept:
        times = each.samples_per_s / (rate * each.num_workers)
        if times > SUPERLINEAR:
            rejected.append(
                f"{_name(each)} is left out: {times:.3g} times the throughput of as many single devices, "
                f"and more than {SUPERLINEAR:g} cannot be"
            )
        else:
            linear.append(each)
    return linear, rejected


def _impossible(each: Measurement, least_s_per_sample: float) -> str:
    if not (isfinite(each.step_s) and each.step_s > 0):
        return f"{each.step_s:g} s is not a valid time"
    if not each.workers or min(each.workers) < 1 or each.micro_batch_size <= 0 or each.num_passes < 1:
        return "there is a machine without workers, or a pass without samples"
    least_s = least_s_per_sample * each.micro_batch_size * each.num_passes
    if each.step_s < least_s:
        return f"{each.step_s:.3g} s, and its operations alone take {least_s:.3g} s at the device's peak rate"
    return ""


def _single_rate(kept: Sequence[Measurement]) -> float | None:
    """Returns the samples per second of one device: the median of the best three, robust to one outlier."""
    alone = sorted((each.samples_per_s for each in kept if each.num_workers == 1), reverse=True)[:3]
    return alone[len(alone) // 2] if alone else None


def _name(each: Measurement) -> str:
    workers = "+".join(map(str, each.workers))
    passes = f"passes of {each.micro_batch_size:g} samples"
    return f"a step of {each.step_s:.3g} s with {workers} workers and {passes}"
