"""Shares each batch among workers of different speeds, so that all finish together.

With b_k samples in t_k seconds worker k's throughput is X_k = b_k / t_k, and a share in proportion to it,
b_k * mean(t) / t_k, would have ended at the mean (Tyagi & Sharma 2020, arXiv 2305.12213). Gradients are sums
over samples, so shares do not change what is learned. Four rules keep the shares stable, in this order:

1. times are averaged with exponential weights over at least 5 updates, starting anew after each change;
2. shares stay within bounds: at least one sample, at most a factor of three up or down at once, and no more
   than a worker can handle: if its throughput fell after a raise, beyond noise, the size before the raise is
   its maximum for 500 updates;
3. shares are scaled to the sum of the batch inside these bounds, and rounded by largest remainder;
4. all shares change or none: all change where one share would differ by more than 5 %, and that worker's time
   differs from the mean by more than noise.

Equal shares are given up only where unequal ones save a tenth of the time, and return where unequal ones save
less than a twentieth: on equal workers nothing changes. All workers compute the shares from the same times,
and so agree.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

SMOOTHING = 0.1  # weight of the newest time, once there are ten
LOOK_EVERY = 5  # updates between possible changes
DEAD_BAND = 0.05  # of a share
MAX_CHANGE = 3  # factor, up or down, at once
# Of the time of an update: to give up equal shares, and to keep unequal ones.
MIN_GAIN, LEAST_GAIN = 0.1, 0.05
NUM_DEVIATIONS = 3  # standard errors; a larger difference is not noise
KEEP_MOST = 500  # updates before a worker is offered a larger share again
Sizes = tuple[int, ...]
Floats = NDArray[np.float64]


def even(batch_size: int, *, world_size: int, least: int = 1) -> Sizes:
    """Returns the samples of each worker's share, which differ by one at most.

    Where shares would be below `least`, fewer workers take one, and those of the others are empty.

    >>> even(8, world_size=3), even(5, world_size=3, least=2)
    ((2, 3, 3), (0, 2, 3))
    """
    number = world_size  # of workers that take a share
    if (
        batch_size < least * world_size and least > 1
    ):  # 1 has no such case: jobs that are under way stay equal
        number = max(1, batch_size // least)
    edges = [max(0, rank - world_size + number) * batch_size // number for rank in range(world_size + 1)]
    return tuple(after - before for before, after in pairwise(edges))


def apportion(
    batch_size: int, *, weights: Sequence[float], least: Sequence[int], most: Sequence[int]
) -> Sizes:
    """Returns whole shares in proportion to weights, within bounds, that sum exactly to the batch.

    Raises ValueError where the bounds allow no such shares.

    >>> apportion(10, weights=[1, 2, 4], least=[0, 0, 0], most=[10, 10, 5])
    (2, 3, 5)
    """
    lows, highs = np.array(least, dtype=float), np.array(most, dtype=float)
    proportions = np.array(weights, dtype=float)
    if not (lows.sum() <= batch_size <= highs.sum() and (lows <= highs).all() and (proportions > 0).all()):
        raise ValueError(f"shares from {least} to {most} do not add up to {batch_size}")
    little, much = 0.0, float((highs / proportions).max())
    for _ in range(60):  # the sum grows with the scale
        scale = (little + much) / 2
        if np.clip(scale * proportions, lows, highs).sum() < batch_size:
            little = scale
        else:
            much = scale
    shares = np.clip(much * proportions, lows, highs)
    sizes = np.floor(shares + 1e-6).astype(int)
    left = batch_size - int(sizes.sum())
    largest = np.argsort(sizes - shares, kind="stable")  # remainders, largest first; then by rank
    sizes[largest[:left]] += 1
    return tuple(sizes.tolist())


class Batching:
    """The shares of all workers, adjusted by the times that they take."""

    def __init__(self, *, batch_size: int, world_size: int) -> None:
        self.sizes = self._even = even(batch_size, world_size=world_size)
        self._batch_size, self._world_size = batch_size, world_size
        self._updates = 0
        self._most = np.full(world_size, batch_size)
        self._most_until = np.zeros(world_size, dtype=int)
        self._speeds_before: Floats | None = None  # lower bounds, before the last change
        self._sizes_before = self._even
        self._forget()

    def shares(self, batch_size: int) -> Sizes:
        """Returns the shares of a batch; the last batch of a run may be smaller."""
        if batch_size == self._batch_size:
            return self.sizes
        if self.sizes == self._even:
            return even(batch_size, world_size=self._world_size)
        every = [batch_size] * self._world_size
        return apportion(batch_size, weights=self.sizes, least=[0] * self._world_size, most=every)

    def observe(self, times_s: Sequence[float], *, sizes: Sizes) -> bool:
        """Records the times that shares of these sizes took, and returns whether the shares change now.

        Times of older sizes, from batches that were being loaded when the shares changed, are ignored.
        """
        if sizes != self.sizes or len(times_s) != self._world_size or min(times_s) <= 0:
            return False
        self._updates += 1
        self._smooth(np.array(times_s))
        return self._count % LOOK_EVERY == 0 and self._adjust()

    def _forget(self) -> None:
        self._count = 0
        self._mean, self._variance = np.zeros(self._world_size), np.zeros(self._world_size)
        self._squares = 0.0  # sum of the squared weights of the times seen

    def _smooth(self, times: Floats) -> None:
        """Updates the averages, which have exponential weights, equal ones at the start (West 1979)."""
        self._count += 1
        new = max(1 / self._count, SMOOTHING)
        away = times - self._mean
        self._mean = self._mean + new * away
        self._variance = (1 - new) * (self._variance + new * away**2)
        self._squares = (1 - new) ** 2 * self._squares + new**2

    def _adjust(self) -> bool:
        """Changes the shares if that pays off, and returns whether it did."""
        sizes, mean = np.array(self.sizes), float(self._mean.mean())
        errors = np.sqrt(self._variance * self._squares / (1 - self._squares))
        noise = NUM_DEVIATIONS * np.hypot(errors, float(np.sqrt((errors**2).sum())) / self._world_size)
        certain = np.abs(self._mean - mean) > noise
        if not certain.any():
            return False
        self._learn_most(errors)
        # The least time of an update, if shares could be fractions.
        least_s = self._batch_size / float((sizes / self._mean).sum())
        if self.sizes == self._even and least_s > (1 - MIN_GAIN) * float(self._mean.max()):
            return False  # `_proposal` would say the same, but takes longer than equal workers can gain
        proposal = self._proposal(sizes * mean / self._mean)
        apart = np.abs(np.array(proposal) - sizes) / sizes > DEAD_BAND
        if not (apart & certain).any():
            return False
        self._speeds_before = sizes / (self._mean + NUM_DEVIATIONS * errors)
        self._sizes_before = self.sizes
        self.sizes = proposal
        self._forget()
        return True

    def _gain(self, sizes: Sizes) -> float:
        """Returns the share of an update's time that these sizes would save over equal ones."""
        sample_s = self._mean / np.array(self.sizes)
        return 1 - float((np.array(sizes) * sample_s).max() / (np.array(self._even) * sample_s).max())

    def _learn_most(self, errors: Floats) -> None:
        if self._speeds_before is None:
            return
        sizes, before = np.array(self.sizes), np.array(self._sizes_before)
        at_best = sizes / np.maximum(self._mean - NUM_DEVIATIONS * errors, 1e-9)
        fell = (sizes > before) & (at_best < (1 - DEAD_BAND) * self._speeds_before)
        self._most = np.where(fell, before, self._most)
        self._most_until = np.where(fell, self._updates + KEEP_MOST, self._most_until)

    def _proposal(self, wanted: Floats) -> Sizes:
        """Returns the shares nearest to `wanted` within all bounds, or equal shares if those are as good."""
        sizes = np.array(self.sizes)
        least = np.maximum(1, -(-sizes // MAX_CHANGE))
        freely = np.minimum(sizes * MAX_CHANGE, self._batch_size)
        most = np.where(self._updates < self._most_until, np.minimum(freely, self._most), freely)
        least = np.minimum(least, most)
        if most.sum() < self._batch_size:  # some worker has to take the rest of the batch
            most = freely
        bounds = {"least": least.tolist(), "most": most.tolist()}
        proposal = apportion(self._batch_size, weights=wanted.tolist(), **bounds)
        equal = np.array(self._even)
        worth = self._gain(proposal) >= (MIN_GAIN if self.sizes == self._even else LEAST_GAIN)
        return proposal if worth or (equal < least).any() or (equal > most).any() else self._even
