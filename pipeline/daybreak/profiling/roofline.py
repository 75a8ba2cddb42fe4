"""Measures how fast this machine is at most, the ceilings of its roofline, and keeps them for some days.

Short micro-benchmarks, the best of several runs each, as other load on the machine only ever slows them. On a
CPU each runs twice, and the faster counts: on all threads by the clock, and on one thread by its own CPU
time. A thread that has lost its core takes no CPU time, so the second figure holds under any load; it may
fall short of the rate of all threads, but never exceeds it.

    product   FLOP/s of a large matrix product, in float32 and in bfloat16
    copy      bytes/s read and written by a copy beyond any cache (STREAM, McCalpin 1995)
    fresh     bytes/s of writing to memory that the system allocates only then, page by page
    gather    bytes/s read and written by an embedding of random rows, from a table beyond any cache
    scatter   bytes/s read and written by adding random rows to a table beyond any cache
    dispatch  seconds of an operator on a single number, forward and backward
    disk      bytes/s of reading the night's arrays, after dropping the page cache (cold) or not (warm)

A roofline has one ceiling per resource (Williams, Waterman and Patterson 2009). Random rows have their own:
they come far slower than a stream, and are written slower than read; a job that gathers is compared with what
gathers can reach. No operator takes less than its dispatch, however small it is.

CPU time of all threads over their number would not do: threads that wait for a thread without a core spin,
and so take CPU time, and a kernel too small to be divided leaves all but one idle. `make bench NAME=ceilings`
on two cores that others used too (2026-11-23), in GFLOP/s and GB/s, before and after two processes that count
joined:

                                        product    copy     gather     scatter
    all threads, clock                   63  30    19  10    19   1     16  0.03
    all threads, CPU time / threads     136 126    41  38    52   4     33  35
    one thread, CPU time                 93  92    27  26    14  13     13  12
    the faster of the first and third    99  86    27  26    23  19     14  14

The result is one file per machine under $DAYBREAK_HOME/var/machines, named by a digest of its fingerprint.
"""

import itertools
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from daybreak.contract import records
from daybreak.contract.errors import DataError
from daybreak.contract.formats import percent
from daybreak.contract.record_parts import Record
from daybreak.machines import contention, this_machine
from daybreak.machines.this_machine import KEPT, KEPT_DISTURBED, facts_digest, fingerprint
from daybreak.storage.home import Home
from daybreak.storage.journal import alone

log = logging.getLogger(__name__)

PRODUCT_S, COPY_S, GATHER_S, DISPATCH_S, DISK_S = 0.4, 0.4, 0.25, 0.2, 0.5  # spent on each benchmark
ROW_BYTES = (16, 64, 256, 1024)  # of the rows gathered: 4 to 256 numbers in float32
GATHER_BYTES = 4 << 20  # in one gather, as in a batch; a larger gather would measure the allocator
NUM_CHAINED = 100  # pairs of operators
TURNS = 16  # gathers of different rows
TABLE_BYTES = {"cpu": 128 << 20, "cuda": 2 << 30}
CACHE_FACTOR = 4  # a table is so many times larger than the last-level cache
READ_BYTES = 4 << 20  # at a time
LEAST_BYTES, MOST_BYTES = 16 << 20, 256 << 20  # read from the disk


@dataclass(frozen=True, kw_only=True)
class Gather(Record):
    """The rate of an embedding of random rows of that width, in bytes read and written per second."""

    row_bytes: int
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class Ceilings(Record):
    """The most that the machine reaches; bytes of copies and gathers count reads and writes."""

    machine: dict[str, Any]  # its fingerprint
    measured_at: datetime
    on_cpu: bool
    float32_flops_per_s: float
    bfloat16_flops_per_s: float
    copy_bytes_per_s: float
    fresh_bytes_per_s: float  # written to new pages
    gathers: tuple[Gather, ...]  # by ascending width
    scatters: tuple[Gather, ...]  # likewise
    dispatch_s: float = 0.0  # of an operator on one number
    cold_bytes_per_s: float  # read from the disk
    warm_bytes_per_s: float  # read from the page cache
    contention: float = 0.0  # share of the time in which the measurements waited for other processes

    @property
    def stands_until(self) -> datetime:
        """Until when these hold: a week, or less than a day if other processes disturbed them."""
        return self.measured_at + (KEPT_DISTURBED if self.contention > contention.MOST else KEPT)

    @property
    def flops_per_s(self) -> float:
        """FLOP/s in the type that the catalog states them in: float32 on CPUs, bfloat16 elsewhere."""
        return self.float32_flops_per_s if self.on_cpu else self.bfloat16_flops_per_s

    def gather_bytes_per_s(self, row_bytes: float) -> float:
        """Returns the rate for random rows of any width, by log-log interpolation between those measured."""
        return _interpolated(self.gathers, row_bytes)

    def scatter_bytes_per_s(self, row_bytes: float) -> float:
        """Returns the rate of adding to random rows of any width, likewise."""
        return _interpolated(self.scatters or self.gathers, row_bytes)


