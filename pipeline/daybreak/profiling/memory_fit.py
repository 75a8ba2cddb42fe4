"""Finds the cheapest way of taking a step that fits the memory, by remedies tried in order.

The remedies, the cheapest first: micro-batches, which cost next to nothing; activation checkpointing, one
more forward pass (Chen et al. 2016); the sharded optimizer, which sends weights to all workers at each update
(Rajbhandari et al. 2020); sharded weights, gathered block by block in each pass. None changes what is
learned; bfloat16 does, so it is tried once the job fits. Each of these is measured in a separate process,
under the limits that apply. Band-limited convolutions change the model: their memory is measured where the
job does not fit otherwise, and a person accepts them by `train.band_rate`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from daybreak.contract.errors import ParamsError, PlanError
from daybreak.contract.record_parts import Tuning
from daybreak.contract.sections import ProfileParams, TrainParams
from daybreak.contract.workload import Workload, is_undivided
from daybreak.machines.catalog import HEADROOM
from daybreak.profiling import line_fit
from daybreak.profiling.memory import Peaks, Probe, measuring, sharing
from daybreak.profiling.remedies import BAND_LIMITED, OFFERED_RATE

MIB = 1 << 20
MEMORY_REMEDIES = {
    "micro-batches": Tuning(),
    "activation checkpointing": Tuning(recompute=True),
    "sharded optimizer": Tuning(recompute=True, sharded=True),
    "sharded weights": Tuning(recompute=True, sharded=True, sharded_weights=True),
}


@dataclass(frozen=True, kw_only=True)
class MemoryFit:
    """The tuning with which a step fits the memory, its peaks, and the effect of each later remedy."""

    tuning: Tuning
    peaks: Peaks
    notes: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def fitting(
    workload: Workload,
    folder: Path,
    params: ProfileParams,
    training: TrainParams,
    *,
    limit_s: float = math.inf,
) -> Iterator[Callable[[], MemoryFit]]:
    """Yields a function that waits for the first remedy that fits; see `measuring` for what it raises.

    Where remedies can be measured but none leaves the headroom, it returns the first: another machine may
    have the memory. It raises PlanError where none can be measured.
    """
    probe = Probe(
        workload=workload,
        folder=folder,
        batch_sizes=params.batch_sizes,
        batch_size=training.batch_size,
        seed=training.seed,
        num_workers=training.num_workers,
        tuning=Tuning(band_rate=training.band_rate),
        limit_s=limit_s,
    )
    with measuring(probe) as first:
        yield lambda: _first_that_fits(probe, first)


def _first_that_fits(probe: Probe, first: Callable[[], Peaks]) -> MemoryFit:
    peaks_of: dict[str, Peaks] = {}
    reason, base = "", probe.tuning
    for name, change in MEMORY_REMEDIES.items():
        tuning = replace(change, band_rate=base.band_rate)
        if tuning.sharded and probe.num_workers == 1:
            break
        try:
            peaks = first() if tuning == base else _measured(replace(probe, tuning=tuning))
        except PlanError as error:
            reason = str(error)  # not the error itself, whose frames keep memory alive
            continue
        except ParamsError as error:  # the code may work with a whole model only
            if not tuning.sharded_weights:
                raise
            reason = reason or str(error)
            continue
        peaks_of[name] = peaks
        if _fits(peaks, probe):
            limited = _band_limited(probe, peaks_of) if tuning != base else {}
            return MemoryFit(tuning=tuning, peaks=peaks, notes=_notes(name, peaks_of, limited))
    limited = _band_limited(probe, peaks_of)
    if not peaks_of:
        raise PlanError(f"{reason}{_offered(limited, probe)}")
    name, peaks = next(iter(peaks_of.items()))
    tuning = replace(MEMORY_REMEDIES[name], band_rate=base.band_rate)
    return MemoryFit(tuning=tuning, peaks=peaks, notes=_notes(name, peaks_of, limited))


def _fits(peaks: Peaks, probe: Probe) -> bool:
    """Returns whether a step of the smallest batch leaves the headroom, or of one that is undivided."""
    needed = float(peaks.step_bytes[0])
    if is_undivided(probe.workload):
        needed = line_fit.fit(peaks.batch_sizes, peaks.step_bytes)(probe.batch_size)
    return sharing(probe.num_workers) * needed <= peaks.room_bytes * (1 - HEADROOM)


def _measured(probe: Probe) -> Peaks:
    with measuring(probe) as wait:
        return wait()


def _band_limited(probe: Probe, peaks_of: Mapping[str, Peaks]) -> dict[str, Peaks]:
    """Returns the peaks with band-limited convolutions, which are not taken but offered; {} without any."""
    if probe.tuning.band_rate or not all(peaks.convolves for peaks in peaks_of.values()):
        return {}
    try:
        peaks = _measured(replace(probe, tuning=Tuning(band_rate=OFFERED_RATE)))
    except (PlanError, ParamsError):  # it does not fit either
        return {}
    return {BAND_LIMITED: peaks} if peaks.convolves else {}


def _offered(limited: Mapping[str, Peaks], probe: Probe) -> str:
    """Returns what an error adds where the job fits with band-limited convolutions; "" where it does not."""
    peaks = limited.get(BAND_LIMITED)
    if peaks is None or not _fits(peaks, probe):
        return ""
    return (
        f"; or accept band-limited convolutions by train.band_rate: {OFFERED_RATE:g}, with which "
        f"{_taken(peaks)}: they change the model, so the gate judges it as a changed recipe"
    )


def _notes(last: str, peaks_of: Mapping[str, Peaks], limited: Mapping[str, Peaks]) -> dict[str, str]:
    """Returns the effect of each remedy after the first up to `last`, the cheapest by ms per MiB saved first.

    Band-limited convolutions are compared with the first remedy, the others with the one before.
    """
    notes: dict[str, tuple[float, str]] = {}
    below: Peaks | None = None
    for name in MEMORY_REMEDIES:
        peaks = peaks_of.get(name)
        if name != "micro-batches":
            notes[name] = _note(peaks, below)
        if name == last:
            break
        below = peaks
    for name, peaks in limited.items():
        notes[name] = _note(peaks, peaks_of.get("micro-batches"))
    return {name: note for name, (_, note) in sorted(notes.items(), key=lambda each: each[1][0])}


def _note(peaks: Peaks | None, below: Peaks | None) -> tuple[float, str]:
    """Returns milliseconds per MiB that a remedy saves, infinite where that is unknown, and its effect."""
    if peaks is None:
        return math.inf, "not enough by itself"
    note = _taken(peaks)
    if below is None:
        return math.inf, f"{note}, and does not fit without"
    saved = (below.step_bytes[0] - peaks.step_bytes[0]) / MIB
    cost = 1000 * (peaks.step_s - below.step_s) / saved if saved > 0 else math.inf
    priced = f", {cost:.2g} ms per MiB" if saved > 0 else ""
    return cost, f"{note}, {saved:,.0f} MiB less than without{priced}"


def _taken(peaks: Peaks) -> str:
    taken = f"a step of {peaks.batch_sizes[0]} samples takes {peaks.step_bytes[0] / MIB:,.0f} MiB of "
    return taken + f"{peaks.room_bytes / MIB:,.0f}"
