"""Which way of taking a step fits the memory? The ladder, climbed no further than needed.

Its rungs, the cheapest first: micro-batches, which cost next to nothing; activation checkpointing, a forward
pass more (Chen et al. 2016); the sharded optimizer, weights sent to all workers at each update (Rajbhandari
et al. 2020); sharded weights, gathered block by block in each pass. None changes what is learned; bfloat16
does, so it is no rung but a remedy that is tried against the job as it fits. Each rung is measured in a
process of its own, under the limits that there are.
"""

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
    """How a step fits the memory, the peaks of it, and what each rung above the first did, by its name."""

    tuning: Tuning
    peaks: Peaks
    notes: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def fitting(
    workload: Workload, folder: Path, params: ProfileParams, training: TrainParams
) -> Iterator[Callable[[], MemoryFit]]:
    """Yield a function that waits for the lowest rung that fits; see `measuring` for what it raises.

    Where passes are measured but none leaves the headroom, on any rung, it is the first: another machine may
    do. Where none can be measured, PlanError.
    """
    probe = Probe(
        workload=workload,
        folder=folder,
        batch_sizes=params.batch_sizes,
        batch_size=training.batch_size,
        seed=training.seed,
        num_workers=training.num_workers,
    )
    with measuring(probe) as first:
        yield lambda: _lowest_rung(probe, first)


def _lowest_rung(probe: Probe, first: Callable[[], Peaks]) -> MemoryFit:
    found: dict[str, Peaks] = {}
    told = ""
    for name, tuning in RUNGS.items():
        if tuning.sharded and probe.num_workers == 1:
            break
        try:
            found[name] = first() if tuning == probe.tuning else _measured(replace(probe, tuning=tuning))
        except PlanError as error:
            told = str(error)  # and not the error, whose frames hold on to memory
            continue
        except ParamsError as error:  # code that does well with a whole model
            if not tuning.sharded_weights:
                raise
            told = told or str(error)
            continue
        if sharing(probe.num_workers) * found[name].step_bytes[0] <= found[name].room_bytes * (1 - HEADROOM):
            return MemoryFit(tuning=tuning, peaks=found[name], notes=_notes(name, found))
    if not found:
        raise PlanError(told)
    name, peaks = next(iter(found.items()))
    return MemoryFit(tuning=RUNGS[name], peaks=peaks, notes=_notes(name, found))


def _measured(probe: Probe) -> Peaks:
    with measuring(probe) as wait:
        return wait()


def _notes(last: str, found: Mapping[str, Peaks]) -> dict[str, str]:
    """What each rung above the first did, up to the last one: its bytes, and what those saved cost."""
    notes: dict[str, str] = {}
    below: Peaks | None = None
    for name in RUNGS:
        peaks = found.get(name)
        if name != "micro-batches":
            notes[name] = _note(peaks, below)
        if name == last:
            break
        below = peaks
    return notes


def _note(peaks: Peaks | None, below: Peaks | None) -> str:
    if peaks is None:
        return "not enough by itself"
    told = f"a step of {peaks.batch_sizes[0]} samples takes {peaks.step_bytes[0] / MIB:,.0f} MiB of "
    told += f"{peaks.room_bytes / MIB:,.0f}"
    if below is None:
        return f"{told}, and does not fit without"
    saved = (below.step_bytes[0] - peaks.step_bytes[0]) / MIB
    cost = f", {1000 * (peaks.step_s - below.step_s) / saved:.2g} ms per MiB" if saved > 0 else ""
    return f"{told}, {saved:,.0f} MiB less than without{cost}"
