"""Computes which sample comes at which position: a pure function of the seed, so `seen` is the whole state.

Positions count samples over all epochs: epoch e is positions [e * n, (e + 1) * n). Within an epoch the order
is a keyed bijection of 0..n-1: a Feistel network on the next power of two (Luby & Rackoff 1988), reapplied
to values outside 0..n-1 until they fall inside (cycle walking: Black & Rogaway 2002). Any range of positions
is computed by itself, so memory does not grow with the number of samples.

Samples far apart are slow to read, on disk and in memory. With `block` > 1 that many neighbours stay close
together: blocks come in the order of such a bijection, and the samples of each window of 64 blocks are
shuffled by one bijection per epoch, which starts at a different place in each window. Two consecutive samples
then come from the same block 1 time in 64, which is the correlation of the order.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8
PART = 1 << 14  # positions computed together: a call of numpy costs as much as 1,000 of them
WINDOW = 64  # blocks shuffled together
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio
Indices = NDArray[np.int64]
Batch = TypeVar("Batch", Indices, range)


def indices(*, seed: int, num_samples: int, start: int, stop: int, block: int = 1) -> Indices:
    """Returns the samples at the positions [start, stop), shape [stop - start], each once per epoch.

    The array is read-only. Raises ValueError for an epoch or a block without samples.

    >>> indices(seed=1, num_samples=5, start=0, stop=10).tolist()
    [4, 0, 3, 2, 1, 3, 0, 1, 4, 2]
    """
    if num_samples < 1 or block < 1:
        raise ValueError(f"an epoch of {num_samples} samples in blocks of {block} has no order")
    block = min(block, num_samples)
    size = PART if block == 1 else WINDOW * block
    parts = []
    while start < stop:
        epoch, position = divmod(start, num_samples)
        if block == 1:
            number = position // PART
            whole = _part(seed, num_samples, epoch, number)
        else:
            number = min(position // size, _num_windows(num_samples, block) - 1)
            whole = _window(seed, num_samples, epoch, number, block)
        part = whole[position - number * size :][: stop - start]
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, dtype=np.int64), *parts])


def share(batch: Batch, *, rank: int, world_size: int, sizes: Sequence[int] = ()) -> Batch:
    """Returns the part of a batch, given as samples or positions, that worker `rank` takes.

    The part is contiguous and has the worker's size in `sizes`; without them sizes differ by one at most.
    """
    if sizes:
        start = sum(sizes[:rank])
        return batch[start : start + sizes[rank]]
    n = len(batch)
    return batch[rank * n // world_size : (rank + 1) * n // world_size]


@lru_cache(maxsize=8)
def _part(seed: int, num_samples: int, epoch: int, number: int) -> Indices:
    first = number * PART
    positions = np.arange(first, min(first + PART, num_samples))
    return _fixed(_permute(positions, num_samples, (seed, epoch)))


@lru_cache(maxsize=2)
def _window(seed: int, num_samples: int, epoch: int, number: int, block: int) -> Indices:
    """Returns the samples of a window; the last window also has the remaining blocks and samples."""
    num_blocks = num_samples // block
    is_last = number == _num_windows(num_samples, block) - 1
    first, after = number * WINDOW, num_blocks if is_last else (number + 1) * WINDOW
    before = epoch * num_blocks
    blocks = indices(seed=seed, num_samples=num_blocks, start=before + first, stop=before + after)
    samples = (blocks[:, None] * block + np.arange(block)).ravel()
    if is_last:
        samples = np.concatenate([samples, np.arange(num_blocks * block, num_samples)])
    begin = (number * GOLDEN & MASK) % len(samples)
    inside = _inside_twice(seed, epoch, len(samples))[begin : begin + len(samples)]
    return _fixed(samples.take(inside))


def _num_windows(num_samples: int, block: int) -> int:
    return max(1, num_samples // block // WINDOW)


@lru_cache(maxsize=2)
def _inside_twice(seed: int, epoch: int, size: int) -> Indices:
    """Returns the order inside a window twice over, so that a window can start anywhere in it."""
    return np.tile(_permute(np.arange(size), size, (seed, epoch, size)), 2)


def shuffled(number: int, key: tuple[int, ...]) -> Indices:
    """Returns 0 .. number - 1 in an order by a key."""
    return _permute(np.arange(number), max(1, number), key)


def _fixed(values: Indices) -> Indices:
    values.flags.writeable = False
    return values


def _permute(positions: Indices, num_samples: int, key: tuple[int, ...]) -> Indices:
    bits = max(2, (num_samples - 1).bit_length())
    tables = _tables(key, bits)
    values = _feistel(positions, bits, tables)
    outside = np.flatnonzero(values >= num_samples)
    while len(outside):
        values[outside] = _feistel(values[outside], bits, tables)
        outside = outside[values[outside] >= num_samples]
    return values


def _feistel(values: Indices, bits: int, tables: tuple[Indices, ...]) -> Indices:
    """Applies a bijection of 0 .. 2^bits - 1 in alternating rounds; the halves may differ by one bit."""
    low_bits = bits // 2
    low, high = values & ((1 << low_bits) - 1), values >> low_bits
    for turn, table in enumerate(tables):
        if turn % 2:
            low = low ^ table[high]
        else:
            high = high ^ table[low]
    return (high << low_bits) | low


@lru_cache(maxsize=4)
def _tables(key: tuple[int, ...], bits: int) -> tuple[Indices, ...]:
    """Returns what each round adds to one half for every value of the other: a lookup is the faster way."""
    high, low = 1 << (bits - bits // 2), 1 << (bits // 2)
    tables = []
    for turn, round_key in enumerate(keys(key)):
        num_from, num_into = (high, low) if turn % 2 else (low, high)
        table = mixed(np.arange(num_from, dtype=np.uint64), round_key) & np.uint64(num_into - 1)
        tables.append(table.astype(np.int64))
    return tuple(tables)


def mixed(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """Returns hashes by the finaliser of SplitMix64 (Steele, Lea & Flood 2014); uint64 wraps around."""
    values = (values + key) * np.uint64(GOLDEN)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def keys(key: tuple[int, ...]) -> list[np.uint64]:
    """Returns one key per round, computed from Python integers so that any seed counts in full."""
    state = np.zeros(1, dtype=np.uint64)
    for each in key:  # one after the other: seed and epoch must not be interchangeable
        state = mixed(state, np.uint64(each & MASK))
    return list(mixed(np.arange(1, ROUNDS + 1, dtype=np.uint64), state[0]))
