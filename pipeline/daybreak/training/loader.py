"""Loads whole batches by their indices, ahead of the training thread, with threads or processes.

Threads by default: numpy and torch release the interpreter's lock while they copy, and a process has to send
its batches. Where loading a batch takes less than a thread switch, no thread is fastest. Processes are for
data sets that read sample by sample in Python, whose threads would wait for the interpreter's lock.

A data set that reads sample by sample may draw random numbers, as for crops. They are seeded by the seed of
the training, the epoch and the sample, so that a sample is always the same: without a loader, by processes,
and again after a kill. Seeding takes longer than reading a small sample, so it begins with the first batch
that draws, which is read again. Threads share the generators, so they are not seeded: the profile gives such
a data set processes (daybreak/profiling/remedies.py).

The time that the device waits for samples is measured: all of `get` where it is an accelerator; where it is
the CPU, only while no thread of this process worked. Loader processes work on the same CPU, so with them
nothing is counted there.
"""

import logging
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from daybreak.contract.workload import Batch, collated
from daybreak.training.sample_order import Indices
from daybreak.training.termination import die_with_parent
from daybreak.training.tuning import tensors

log = logging.getLogger(__name__)

MIXED = 0x9E3779B97F4A7C15  # odd and large: near numbers end far apart


class Loader:
    """Batches of a data set by their indices."""

    def __init__(
        self,
        dataset: "Dataset[Any]",
        *,
        num_loaders: int,
        in_processes: bool = False,
        seed: int = 0,
        on_cpu: bool = True,
    ) -> None:
        """`on_cpu`: the model is trained on the CPU that reads."""
        self.waited_s = 0.0  # that the device did nothing, since no batch was there
        self._on_cpu = on_cpu
        self._dataset, self._seed = dataset, seed
        self._reader = _Reader(dataset, seed)
        self._in_processes = bool(num_loaders) and in_processes and by_sample(dataset)
        self._pool: Executor | None = None
        if self._in_processes:
            self._pool = _processes(dataset, num_loaders, seed)
        elif num_loaders:
            self._pool = ThreadPoolExecutor(num_loaders, "loader")
        self._ahead: deque[tuple[Indices, int, Future[Batch] | None]] = deque()

    def prepare(self, passes: list[Indices], *, epoch: int = 0) -> None:
        """Starts to load these passes of an epoch."""
        for part in passes:
            self._ahead.append((part, epoch, self._submitted(part, epoch)))

    def get(self, part: Indices, *, epoch: int = 0) -> Batch:
        """Returns the batch of these samples of an epoch, whether it was prepared or not."""
        began_s, worked_s = time.perf_counter(), time.process_time() if self._on_cpu else 0.0
        batch = self._get(part, epoch)
        if not self._on_cpu:
            self.waited_s += time.perf_counter() - began_s
        elif not self._in_processes:
            took_s, worked_s = time.perf_counter() - began_s, time.process_time() - worked_s
            self.waited_s += max(0.0, took_s - worked_s)
        return batch

    def _get(self, part: Indices, epoch: int) -> Batch:
        # Of few samples the same come again soon, in a pass of a later epoch.
        holding = next(
            (n for n, (ahead, of, _) in enumerate(self._ahead) if of == epoch and (ahead == part[0]).any()),
            None,
        )
        if holding is None:
            return self._here(part, epoch)  # it was never prepared, or the update is repeated
        for _ in range(holding):
            self._ahead.popleft()
        ahead, _, future = self._ahead[0]
        if not np.array_equal(ahead, part):
            return self._here(part, epoch)  # passes are larger or smaller than when they were prepared
        self._ahead.popleft()
        return self._result(future, part, epoch)

    @property
    def num_ready(self) -> int | None:
        """Passes that were loaded ahead and not taken yet; None where nothing is loaded ahead."""
        return sum(bool(future and future.done()) for _, _, future in self._ahead) if self._pool else None

    def close(self) -> None:
        """Ends the threads or processes."""
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def _submitted(self, part: Indices, epoch: int) -> "Future[Batch] | None":
        if self._pool is None or getattr(self._dataset, "is_full", False):
            return None  # from memory, no thread is fastest
        if not self._in_processes:
            return self._pool.submit(_read, self._dataset, part)
        try:
            return self._pool.submit(_read_there, part, epoch)
        except BrokenProcessPool:  # `get` says so, and reads from then on
            return None

    def _result(self, future: "Future[Batch] | None", part: Indices, epoch: int) -> Batch:
        if future is None:
            return self._here(part, epoch)
        try:
            return future.result()
        except BrokenProcessPool as error:  # killed, as where /dev/shm is full
            log.warning("the loaders are gone (%s): the training process reads from now on", error)
            self._pool, self._in_processes = None, False
            self._ahead = deque((ahead, of, None) for ahead, of, _ in self._ahead)
            return self._here(part, epoch)

    def _here(self, part: Indices, epoch: int) -> Batch:
        """Reads in this thread, and leaves the random generators of the training process untouched."""
        if not by_sample(self._dataset) or (self._pool and not self._in_processes):
            return _read(self._dataset, part)
        with _generators_kept():
            return self._reader.read(part, epoch)