def _interpolated(measured: Sequence[Gather], row_bytes: float) -> float:
    widths = np.log([each.row_bytes for each in measured])
    rates = np.log([each.bytes_per_s for each in measured])
    return float(np.exp(np.interp(np.log(max(row_bytes, 1.0)), widths, rates)))


def ceilings(home: Home | None, folder: Path) -> Ceilings:
    """Returns the ceilings of this machine, measured now unless those that are kept still stand.

    Where other processes disturb the measurement, undisturbed ceilings of before stay, however old. The disk
    is the one that `folder` is on. Of two processes at once only one measures, so that neither slows the
    other. Outside of any home nothing is kept.
    """
    machine = fingerprint()
    if home is None:
        return measure(folder)
    path = home.var / "machines" / f"{facts_digest(machine)}.json"
    with alone(path.with_suffix(".lock")):
        kept = _read(path)
        known = kept if kept and kept.machine == machine else None
        if known and datetime.now(UTC) < known.stands_until:
            return known
        measured = measure(folder)
        if known and measured.contention > contention.MOST >= known.contention:
            log.info(
                "other processes disturbed the ceilings (%s of the time), which stay those of %s",
                percent(measured.contention),
                f"{known.measured_at:%Y-%m-%d}",
            )
            return known
        records.replace_text(path, records.dumps(measured))
    return measured


def measure(folder: Path) -> Ceilings:
    """Measures all ceilings, in a few seconds; `folder` is where the arrays are."""
    begin = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with contention.measured() as seen:
        gathers = tuple(Gather(row_bytes=width, bytes_per_s=_gather(device, width)) for width in ROW_BYTES)
        scatters = tuple(Gather(row_bytes=width, bytes_per_s=_scatter(device, width)) for width in ROW_BYTES)
        cold, warm = _disk(folder)
        measured = Ceilings(
            machine=fingerprint(),
            measured_at=datetime.now(UTC),
            on_cpu=device.type == "cpu",
            float32_flops_per_s=_product(device, torch.float32),
            bfloat16_flops_per_s=_product(device, torch.bfloat16),
            copy_bytes_per_s=_copy(device),
            fresh_bytes_per_s=_fresh(device),
            gathers=gathers,
            scatters=scatters,
            dispatch_s=_dispatch(device),
            cold_bytes_per_s=cold,
            warm_bytes_per_s=warm,
        )
    measured = replace(measured, contention=seen.share)
    log.info("measured the ceilings of this machine in %.1f s", time.perf_counter() - begin)
    return measured


def _product(device: torch.device, dtype: torch.dtype) -> float:
    size = {"cpu": 1024, "cuda": 8192}[device.type]
    if device.type == "cpu" and dtype is not torch.float32:
        size = 512  # without an instruction for the type, a product takes very long
    a = torch.ones(size, size, dtype=dtype, device=device)
    return 2.0 * size**3 / _best_s(lambda: a @ a, device, PRODUCT_S)


