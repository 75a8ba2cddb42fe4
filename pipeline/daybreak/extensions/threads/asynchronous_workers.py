"""Runs the workers of asynchronous training: forked processes with one thread each.

A worker computes the gradient of a part of a batch at the shared weights of that moment, and changes them
under a lock: no update is lost, and none is half done where a worker is stopped.
"""

import multiprocessing
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, util
from typing import Any, Protocol

import torch
from torch import Tensor

from daybreak.contract.errors import Interrupted
from daybreak.contract.workload import TrainingProgress
from daybreak.training.sample_order import Indices
from daybreak.training.termination import die_with_parent

LOCK_S = 0.5  # between two looks whether who holds the lock is still alive


@dataclass(frozen=True, kw_only=True)
class BatchPart:
    """Part of a batch, as a worker gets it."""

    number: int  # of the update
    indices: Indices
    progress: TrainingProgress
    options: tuple[dict[str, Any], ...]  # of the optimizer's groups: rate, momentum, betas, eps
    micro_batch_size: int
    measures_noise: bool
    weight: float = 1.0  # of its gradient in the update
    of: int = 1  # parts that make one update


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """The gradient of a part."""

    loss: float  # sum over its samples
    tensors: tuple[Tensor | None, ...]  # of each trained parameter
    buffers: tuple[Tensor, ...]
    noise: tuple[float, float] | None
    num_passes: int
    takes_s: float  # of a processor
    short: bool  # memory did not suffice


@dataclass(frozen=True, kw_only=True)
class Done:
    """The message of a worker that it has trained on a part."""

    loss: float  # sum over its samples, before the update
    noise: tuple[float, float] | None  # |g|^2 and tr(Sigma), if they were measured
    num_passes: int
    gradient_s: float  # of a processor
    apply_s: float
    is_update: bool  # the weights have changed: it was no part of an update that lacks others
    short: bool  # memory did not suffice, so nothing has changed


class Trainee(Protocol):
    """Computes gradients and applies them; both run in the process of a worker."""

    def gradient(self, part: BatchPart) -> Gradient:
        """Returns the gradient of a part at the shared weights of this moment."""

    def apply(self, gradient: Gradient, part: BatchPart) -> Done:
        """Changes the shared weights; one worker at a time."""


class WorkerPool(Protocol):
    """Numbered workers; a worker starts when the first part is sent to it."""

    def now(self) -> float:
        """Returns the time, in seconds."""

    def pids(self) -> list[int]:
        """Returns the processes of the workers."""

    def send(self, worker: int, part: BatchPart) -> None:
        """Gives a worker a part, after those that it has."""

    def wait(self, timeout_s: float) -> list[tuple[int, Done]]:
        """Returns what workers have done, in order; waits for the first, at most so long."""

    def stop(self, worker: int) -> list[Done]:
        """Ends a worker between two updates, and returns results that it had not reported yet."""

    def close(self) -> None:
        """Ends all workers."""


class Processes:
    """Workers as forked processes."""

    def __init__(self, trainee: Trainee) -> None:
        self._trainee = trainee
        self._context = multiprocessing.get_context("fork")
        self._lock = self._context.Lock()  # held while weights are changed, and by who stops a worker
        self._workers: dict[int, tuple[Any, Any]] = {}  # process, and this end of its pipe
        # Multiprocessing would send them SIGTERM, which they hold back, and wait for them for ever.
        util.Finalize(self, _kill, args=(self._workers,), exitpriority=1)

    def now(self) -> float:
        """Returns seconds of a clock that nobody sets."""
        return time.monotonic()

    def pids(self) -> list[int]:
        """Returns the processes of the workers."""
        return [process.pid for process, _ in self._workers.values()]

    def send(self, worker: int, part: BatchPart) -> None:
        """Gives a worker a part; begins its process if there is none."""
        if worker not in self._workers:
            here, there = self._context.Pipe()
            arguments = (self._trainee, there, self._lock, os.getpid())
            process = self._context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            there.close()
            self._workers[worker] = process, here
        with suppress(BrokenPipeError):  # `wait` says so
            self._workers[worker][1].send(part)

    def wait(self, timeout_s: float) -> list[tuple[int, Done]]:
        """Returns what workers have done. Raises Interrupted where one has ended by itself, and ends all."""
        workers = {end: worker for worker, (_, end) in self._workers.items()}
        done = []
        for ready in connection.wait(list(workers), timeout_s):
            worker = workers[ready]
            process, end = self._workers[worker]
            try:
                done.append((worker, end.recv()))
            except (EOFError, ConnectionResetError):
                process.join()
                raise self._interrupted(process) from None
        return done

    def stop(self, worker: int) -> list[Done]:
        """Kills a worker while it changes no weights.

        Raises Interrupted where one has died while it changed them, and ends all.
        """
        while not self._lock.acquire(timeout=LOCK_S):
            for process, _ in self._workers.values():
                if not process.is_alive():  # it may hold the lock
                    raise self._interrupted(process)
        process, end = self._workers.pop(worker)
        try:
            process.kill()
            process.join()
        finally:
            self._lock.release()
        done = []
        with suppress(EOFError, ConnectionResetError):
            while end.poll():
                done.append(end.recv())
        end.close()
        return done

    def close(self) -> None:
        """Ends all workers."""
        with suppress(Interrupted):
            for worker in list(self._workers):
                self.stop(worker)

    def _interrupted(self, dead: Any) -> Interrupted:
        """Ends all workers after the death of one, which may have held the lock; returns what to raise."""
        _kill(self._workers)
        return Interrupted(
            f"training process {dead.pid} ended with {dead.exitcode}; the job goes on from its last "
            f"checkpoint, and if that does not help, set train.threads to fixed"
        )


def _kill(workers: dict[int, tuple[Any, Any]]) -> None:
    """Ends workers whatever they do."""
    for process, _ in workers.values():
        process.kill()
    for process, end in workers.values():
        process.join()
        end.close()
    workers.clear()


def _work(trainee: Trainee, end: Any, lock: Any, parent: int) -> None:
    """Trains on the parts that come, until this process is killed."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer says when to end; it also holds SIGTERM back
    torch.set_num_threads(1)
    while True:
        part = end.recv()
        gradient = trainee.gradient(part)
        with lock:
            end.send(trainee.apply(gradient, part))  # in the lock: what was applied has been said
