"""Measures how much memory a step needs: peaks of one training process over several batch sizes.

On an accelerator, the peak is that of torch's allocator. On a CPU, it is the peak resident set of a fresh
process, above its size with the data open and touched but before there was a model. The process is fresh
because an allocator keeps memory that it once had, and would hide later peaks in it. Where samples differ in
size, each batch repeats the largest sample found, so that what fits then fits in any order.

Some steps are timed first: batch sizes of which a profile would take too long are left out, and where that
leaves fewer than two, smaller ones are taken.
"""

import gc
import math
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.contract.errors import JobError, ParamsError, PipelineError, PlanError, is_out_of_memory
from daybreak.contract.record_parts import Tuning
from daybreak.contract.workload import Workload
from daybreak.machines import this_machine

if TYPE_CHECKING:
    from torch import nn

    from daybreak.profiling.harness import Harness

CLEAR = Path("/proc/self/clear_refs")
UPDATES = 60.0  # that a profile takes of the largest batch, at most; the smaller ones come to as many again
LEAST_SAMPLES = 2  # of a batch that is timed, as BatchNorm needs more than one
KILLED = (-signal.SIGKILL, -signal.SIGABRT)  # by the kernel, or by C++ code that could not allocate memory


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Peak bytes of a step at each batch size that fits, and the bytes that were free for steps."""

    batch_sizes: tuple[int, ...]
    step_bytes: tuple[int, ...]
    step_s: float  # of one step at the smallest batch size
    room_bytes: int  # free for steps
    too_large: int | None  # the batch size that did not fit, if any
    how: str
    convolves: bool = False  # the model has convolutions that can be band-limited
    too_slow: int | None = None  # the batch size from which on a profile would take too long, if any


def sharing(num_workers: int) -> int:
    """Returns how many of so many workers on this machine share the memory of one device."""
    import torch

    return -(-num_workers // max(1, torch.cuda.device_count()))


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The steps to measure: one worker with this tuning, at batch sizes up to the job's."""

    workload: Workload
    folder: Path
    batch_sizes: tuple[int, ...]
    batch_size: int
    seed: int
    tuning: Tuning = field(default_factory=Tuning)
    num_workers: int = 1
    installed_bytes: int = field(default_factory=this_machine.installed_bytes)
    limit_s: float = math.inf  # of the whole profile, trials left out

    def harness(self) -> "Harness":
        """Returns a harness with the data of the job, without a model."""
        from daybreak.profiling.harness import Harness

        return Harness(self.workload, self.folder, seed=self.seed)

    def sizes(self, harness: "Harness") -> tuple[int, ...]:
        """Returns the batch sizes that the job may use; at least two, where there are two."""
        sizes = harness.sizes(self.batch_sizes)
        return tuple(size for size in sizes if size <= max(self.batch_size, sizes[:2][-1]))


@contextmanager
def measuring(probe: Probe) -> Iterator[Callable[[], Peaks]]:
    """Yields a function that waits for the peaks.

    On a CPU the fresh process opens its data while the caller opens its own. Errors of the job are raised as
    from the caller's own step; ParamsError if the workload cannot be sent to the process, PlanError if the
    process was killed, JobError if it failed otherwise.
    """
    import torch

    if torch.cuda.is_available():
        yield lambda: _on_accelerator(probe)
        return
    spawn = get_context("spawn")
    here, there = spawn.Pipe(duplex=False)
    fresh = spawn.Process(target=_send, args=(there, probe), daemon=True)
    try:
        fresh.start()
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ParamsError(
            f"{type(probe.workload).__name__} cannot be sent to a process that measures its memory: {error}; "
            f"keep locks, open files and lambdas out of what it holds (key workload)"
        ) from error
    there.close()

    def wait() -> Peaks:
        newest: Peaks | None = None
        while True:
            try:
                message = here.recv()
            except EOFError:
                break
            if isinstance(message, PipelineError):
                raise message
            newest = message
        fresh.join()
        if fresh.exitcode not in (0, *KILLED):
            raise JobError(
                f"a process that trains on {min(probe.batch_sizes)} samples at a time ended with status "
                f"{fresh.exitcode}; look at its output above, and run it again"
            )
        if newest is None or not newest.batch_sizes:
            raise PlanError(
                f"a process that trains on {min(probe.batch_sizes)} samples at a time was ended by signal "
                f"{-(fresh.exitcode or 0)}, most likely for its memory; lower profile.batch_sizes and "
                f"train.batch_size, or train a smaller model"
            )
        # If the process was killed at some size, the peaks that it sent before are of sizes that fit.
        return newest

    try:
        yield wait
    finally:
        fresh.kill()
        fresh.join()
        here.close()