class _Reader:
    """Reads samples one by one; once a sample draws random numbers, seeds the generators for each sample."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset, self._seed, self._draws = dataset, seed, False

    def read(self, part: Indices, epoch: int) -> Batch:
        """Returns the batch of these samples; leaves the generators anywhere."""
        if not self._draws:
            before = _states()
            batch = _read(self._dataset, part)
            if _are_equal(before, _states()):
                return batch
            self._draws = True
        return _read_seeded(self._dataset, part, self._seed, epoch)


def by_sample(dataset: Any) -> bool:
    """Returns whether a data set reads samples one by one, in Python."""
    return not hasattr(dataset, "__getitems__")


def draws(dataset: Any, samples: Indices) -> bool:
    """Returns whether some of these samples come out otherwise with other random numbers."""
    if not by_sample(dataset):
        return False
    with _generators_kept():
        one, other = (list(tensors(_read_seeded(dataset, samples, 0, epoch))) for epoch in (0, 1))
    return any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _read(dataset: Any, part: Indices) -> Batch:
    if not by_sample(dataset):
        return dataset.__getitems__(part)
    return collated(dataset, [dataset[sample] for sample in part.tolist()])


def _read_seeded(dataset: Any, part: Indices, seed: int, epoch: int) -> Batch:
    samples = []
    for sample in part.tolist():
        seed_generators(seed, epoch, sample)
        samples.append(dataset[sample])
    return collated(dataset, samples)


def seed_generators(seed: int, epoch: int, sample: int) -> None:
    """Seeds the generators of torch on the CPU, of NumPy and of Python for a sample in an epoch."""
    key = (seed * 1_000_003 + epoch) * MIXED + sample & (1 << 63) - 1
    torch.default_generator.manual_seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    random.seed(key)


def _states() -> tuple[Any, Any, Any]:
    return torch.default_generator.get_state(), np.random.get_state(), random.getstate()


def _are_equal(one: tuple[Any, Any, Any], other: tuple[Any, Any, Any]) -> bool:
    """Returns whether the generators are in the same states, so that nothing was drawn."""
    (_, keys, *rest), (_, other_keys, *other_rest) = one[1], other[1]
    same = rest == other_rest and np.array_equal(keys, other_keys)
    return same and one[2] == other[2] and torch.equal(one[0], other[0])


@contextmanager
def _generators_kept() -> Iterator[None]:
    states = _states()
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


_reader: _Reader  # of a loader process


def _processes(dataset: Any, number: int, seed: int) -> ProcessPoolExecutor:
    """Returns processes with the data set: forks, or where an accelerator is in use, new interpreters."""
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    method = "fork" if sys.platform == "linux" and not in_use else "spawn"
    context = multiprocessing.get_context(method)
    return ProcessPoolExecutor(number, context, initializer=_begin, initargs=(dataset, seed, os.getpid()))


def _begin(dataset: Any, seed: int, parent: int) -> None:
    """Starts a loader process that dies with the trainer and leaves the terminal's signals to the trainer."""
    global _reader  # noqa: PLW0603
    _reader = _Reader(dataset, seed)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the trainer's, which saves
    die_with_parent(parent)
    torch.set_num_threads(1)


def _read_there(part: Indices, epoch: int) -> Batch:
    return _reader.read(part, epoch)
