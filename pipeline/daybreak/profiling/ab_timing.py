"""Times two variants of taking the same updates against each other, in turn and on the same samples.

Whatever else runs on the machine disturbs both: a pair is one block of updates taken with each variant, the
variants taking turns at going first, and what counts is the ratio of the two times. The median of the ratios
lies below the (n - k)-th smallest of n with probability P(Bin(n, 1/2) < n - k), whatever their distribution
(the sign test), so pairs are taken until that bound is decisive, or time is up. Each variant is an engine of
its own, started from the same seed: the losses of its first updates show whether it still learns the same.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, comb
from statistics import median
from typing import Any

import numpy as np
import torch

from daybreak.contract.record_parts import Tuning
from daybreak.contract.sections import TrainParams
from daybreak.contract.workload import Workload
from daybreak.training.engine import TorchEngine
from daybreak.training.gradients import Signals
from daybreak.training.sample_order import Indices
from daybreak.training.sampling import SampleOrder, Sampling

BLOCK_S = 0.02  # at least, so that clocks and wake-ups are negligible
PAIRS = (5, 13)  # at least and at most
NUM_BLOCKS = 3  # different blocks, taken in rotation
CHANCE = 0.04  # probability that the median is beyond its bound
NOTHING = Signals()


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A variant of taking updates: a tuning, and samples per update."""

    tuning: Tuning
    batch_size: int
    micro_batch_size: int

    @property
    def ahead(self) -> int:
        """Number of batches loaded ahead."""
        return max(1, self.tuning.num_loaders)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Time of the new variant / time of the old one: the median over pairs, and bounds on that median."""

    ratio: float
    low: float
    high: float
    old_s: float  # of an update: the median per sample times the samples of an update
    new_s: float
    num_pairs: int
    loss_difference: float  # largest relative difference of the losses of the first updates
    seconds: float  # that the trial took


class Trials:
    """A/B timings of one job, on its own data set."""

    def __init__(self, workload: Workload, dataset: Any, training: TrainParams) -> None:
        self._workload, self._dataset, self._training = workload, dataset, training
        self._position = 0
        self._order = SampleOrder(
            seed=training.seed,
            num_samples=len(dataset),
            sampling=Sampling.of(dataset),
            batch_size=training.batch_size,
        )

    def compare(
        self,
        old: Variant,
        new: Variant,
        *,
        update_s: float,
        enough: float,
        limit_s: float,
        workload: Workload | None = None,
    ) -> Comparison:
        """Takes pairs until it is clear whether the ratio is below `enough`, or `limit_s` are spent.

        `update_s` is a rough time of an update; `workload` is that of the new variant, if it is another.
        Errors of the new variant are raised unchanged.
        """
        begin = time.perf_counter()
        count = updates(old, new, update_s)
        samples = count * max(old.batch_size, new.batch_size)
        blocks = [self._samples(samples) for _ in range(NUM_BLOCKS)]
        with as_in_training():
            one, other = self._timed(old, self._workload), self._timed(new, workload or self._workload)
            try:
                loss_difference = _loss_difference(one.losses(blocks[0]), other.losses(blocks[0]))
                for block in blocks[1:] if new.tuning.in_memory and not old.tuning.in_memory else ():
                    other.losses(block)  # the time that counts is that of samples already in memory
                pairs = self._pairs(one, other, blocks, enough=enough, until=begin + limit_s)
            finally:
                one.engine.close()
                other.engine.close()
        times = np.array(pairs)
        low, high = bounds([new_s / old_s for old_s, new_s in pairs])
        per_update = old.batch_size / samples
        return Comparison(
            ratio=median(times[:, 1] / times[:, 0]),
            low=low,
            high=high,
            old_s=float(np.median(times[:, 0])) * per_update,
            new_s=float(np.median(times[:, 1])) * per_update,
            num_pairs=len(pairs),
            loss_difference=loss_difference,
            seconds=time.perf_counter() - begin,
        )

    def _pairs(
        self,
        one: "_TimedVariant",
        other: "_TimedVariant",
        blocks: Sequence[Indices],
        *,
        enough: float,
        until: float,
    ) -> list[tuple[float, float]]:
        pairs: list[tuple[float, float]] = []
        for number in range(PAIRS[1]):
            block = blocks[number % len(blocks)]
            if number % 2:
                new_s, old_s = other.seconds(block), one.seconds(block)
            else:
                old_s, new_s = one.seconds(block), other.seconds(block)
            pairs.append((old_s, new_s))
            if len(pairs) < PAIRS[0]:
                continue
            low, high = bounds([n / o for o, n in pairs])
            if high < enough or low > enough or time.perf_counter() > until:
                break
        return pairs

    def _samples(self, number: int) -> Indices:
        """Returns the next samples in the order of training."""
        start, self._position = self._position, self._position + number
        return self._order.samples(start, self._position)

    def _timed(self, variant: Variant, workload: Workload) -> "_TimedVariant":
        engine = TorchEngine(
            workload,
            self._dataset,
            seed=self._training.seed,
            micro_batch_size=variant.micro_batch_size,
            tuning=variant.tuning,
        )
        return _TimedVariant(engine, variant, rate=self._training.rate)


class _TimedVariant:
    """A variant with its engine, to be timed."""

    def __init__(self, engine: TorchEngine, variant: Variant, *, rate: float) -> None:
        self.engine, self._variant, self._rate = engine, variant, rate

    def seconds(self, samples: Indices) -> float:
        """Returns the seconds of updates on all samples; to be safe, loading starts with the clock."""
        begin = self._now()
        self.losses(samples)
        return self._now() - begin

    def losses(self, samples: Indices) -> list[float]:
        """Trains on all samples as the trainer does, and returns the loss of each update."""
        size, ahead = self._variant.batch_size, self._variant.ahead
        shares = [samples[start : start + size] for start in range(0, len(samples), size)]
        for share in shares[:ahead]:
            self.engine.prepare(share)
        losses = []
        for number, share in enumerate(shares):
            for later in shares[number + ahead : number + ahead + 1]:
                self.engine.prepare(later)
            step = self.engine.step(share, batch_size=len(share), rate=self._rate, signals=NOTHING)
            losses.append(step.loss)
        return losses

    def _now(self) -> float:
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def updates(old: Variant, new: Variant, update_s: float) -> int:
    """Returns the number of updates in a block: enough to time, and for loaders to reach a steady state."""
    ahead = max(variant.ahead if variant.tuning.num_loaders else 0 for variant in (old, new))
    return max(1, 4 * min(1, ahead), 2 * ahead, ceil(BLOCK_S / max(update_s, 1e-6)))


def bounds(ratios: Sequence[float]) -> tuple[float, float]:
    """Returns bounds on the median, each with probability 1 - `CHANCE`; 0 and infinity from too few.

    >>> bounds([0.5, 0.6, 0.7, 0.8, 0.9])
    (0.5, 0.9)
    """
    n, left_out, beyond = len(ratios), -1, 0
    while (beyond := beyond + comb(n, left_out + 1)) <= CHANCE * 2**n:
        left_out += 1
    if left_out < 0:
        return 0.0, float("inf")
    ordered = sorted(ratios)
    return ordered[left_out], ordered[-1 - left_out]


@contextmanager
def as_in_training() -> Iterator[None]:
    """Restores afterwards what engines set for the whole process, to keep it from other measurements."""
    before = torch.get_deterministic_debug_mode()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    random = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
        torch.set_rng_state(random)


def _loss_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the largest relative difference of losses; 0 where updates differ in size."""
    if len(one) != len(other):
        return 0.0
    scale = max(map(abs, one)) or 1.0
    return max(abs(a - b) / scale for a, b in zip(one, other, strict=True))
