"""Orders the samples of an epoch as a data set wants them drawn: by weight, by length, or in whole groups.

Each order is a function of seed, epoch and position alone, over the bijection of sample_order.py, which
gives each position a slot. Without weights slot i is sample i. With weights w the samples lie along a line of
n slots, each over w_i n / sum(w) of them, and a slot has the sample at its place, shifted by a number in
[0, 1) of the epoch (systematic resampling: Kitagawa 1996). So a sample comes w_i n / sum(w) times an epoch,
rounded up or down; samples of equal weights come once each.

With lengths, windows of 64 batches are sorted by length and cut into batches, whose order is shuffled; inside
a batch the order is that of before. A batch has so many samples, or by tokens as many as, padded to the
longest, take no more than that number of samples of the mean length, or the least that a batch may have.

With groups, those come in the order of such a bijection, each with all its samples side by side. A batch ends
where a group does, nearest to where it would end without them, so that batches have as many samples on
average; an epoch ends with a batch.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daybreak.contract.errors import ParamsError
from daybreak.training.sample_order import PART, Indices, indices, keys, shuffled

WINDOW = 64  # batches that are sorted together
DRAWS = 0x64726177  # separates the keys of these draws from those of the order
CACHED = 4  # windows: those of the batches that are loaded ahead


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """What a data set says of how its samples are drawn."""

    block: int = 1  # neighbours that are read together
    weights: NDArray[np.float64] | None = None  # of each sample; none: all are equal
    lengths: Indices | None = None  # of each sample, as tokens; none: samples come in any company
    groups: Indices | None = None  # a number for each sample, equal for those of a batch; none: all are apart

    @classmethod
    def of(cls, dataset: Any) -> "Sampling":
        """Returns what a data set has; raises ParamsError where that is not of its samples."""
        size = len(dataset)
        weights, lengths, groups = (getattr(dataset, name, None) for name in ("weights", "lengths", "groups"))
        for name, values in (("weights", weights), ("lengths", lengths), ("groups", groups)):
            if callable(values):
                raise ParamsError(
                    f"{name} of the data set is a method, and is read as an array of a number for each of "
                    f"its {size:,} samples; make it an attribute or a property (key workload)"
                )
        if weights is not None:
            weights = np.asarray(weights, dtype=np.float64)
            if weights.shape != (size,) or not np.isfinite(weights).all() or (weights < 0).any():
                raise _wrong("weights", "a finite number from 0 on", weights.shape, size)
        if lengths is not None:
            lengths = np.asarray(lengths)
            if lengths.shape != (size,) or lengths.dtype.kind not in "iu" or (lengths < 1).any():
                raise _wrong("lengths", "a whole number from 1 on", lengths.shape, size)
            lengths = lengths.astype(np.int64)
        if groups is not None:
            groups = np.asarray(groups)
            if groups.shape != (size,) or groups.dtype.kind not in "iu":
                raise _wrong("groups", "the number of its group", groups.shape, size)
            if weights is not None or lengths is not None:
                other = "lengths" if weights is None else "weights"
                raise ParamsError(
                    f"a data set has groups, whose samples come together, and {other}, by which samples come "
                    f"one by one; leave one out (key workload)"
                )
        return cls(block=getattr(dataset, "block", 1), weights=weights, lengths=lengths, groups=groups)

    def of_part(self, samples: Indices) -> "Sampling":
        """Returns how some of the samples are drawn, which are then numbered from 0 on, one by one."""
        return Sampling(
            weights=None if self.weights is None else self.weights[samples],
            lengths=None if self.lengths is None else self.lengths[samples],
            groups=None if self.groups is None else self.groups[samples],
        )

    def too_large(self, batch_size: int) -> str:
        """Returns what to do where batches of whole groups have more samples than they should; "" else."""
        mean = 0.0 if self.groups is None else len(self.groups) / max(1, len(np.unique(self.groups)))
        if mean <= batch_size:
            return ""
        return (
            f"groups have {mean:,.4g} samples on average, more than a batch ({batch_size:,}), so that "
            f"batches are larger and updates fewer than planned; set train.batch_size to {math.ceil(mean)} "
            f"or more, with a train.rate for it"
        )


def expect_by_number(dataset: Any, *, of: str) -> None:
    """Raises ParamsError for the data set of a class whose samples cannot be asked for by their number."""
    from torch.utils.data import IterableDataset

    by_number = any(hasattr(dataset, name) for name in ("__getitem__", "__getitems__"))
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__") or not by_number:
        raise ParamsError(
            f"{of} has a data set, {type(dataset).__name__}, whose samples come in an order of its own, so "
            f"that a run could not go on after a kill with those that are left; give it __len__ and "
            f"__getitem__, or write its samples down once (docs/own-data.md, "
            f'"Without features: arrays, or a data set of your own")'
        )


def _wrong(name: str, of: str, shape: tuple[int, ...], size: int) -> ParamsError:
    return ParamsError(
        f"{name} of a data set of {size:,} samples have shape {list(shape)} or values that are none; give "
        f"each sample {of} (key workload)"
    )


class SampleOrder:
    """The samples at each position of a run, all epochs one after the other."""

    def __init__(
        self,
        *,
        seed: int,
        num_samples: int,
        first_sample: int = 0,
        sampling: Sampling | None = None,
        batch_size: int = 1,
        by_tokens: bool = False,
        least: int = 1,
        grows: bool = False,
    ) -> None:
        """Orders `num_samples` from `first_sample` on, by a sampling of all samples.

        Batches of `batch_size` samples are alike in length; `by_tokens` and of groups, they have that many on
        average, and at least `least`, where there are as many.
        Raises ParamsError where tokens are to be counted and the data set has no lengths, or where it has
        groups and the batch `grows` within a run.
        """
        sampling = sampling or Sampling()
        self.seed, self.num_samples, self.first_sample = seed, num_samples, first_sample
        self.block = sampling.block
        own = slice(first_sample, first_sample + num_samples)
        self._ends: NDArray[np.float64] | None = None
        if sampling.weights is not None and num_samples:
            weights = sampling.weights[own]
            if not weights.any():
                raise ParamsError(
                    f"the weights of the {num_samples:,} samples to train on are 0; give some a weight (key "
                    f"workload)"
                )
            self._ends = np.cumsum(weights / weights.sum()) * num_samples
            self._last = int(np.flatnonzero(weights)[-1])
        self._lengths = None if sampling.lengths is None else sampling.lengths[own]
        self._groups = None if sampling.groups is None else _Groups(sampling.groups[own])
        if self._groups and grows:
            raise ParamsError(
                "train.batch_growth changes the batch within a run, and the batches of a class with groups "
                "end where a group does; set train.batch_growth to none"
            )
        self._batch_size, self._by_tokens = batch_size, by_tokens
        self._least = least  # of as many samples
        if by_tokens and self._lengths is None:
            raise ParamsError(
                "train.batch_by is tokens, and the data set has no lengths, an array of the tokens of each "
                "sample; give it that, or set train.batch_by to samples"
            )
        self._tokens = 0 if self._lengths is None else int(batch_size * self._lengths.mean())
        # With groups a window is a whole epoch, and no more than two of them are in use.
        self._window = lru_cache(2 if self._groups else CACHED)(self._made)

    @property
    def of_data(self) -> bool:
        """Whether the order depends on more than these numbers: on weights, lengths or groups."""
        return any(each is not None for each in (self._ends, self._lengths, self._groups))

    def samples(self, start: int, stop: int) -> Indices:
        """Returns the samples at the positions [start, stop)."""
        if not self.of_data:
            return self.first_sample + self._slots(start, stop)
        parts = [np.empty(0, dtype=np.int64)]
        while start < stop:
            epoch, place = divmod(start, self.num_samples)
            until = min(stop, (epoch + 1) * self.num_samples)
            if self._lengths is None and self._groups is None:
                part = self._drawn(epoch, start, until)
            else:
                first, window, _ = self._window(epoch, self._number(epoch, place))
                part = window[place - first :][: until - start]
            parts.append(part)
            start += len(part)
        return self.first_sample + np.concatenate(parts)

    def of_epoch(self, epoch: int) -> Iterator[Indices]:
        """Yields all samples of an epoch, in any order."""
        for start in range(0, self.num_samples, PART):
            slots = np.arange(start, min(start + PART, self.num_samples))
            yield self.first_sample + self._of_slots(epoch, slots)

    @property
    def batch_at(self) -> Callable[[int], int] | None:
        """The number of samples of the batch at a position; None where all have the same."""
        return self._batch_at if self._by_tokens or self._groups else None

    def _batch_at(self, position: int) -> int:
        epoch, place = divmod(position, self.num_samples)
        first, _, ends = self._window(epoch, self._number(epoch, place))
        return first + int(ends[np.searchsorted(ends, place - first, side="right")]) - place

    def _slots(self, start: int, stop: int) -> Indices:
        return indices(seed=self.seed, num_samples=self.num_samples, start=start, stop=stop, block=self.block)

    def _drawn(self, epoch: int, start: int, stop: int) -> Indices:
        """Returns the samples of slots at positions of one epoch, counted from the first sample."""
        return self._of_slots(epoch, self._slots(start, stop))

    def _of_slots(self, epoch: int, slots: Indices) -> Indices:
        if self._ends is None:
            return slots
        places = np.searchsorted(self._ends, slots + _shift(self.seed, epoch), side="right")
        return np.minimum(places, self._last)  # whose end is n but for rounding

    def _head(self, epoch: int) -> int:
        """Returns the samples of an epoch that are in the last batch of the epoch before."""
        return 0 if self.batch_at else min(self.num_samples, -epoch * self.num_samples % self._batch_size)

    def _number(self, epoch: int, place: int) -> int:
        """Returns the window of a place in an epoch."""
        if self._groups:
            return 0  # of an epoch
        number = max(0, place - self._head(epoch)) // (WINDOW * self._batch_size)
        return min(number, self._last_window(epoch))

    def _last_window(self, epoch: int) -> int:
        """Returns the last window of an epoch, with the samples after it that would be less than a batch."""
        least = self._least if self._by_tokens else 1  # who takes batches sees to the last one
        own = self.num_samples - self._head(epoch) - least
        return max(0, own) // (WINDOW * self._batch_size)

    def _made(self, epoch: int, number: int) -> tuple[int, Indices, Indices]:
        """Returns the first place of a window in its epoch, the samples, and the ends of batches."""
        if self._groups:
            order = indices(
                seed=self.seed,
                num_samples=len(self._groups),
                start=epoch * len(self._groups),
                stop=(epoch + 1) * len(self._groups),
            )
            return 0, *self._groups.cut(order, batch_size=self._batch_size, least=self._least)
        assert self._lengths is not None
        head, size = self._head(epoch), WINDOW * self._batch_size
        first = head + number * size if number else 0
        begin = epoch * self.num_samples
        is_last = number == self._last_window(epoch)
        after = self.num_samples if is_last else head + (number + 1) * size
        samples = self._drawn(epoch, begin + first, begin + after)
        kept = head if not number else 0  # before the first batch, as they come
        batches = self._cut(self._lengths[samples[kept:]])
        key = (self.seed, epoch, number, DRAWS)
        chosen = [np.sort(batches[place]) for place in shuffled(len(batches), key).tolist()]
        rest = np.arange(sum(map(len, chosen)), len(samples) - kept)  # fewer than a batch
        parts = [np.arange(kept), *(kept + each for each in (*chosen, rest))]
        ends = np.cumsum([len(part) for part in parts if len(part)])
        return first, samples[np.concatenate(parts)], ends

    def _cut(self, lengths: Indices) -> list[Indices]:
        """Returns the places of the samples of each batch, the shortest first.

        Of batches with as many samples, those at the end that are fewer than a batch are left out.
        """
        size = self._batch_size
        if not self._by_tokens:
            places = np.argsort(lengths[: len(lengths) // size * size], kind="stable")
            return list(places.reshape(-1, size))
        places, batches = np.argsort(lengths, kind="stable"), []
        while len(places):
            some = lengths[places[: max(1, self._tokens // int(lengths[places[0]]))]]
            padded = np.arange(1, len(some) + 1) * some
            number = max(self._least, int(np.searchsorted(padded, self._tokens, side="right")))
            if len(places) - number < self._least:
                number = len(places)
            batches.append(places[:number])
            places = places[number:]
        return batches


class _Groups:
    """The samples of each group."""

    def __init__(self, groups: Indices) -> None:
        self._samples = np.argsort(groups, kind="stable")  # those of a group side by side
        self._ends = np.flatnonzero(np.diff(groups[self._samples], append=groups.max(initial=0) + 1)) + 1
        self._sizes = np.diff(self._ends, prepend=0)

    def __len__(self) -> int:
        return len(self._ends)

    def cut(self, order: Indices, *, batch_size: int, least: int) -> tuple[Indices, Indices]:
        """Returns the samples of all groups in an order of groups, and where each batch ends."""
        sizes = self._sizes[order]
        ends = np.cumsum(sizes)
        shifts = np.repeat(self._ends[order] - ends, sizes)  # from a place to that in `_samples`
        samples = self._samples[np.arange(len(shifts)) + shifts]
        wanted = np.arange(batch_size, len(samples), batch_size)
        after = np.searchsorted(ends, wanted)
        before = np.maximum(after - 1, 0)
        is_nearer = wanted - ends[before] < ends[after] - wanted
        kept = [0]
        for end in ends[np.where(is_nearer, before, after)].tolist():
            if end - kept[-1] >= least and len(samples) - end >= least:
                kept.append(end)
        return samples, np.array([*kept[1:], len(samples)])


@lru_cache(CACHED)
def _shift(seed: int, epoch: int) -> float:
    """Returns the number in [0, 1) by which the draws of an epoch are shifted."""
    (key, *_) = keys((seed, epoch, DRAWS))
    return int(key) / 2**64
