"""Finds the cheapest way of taking a step that fits the memory, as the lowest rung of a ladder.

The rungs, the cheapest first: micro-batches, which cost next to nothing; activation checkpointing, one more
forward pass (Chen et al. 2016); the sharded optimizer, which sends weights to all workers at each update
(Rajbhandari et al. 2020); sharded weights, gathered block by block in each pass. None changes what is
learned; bfloat16 does, so it is not a rung but a remedy, which is tried once the job fits. Each rung is
measured in a process of its own, under the limits that apply.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.contract.errors import ParamsError, PlanError
from pipeline.contract.params import ProfileParams, TrainParams
from pipeline.contract.records import Tuning
from pipeline.contract.workload import Workload
from pipeline.machines.catalog import HEADROOM
from pipeline.profiling.memory import Peaks, Probe, measuring, sharing

MIB = 1 << 20
RUNGS = {
    "micro-batches": Tuning(),
    "activation checkpointing": Tuning(recompute=True),
    "sharded optimizer": Tuning(recompute=True, sharded=True),
    "sharded weights": Tuning(recompute=True, sharded=True, sharded_weights=True),
}


@dataclass(frozen=True, kw_only=True)
class MemoryFit:
    """The tuning with which a step fits the memory, its peaks, and the effect of each higher rung."""

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
    """Yields a function that waits for the lowest rung that fits; see `measuring` for what it raises.

    Where rungs can be measured but none leaves the headroom, it returns the first: another machine may have
    the memory. It raises PlanError where none can be measured.
    """
    probe = Probe(
        workload=workload,
        folder=folder,
        batch_sizes=params.batch_sizes,
        batch_size=training.batch_size,
        seed=training.seed,
        num_workers=training.num_workers,
        limit_s=limit_s,
    )
    with measuring(probe) as first:
        yield lambda: _lowest_rung(probe, first)


def _lowest_rung(probe: Probe, first: Callable[[], Peaks]) -> MemoryFit:
    peaks_of: dict[str, Peaks] = {}
    reason = ""
    for name, tuning in RUNGS.items():
        if tuning.sharded and probe.num_workers == 1:
            break
        try:
            peaks = first() if tuning == probe.tuning else _measured(replace(probe, tuning=tuning))
        except PlanError as error:
            reason = str(error)  # not the error itself, whose frames keep memory alive
            continue
        except ParamsError as error:  # the code may work with a whole model only
            if not tuning.sharded_weights:
                raise
            reason = reason or str(error)
            continue
        peaks_of[name] = peaks
        if sharing(probe.num_workers) * peaks.step_bytes[0] <= peaks.room_bytes * (1 - HEADROOM):
            return MemoryFit(tuning=tuning, peaks=peaks, notes=_notes(name, peaks_of))
    if not peaks_of:
        raise PlanError(reason)
    name, peaks = next(iter(peaks_of.items()))
    return MemoryFit(tuning=RUNGS[name], peaks=peaks, notes=_notes(name, peaks_of))


def _measured(probe: Probe) -> Peaks:
    with measuring(probe) as wait:
        return wait()


def _notes(last: str, peaks_of: Mapping[str, Peaks]) -> dict[str, str]:
    """Returns the effect of each rung above the first up to `last`: its bytes, and the cost of saving."""
    notes: dict[str, str] = {}
    below: Peaks | None = None
    for name in RUNGS:
        peaks = peaks_of.get(name)
        if name != "micro-batches":
            notes[name] = _note(peaks, below)
        if name == last:
            break
        below = peaks
    return notes


def _note(peaks: Peaks | None, below: Peaks | None) -> str:
    if peaks is None:
        return "not enough by itself"
    note = f"a step of {peaks.batch_sizes[0]} samples takes {peaks.step_bytes[0] / MIB:,.0f} MiB of "
    note += f"{peaks.room_bytes / MIB:,.0f}"
    if below is None:
        return f"{note}, and does not fit without"
    saved = (below.step_bytes[0] - peaks.step_bytes[0]) / MIB
    cost = f", {1000 * (peaks.step_s - below.step_s) / saved:.2g} ms per MiB" if saved > 0 else ""
    return f"{note}, {saved:,.0f} MiB less than without{cost}"