def _send(to: Connection, probe: Probe) -> None:
    """Measures in the fresh process, and sends the peaks so far or the error to the pipe."""
    try:
        for peaks in _in_fresh_process(probe):
            to.send(peaks)
    except PipelineError as error:
        to.send(error)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        to.send(PlanError("the data set does not fit the memory; let it map its arrays, or give it more"))


def _on_accelerator(probe: Probe) -> Peaks:
    import torch

    gc.collect()  # leftovers of an earlier attempt
    torch.cuda.empty_cache()
    harness = probe.harness()
    before = torch.cuda.memory_allocated()
    room = torch.cuda.get_device_properties(0).total_memory

    def peak(size: int) -> int:
        torch.cuda.reset_peak_memory_stats()
        harness.step(harness.load_largest(size), size)
        return torch.cuda.max_memory_allocated() - before

    *_, last = _growing(harness, probe, peak, room)
    torch.cuda.empty_cache()
    return replace(last, how="torch.cuda.max_memory_allocated")


def _in_fresh_process(probe: Probe) -> Iterator[Peaks]:
    harness = probe.harness()
    try:
        harness.load(probe.sizes(harness)[-1])  # pages of the arrays are the system's, not the job's
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    before, _ = _resident()
    limit = this_machine.limit_bytes()
    room = probe.installed_bytes - before
    room = room if limit is None else min(room, limit)

    def peak(size: int) -> int:
        _reset_peak()
        harness.step(harness.load_largest(size), size)
        return max(0, _resident()[1] - before)

    yield from _growing(harness, probe, peak, room)


def _growing(harness: "Harness", probe: Probe, peak: Callable[[int], int], room: int) -> Iterator[Peaks]:
    """Yields the peaks so far after each size; the last says which size does not fit, if any."""
    sizes = probe.sizes(harness)
    peak_bytes: dict[int, int] = {}
    step_s, too_slow, convolves = 0.0, None, False

    def peaks(too_large: int | None) -> Peaks:
        return Peaks(
            batch_sizes=tuple(peak_bytes),
            step_bytes=tuple(peak_bytes.values()),
            step_s=step_s,
            room_bytes=room,
            too_large=too_large,
            how="growth of the peak resident set of a fresh process over the same process without a model",
            too_slow=too_slow,
            convolves=convolves,
        )

    try:
        harness.build(probe.tuning, num_workers=probe.num_workers)
        convolves = _convolves(harness.model)
        most = _most_samples(harness, sizes, limit_s=probe.limit_s)
        too_slow = next((size for size in sizes if size > most), None)
        quick = tuple(size for size in sizes if size <= most)
        sizes = quick if len(quick) > 1 or not too_slow else harness.sizes((most // 2, most))
        # The first update makes the optimizer's moments.
        harness.step(harness.load_largest(sizes[0]), sizes[0])
        batch, begin = harness.load_largest(sizes[0]), harness.now()
        harness.step(batch, sizes[0])
        step_s = harness.now() - begin
        del batch
        for size in sizes:
            yield peaks(size)  # if the process is killed now, this size was too large
            peak_bytes[size] = peak(size)
        yield peaks(None)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        if not peak_bytes:
            raise PlanError(
                f"a step of {sizes[0]} samples does not fit the memory, of which {room:,} bytes were free"
                "; train a smaller model, lower profile.batch_sizes and train.batch_size, or give it more"
            ) from None
        yield peaks(next(size for size in sizes if size not in peak_bytes))


def _convolves(model: "nn.Module") -> bool:
    from daybreak.training.tuning import limitable

    return limitable(model)


def _most_samples(harness: "Harness", sizes: tuple[int, ...], *, limit_s: float) -> int:
    """Returns the samples of the largest batch of which `UPDATES` updates take at most `limit_s`."""
    if limit_s == math.inf:
        return sizes[-1]
    size = min(LEAST_SAMPLES, sizes[0])
    while True:
        for _ in range(2):  # the first one also warms up
            begin = harness.now()
            harness.step(harness.load(size), size)
            seconds = harness.now() - begin
        most = max(2 * LEAST_SAMPLES, int(size * limit_s / UPDATES / seconds))
        if most < 4 * size or most >= sizes[-1]:
            return most
        size *= 4


def _resident() -> tuple[int, int]:
    """Returns the bytes resident now, and the peak since `_reset_peak`."""
    if not this_machine.STATUS.exists():  # macOS counts bytes, and only the peak
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak, peak
    status = this_machine.status()
    return status["VmRSS"], status["VmHWM"]


def _reset_peak() -> None:
    """Resets the peak where the kernel allows it; elsewhere it only rises, as the batch sizes do."""
    if sys.platform == "linux" and os.access(CLEAR, os.W_OK):
        CLEAR.write_text("5")
