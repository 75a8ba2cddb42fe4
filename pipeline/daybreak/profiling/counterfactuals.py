"""Measures how long an update would take if one thing were different, by running that update where possible.

    no input        the step again on batches that are on the device already
    no model        the batch is loaded and no step is taken
    no arithmetic   the step with the compute-bound operators skipped
    no traffic      the step with the memory-bound operators skipped
    half the batch  two updates on half a batch each, so that the samples are as many
    another loader  the update with one loader more
    cold            the load after the arrays were dropped from the page cache

A gain is time saved / time. Runs that are compared take turns, and the best of each counts, as other load on
the machine only ever adds time. Several batches stay on the device: a single one would stay in the cache.
"""

import ctypes
import logging
import mmap
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.machines import contention
from daybreak.profiling.bounds import Bound, Operator, Rates, memory_share

if TYPE_CHECKING:
    from daybreak.profiling.harness import Harness

log = logging.getLogger(__name__)

LIMIT_S = 0.7  # of each group of runs
LEAST, MOST = 2, 20  # rounds, whatever the limit in seconds
NUM_KEPT = 4
MAPS = Path("/proc/self/maps")


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Seconds of an update and its parts, and the share of the update that each change saves."""

    update_s: float
    load_s: float
    step_s: float
    load_busy: float  # share of loading in which the processor works rather than waits
    no_input_gain: float
    no_model_gain: float
    half_batch_gain: float
    more_loader_gain: float


def kept(harness: "Harness", size: int) -> list[Any]:
    """Returns batches on the device, to be used in turn."""
    return [harness.load(size) for _ in range(NUM_KEPT)]


def changes(harness: "Harness", size: int, batches: Sequence[Any]) -> Changes:
    """Times load, step, a step on a kept batch and half a batch, in turn; returns times and gains."""
    half = max(1, size // 2)
    load_s, step_s, kept_s, half_s = [], [], [], []
    busy_s: list[float] = []
    waited_s: list[float] = []  # for a core that others used, which is not waiting for storage
    begin = harness.now()
    for number in range(MOST):
        waited_before_s = contention.waited_s() or 0.0
        start, busy_before_s = harness.now(), time.process_time()
        if number >= LEAST and start - begin > LIMIT_S:
            break
        batch = harness.load(size)
        loaded = harness.now()
        busy_s.append(time.process_time() - busy_before_s)
        waited_s.append(max(0.0, (contention.waited_s() or 0.0) - waited_before_s))
        begun = harness.now()
        harness.step(batch, size)
        stepped = harness.now()
        harness.step(batches[number % len(batches)], size)
        again = harness.now()
        harness.step(harness.load(half), half)
        half_s.append(harness.now() - again)
        load_s.append(loaded - start)
        step_s.append(stepped - begun)
        kept_s.append(again - stepped)
    update_s = min(whole + step for whole, step in zip(load_s, step_s, strict=True))
    rounds = max(LEAST, min(MOST, int(LIMIT_S / 2 / update_s)))
    loaders = harness.tuning.num_loaders
    without = harness.update_s(size, rounds, num_loaders=loaders) if loaders else [update_s]
    more_s = harness.update_s(size, rounds, num_loaders=loaders + 1)
    return Changes(
        update_s=update_s,
        load_s=min(load_s),
        load_busy=_busy(load_s, busy_s, waited_s),
        step_s=min(step_s),
        no_input_gain=1 - min(kept_s) / update_s,
        no_model_gain=1 - min(load_s) / update_s,
        half_batch_gain=1 - 2 * min(half_s) / update_s * (size / 2 / half),
        more_loader_gain=1 - min(more_s) / min(without),
    )


def _busy(load_s: Sequence[float], busy_s: Sequence[float], waited_s: Sequence[float]) -> float:
    """Returns the share of time at work in the fastest load, out of the time that it had a core."""
    fastest = load_s.index(min(load_s))
    had_s = load_s[fastest] - min(waited_s[fastest], load_s[fastest] - busy_s[fastest])
    return min(1.0, busy_s[fastest] / had_s) if had_s > 0 else 0.0


def step_gains(
    harness: "Harness", size: int, batch: Any, operators: Sequence[Operator], rates: Rates
) -> dict[Bound, float] | None:
    """Returns what the step saves without arithmetic (`compute`) and without traffic (`memory`).

    Returns None where the step cannot run without these operators: the step differs from one time to the
    next, memory does not hold the operators' results, or the step's code fails on values that are no longer
    computed. The unchanged step ran before, so any error here comes from skipping. The updates of such steps
    are meaningless: rebuild the harness afterwards.
    """
    from daybreak.profiling.operators import Replay

    names = [operator.name for operator in operators]
    bounds = [operator.bound(rates) for operator in operators]
    skipped: dict[Bound, set[int]] = {
        bound: {place for place, operator_bound in enumerate(bounds) if operator_bound == bound}
        for bound in ("compute", "memory")
    }
    runs = {"": Replay(names, set())}
    runs |= {bound: Replay(names, places) for bound, places in skipped.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    begin = harness.now()
    try:
        for number in range(MOST):
            if number > LEAST and harness.now() - begin > LIMIT_S:
                break
            for name, replay in runs.items():
                replay.rewind()
                start = harness.now()
                with replay:
                    harness.step(batch, size)
                if number > 0:  # in the first round everything runs
                    seconds[name].append(harness.now() - start)
    except Exception as error:
        log.info("no step without its operators: %s", error)
        log.debug("raised without them", exc_info=error)
        return None
    whole_s = min(seconds[""])
    return {bound: 1 - min(seconds[bound]) / whole_s for bound in skipped}


def by_time(operators: Sequence[Operator], rates: Rates) -> dict[Bound, float]:
    """Returns the gains of `step_gains`, estimated from the time of each operator alone."""
    share = memory_share(operators, rates)
    return {"compute": 1 - share, "memory": share}


def cold(harness: "Harness", size: int, folder: Path) -> dict[str, float]:
    """Returns the seconds of a load after dropping the page cache, and of the same again; {} if it cannot."""
    if not drop(folder):
        return {}
    start = harness.now()
    harness.load(size)
    again = harness.now()
    harness.reload(size)
    return {"cold_load_s": again - start, "warm_load_s": harness.now() - again}


def storage(changes: Changes, cold_s: Mapping[str, float]) -> dict[str, float]:
    """Returns the seconds that storage takes in a load, as shares of it.

    `cold_share` is the share of a load with nothing in memory yet, `waited_share` that of the load as
    measured, at most as large. Both are 0 for a data set that waits for something other than its arrays.
    """
    storage_s = max(0.0, cold_s.get("cold_load_s", 0.0) - cold_s.get("warm_load_s", 0.0))
    cold_share = storage_s / changes.load_s if changes.load_s else 0.0
    return {"cold_share": cold_share, "waited_share": min(cold_share, 1 - changes.load_busy)}


def drop(folder: Path) -> bool:
    """Drops the files in `folder` from the page cache, mapped pages too; returns False if it cannot."""
    paths = [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []
    if not paths or not hasattr(os, "posix_fadvise") or not MAPS.exists():
        return False
    _unmap({str(path.resolve()) for path in paths})
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)  # unwritten pages cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    return True


def _unmap(paths: set[str]) -> None:
    """Releases this process's read-only mappings of the files: mapped pages stay in the cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    for line in MAPS.read_text().splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[5] in paths and "w" not in words[1]:
            first, last = (int(number, 16) for number in words[0].split("-"))
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)