def _copy(device: torch.device) -> float:
    source = torch.ones(_table_bytes(device) // 4, device=device)
    target = torch.empty_like(source)
    return 2.0 * 4 * len(source) / _best_s(lambda: target.copy_(source), device, COPY_S)


def _fresh(device: torch.device) -> float:
    """Returns the rate of filling new tensors too large for an allocator to keep: glibc keeps 32 MB."""
    length = _table_bytes(device) // 4
    return 4.0 * length / _best_s(lambda: torch.ones(length, device=device), device, COPY_S)


def _gather(device: torch.device, row_bytes: int) -> float:
    """Returns the rate of gathers, of different rows each time, so that they are not in a cache.

    The table is written first, so that its pages are not the zero page.
    """
    table = torch.ones(_table_bytes(device) // row_bytes, row_bytes // 4, device=device)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(len(table), (TURNS, GATHER_BYTES // row_bytes), generator=generator).to(device)
    turns = itertools.cycle(rows)
    best_s = _best_s(lambda: torch.nn.functional.embedding(next(turns), table), device, GATHER_S)
    return 2.0 * GATHER_BYTES / best_s


def _scatter(device: torch.device, row_bytes: int) -> float:
    """Returns the rate of adding to rows, of different ones each time."""
    table = torch.ones(_table_bytes(device) // row_bytes, row_bytes // 4, device=device)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(len(table), (TURNS, GATHER_BYTES // row_bytes), generator=generator).to(device)
    added = torch.ones(rows.shape[1], row_bytes // 4, device=device)
    turns = itertools.cycle(rows)
    return 2.0 * GATHER_BYTES / _best_s(lambda: table.index_add_(0, next(turns), added), device, GATHER_S)


def _dispatch(device: torch.device) -> float:
    """Returns the seconds of an operator on one number, as the mean over a chain and its backward pass."""
    number = torch.ones(1, device=device, requires_grad=True)

    def run() -> None:
        value = number
        for _ in range(NUM_CHAINED):
            value = (value * 1.001).sin()
        value.backward()  # type: ignore[no-untyped-call]

    return _best_s(run, device, DISPATCH_S) / (5 * NUM_CHAINED)  # two of them forward, three backward


def _table_bytes(device: torch.device) -> int:
    """Returns the size of a table much larger than the last-level cache and small beside the memory."""
    if device.type == "cuda":
        return TABLE_BYTES["cuda"]
    wanted = max(TABLE_BYTES["cpu"], CACHE_FACTOR * this_machine.last_cache_bytes())
    limit = this_machine.limit_bytes()
    room = this_machine.installed_bytes() if limit is None else min(limit, this_machine.installed_bytes())
    return min(wanted, max(GATHER_BYTES, room // 16))


def _best_s(run: Callable[[], object], device: torch.device, limit_s: float) -> float:
    """Returns the seconds of the fastest of several runs, on a CPU by both of its clocks."""
    if device.type != "cpu":
        return _fastest_s(run, device, limit_s, clock=time.perf_counter)
    num_threads = torch.get_num_threads()
    by_clock_s = _fastest_s(run, device, limit_s / 2, clock=time.perf_counter)
    torch.set_num_threads(1)
    try:
        return min(by_clock_s, _fastest_s(run, device, limit_s / 2, clock=time.thread_time))
    finally:
        torch.set_num_threads(num_threads)


def _fastest_s(
    run: Callable[[], object], device: torch.device, limit_s: float, *, clock: Callable[[], float]
) -> float:
    """Returns the seconds of the fastest of several runs, after a first run that warms up."""
    best, start = float("inf"), time.perf_counter()
    run()
    while time.perf_counter() - start < limit_s or best == float("inf"):
        _wait(device)
        begin = clock()
        run()
        _wait(device)
        best = min(best, clock() - begin)
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _disk(folder: Path) -> tuple[float, float]:
    """Returns the bytes/s of reading cold and warm."""
    with ExitStack() as stack:
        paths = sorted((p for p in folder.rglob("*") if p.is_file()), key=lambda p: -p.stat().st_size)
        files: list[IO[bytes]] = [stack.enter_context(path.open("rb", buffering=0)) for path in paths[:16]]
        if sum(os.fstat(file.fileno()).st_size for file in files) < LEAST_BYTES:
            # The arrays are too small to measure a rate rather than a delay.
            files = [stack.enter_context(_scratch(folder))]
        cold = [_read_all(files, cold=True) for _ in range(2)]
        warm = [_read_all(files, cold=False) for _ in range(3)]
    return max(cold), max(warm)


@contextmanager
def _scratch(folder: Path) -> Iterator[IO[bytes]]:
    """Yields a nameless file on the same disk, which leaves nothing behind however this process ends."""
    place = next(parent for parent in folder.absolute().parents if parent.exists())
    with tempfile.TemporaryFile(dir=place, buffering=0) as file:
        for _ in range(2 * LEAST_BYTES // READ_BYTES):
            file.write(os.urandom(READ_BYTES))
        yield file


def _read_all(files: Sequence[IO[bytes]], *, cold: bool) -> float:
    """Returns the bytes/s of reading the files in turn, up to a limit of bytes and seconds."""
    if cold and hasattr(os, "posix_fadvise"):
        for file in files:
            os.fsync(file.fileno())  # unwritten pages cannot be dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    buffer = memoryview(bytearray(READ_BYTES))
    total, begin = 0, time.perf_counter()
    for file in files:
        file.seek(0)
        while (count := file.readinto(buffer)) and total < MOST_BYTES:  # type: ignore[attr-defined]
            total += count
            if time.perf_counter() - begin > DISK_S:
                break
    return total / (time.perf_counter() - begin)


def _read(path: Path) -> Ceilings | None:
    """Returns the kept ceilings; None where there are none, the file is torn, or some were not measured."""
    try:
        kept = records.loads(Ceilings, path.read_text(), source=str(path))
    except (FileNotFoundError, UnicodeDecodeError, DataError):
        return None
    return kept if kept.scatters else None
