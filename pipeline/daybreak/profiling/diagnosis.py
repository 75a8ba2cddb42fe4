"""Measures the cost of an update and what binds it, without changing the job.

The job itself is measured, on this machine's device: after a warm-up, a few real batches of each of
`profile.batch_sizes` are loaded and trained on, the sizes taking turns so that a disturbance does not fall on
one of them. Where they would take too long, smaller batches are measured, and the lines say the rest. A line
is fitted through each cost. Then one thing at a time is changed and the update runs again
(`counterfactuals`); the verdict uses both (`bounds`).
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from daybreak.contract.errors import is_out_of_memory
from daybreak.contract.record_parts import Line, Tuning
from daybreak.contract.sections import ProfileParams, TrainParams
from daybreak.contract.workload import ARRAYS, Workload, is_over_batch
from daybreak.machines import data_sheets, this_machine
from daybreak.machines.catalog import HEADROOM
from daybreak.profiling import all_reduce, bounds, counterfactuals, line_fit, memory, memory_fit
from daybreak.profiling.bounds import BoundVerdict, Operator, Room
from daybreak.storage.home import Home

if TYPE_CHECKING:
    from daybreak.profiling.counterfactuals import Changes
    from daybreak.profiling.harness import Harness
    from daybreak.profiling.memory import Peaks
    from daybreak.profiling.roofline import Ceilings

ACTIVATIONS = {  # that cost more than a ReLU, as torch calls them
    "gelu",
    "silu",
    "sigmoid",
    "tanh",
    "softplus",
    "elu",
    "mish",
    "hardswish",
    "log_sigmoid",
    "celu",
}
MEASURE_S = 5.0  # no round after the first starts later than this


@dataclass(frozen=True, kw_only=True)
class UpdateLines:
    """The cost of an update by batch size, and the measurements behind the fit."""

    batch_size: int  # of the job
    sizes: tuple[int, ...]  # that were timed
    times: "Times"
    load_s: Line
    step_s: Line
    memory_bytes: Line
    room: Room


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """The parts of one update by operator, and the gain of taking each part away."""

    timed_samples: int  # of a batch that is measured; fewer than the batch where that would take too long
    num_samples: int  # of this update; fewer where the batch does not fit
    input_bytes: float
    operators: Sequence[Operator]
    changes: "Changes"
    of_step: Mapping[bounds.Bound, float]  # gains of a step without arithmetic, and without traffic
    step_was_run: bool  # without these; else their gains come from the times of its operators
    cold_s: Mapping[str, float]
    gradient: tuple[float, float]  # square and variance; 0 where memory does not suffice for the sums
    ceilings: "Ceilings"

    @property
    def flops(self) -> float:
        """FLOPs of the update."""
        return sum(operator.flops for operator in self.operators)

    @property
    def dispatch_share(self) -> float:
        """Share of the step, in which its operators are dispatched."""
        dispatch_s = len(self.operators) * self.ceilings.dispatch_s
        return min(1.0, dispatch_s / self.changes.step_s) if self.changes.step_s else 0.0

    def share(self, chosen: Callable[[Operator], bool]) -> float:
        """Returns the share of the step's time in the chosen operators."""
        total_s = sum(operator.seconds for operator in self.operators)
        chosen_s = sum(operator.seconds for operator in self.operators if chosen(operator))
        return chosen_s / total_s if total_s else 0.0


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The measurements of a job, before any remedy."""

    harness: "Harness"
    lines: UpdateLines
    memory_remedies: Mapping[str, str]  # remedies without which no pass fits, with the effect of each
    breakdown: Breakdown
    verdict: BoundVerdict
    evidence: dict[str, Any]

    @property
    def most_samples(self) -> int:
        """Samples of a pass; fewer than the batch where that does not fit."""
        return self.lines.batch_size if self.lines.room.fits else self.lines.sizes[-1]

    @property
    def activation_share(self) -> float:
        """Share of the step, in activations that cost more than a ReLU."""
        return self.breakdown.share(lambda operator: _plain(operator.name) in ACTIVATIONS)


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of loads and steps, one of each per batch size and round."""

    batch_sizes: tuple[int, ...]
    load_s: tuple[float, ...]
    step_s: tuple[float, ...]


def diagnose(
    home: Home | None,
    workload: Workload,
    params: ProfileParams,
    training: TrainParams,
    *,
    limit_s: float = math.inf,
) -> Diagnosis:
    """Measures the job on this machine and returns costs and bound, within about `limit_s`.

    Raises ParamsError or DataError in one sentence for a loss that is not one value per sample, for NaN, or
    for no samples; PlanError if not even the smallest batch fits the memory.
    """
    from daybreak.profiling import roofline
    from daybreak.profiling.harness import Harness

    begin = time.perf_counter()
    with memory_fit.fitting(workload, ARRAYS, params, training, limit_s=limit_s) as wait_for_fit:
        harness = Harness(workload, ARRAYS, seed=training.seed)
        fit = wait_for_fit()  # nothing is timed before the other process has ended
    harness.build(fit.tuning, num_workers=training.num_workers)
    ceilings = roofline.ceilings(home, ARRAYS)
    lines = _lines(harness, fit.peaks, params, training)
    breakdown = _breakdown(harness, lines, fit, ceilings)
    harness.build(fit.tuning, num_workers=training.num_workers)  # what such steps learned is meaningless
    fits = lines.room.fits and fit.tuning == Tuning(band_rate=training.band_rate)
    verdict = _verdict(breakdown, fits=fits)
    return Diagnosis(
        harness=harness,
        lines=lines,
        memory_remedies=fit.notes,
        breakdown=breakdown,
        verdict=verdict,
        evidence=_evidence(
            harness,
            lines,
            fit,
            breakdown,
            verdict,
            num_workers=training.num_workers,
            elapsed_s=time.perf_counter() - begin,
        ),
    )


def _evidence(
    harness: "Harness",
    lines: UpdateLines,
    fit: memory_fit.MemoryFit,
    breakdown: Breakdown,
    verdict: BoundVerdict,
    *,
    num_workers: int,
    elapsed_s: float,
) -> dict[str, Any]:
    """Returns the measurements behind a verdict, by their names in the record of the profile."""
    from daybreak.training import devices  # which imports torch

    load_s, step_s = lines.load_s(lines.batch_size), lines.step_s(lines.batch_size)
    return {
        "batch_size": lines.batch_size,
        "num_workers": num_workers,
        "load_s": load_s,
        "step_s": step_s,
        **_shares(verdict),
        "memory": _memory(lines.room, fit, verdict),
        "counterfactual": _counterfactual(breakdown, verdict),
        "storage": counterfactuals.storage(breakdown.changes, breakdown.cold_s),
        "symptoms": _symptoms(lines, breakdown, verdict, device=devices.name(harness.device)),
        "roofline": _roofline(breakdown.operators, breakdown.changes.step_s, breakdown.ceilings),
        "dispatch": _dispatch(breakdown, verdict),
        "network": all_reduce.evidence(
            harness.num_sync_bytes(), num_workers=num_workers, update_s=load_s + step_s
        ),
        "noise": dict(zip(("gradient_square", "gradient_variance"), breakdown.gradient, strict=True)),
        "measured": {
            "batch_sizes": list(lines.sizes),
            "num_rounds": len(lines.times.batch_sizes) // len(lines.sizes),
            "num_samples": sum(lines.times.batch_sizes),
            "too_slow": fit.peaks.too_slow,
            "parameter_bytes": harness.num_sync_bytes(),
            "elapsed_s": elapsed_s,
        },
        "thresholds": bounds.THRESHOLDS,
        "machine": _machine(harness, fit.peaks, breakdown.ceilings),
    }


def _lines(harness: "Harness", peaks: "Peaks", params: ProfileParams, training: TrainParams) -> UpdateLines:
    """Times updates of several sizes, and returns the lines through their costs."""
    batch_size = min(training.batch_size, harness.num_samples)
    memory_bytes = line_fit.fit(peaks.batch_sizes, peaks.step_bytes)
    # The growth of a process misses what reuses pages that it had, and weights and gradients are there.
    memory_bytes = replace(memory_bytes, fixed=max(memory_bytes.fixed, float(harness.num_held_bytes())))
    room = bounds.room(
        memory_bytes,
        batch_size=batch_size,
        num_workers=training.num_workers,
        sharing=memory.sharing(training.num_workers),
        device_bytes=peaks.room_bytes,
        too_large=peaks.too_large,
    )
    sizes = _that_fit(harness.sizes(params.batch_sizes), room, memory_bytes, peaks)
    times = _times(harness, sizes, params.steps)
    return UpdateLines(
        batch_size=batch_size,
        sizes=sizes,
        times=times,
        load_s=line_fit.fit(times.batch_sizes, times.load_s),
        step_s=line_fit.fit(times.batch_sizes, times.step_s),
        memory_bytes=memory_bytes,
        room=room,
    )


def _breakdown(
    harness: "Harness", lines: UpdateLines, fit: memory_fit.MemoryFit, ceilings: "Ceilings"
) -> Breakdown:
    """Runs one update with one thing changed at a time; the model is meaningless afterwards."""
    from daybreak.training.tuning import tensors

    too_slow, fits = fit.peaks.too_slow is not None, lines.room.fits
    timed = min(lines.batch_size, lines.sizes[-1]) if too_slow else lines.batch_size
    num_samples = timed if fits else lines.sizes[0]  # not all changes can be run if the batch does not fit
    batches = counterfactuals.kept(harness, num_samples)
    changes = counterfactuals.changes(harness, num_samples, batches)
    operators = harness.operators(batches, num_samples)
    gradient = _noise(harness, num_samples if is_over_batch(harness.workload) else lines.sizes[0])
    rerun = None
    if fits and not fit.tuning.sharded_weights:  # sharded weights are moved, not only computed with
        rerun = counterfactuals.step_gains(harness, num_samples, batches[0], operators, ceilings)
    return Breakdown(
        timed_samples=timed,
        num_samples=num_samples,
        input_bytes=float(sum(part.nbytes for part in tensors(batches[0]))),
        operators=operators,
        changes=changes,
        of_step=rerun or counterfactuals.by_time(operators, ceilings),
        step_was_run=rerun is not None,
        cold_s=counterfactuals.cold(harness, num_samples, ARRAYS),
        gradient=gradient,
        ceilings=ceilings,
    )


def _verdict(breakdown: Breakdown, *, fits: bool) -> BoundVerdict:
    changes = breakdown.changes
    return bounds.judge(
        load_s=changes.load_s,
        step_s=changes.step_s,
        memory_share=bounds.memory_share(breakdown.operators, breakdown.ceilings),
        fits=fits,
        dispatch_share=breakdown.dispatch_share,
        gains={
            "io": changes.no_input_gain,
            "compute": changes.no_model_gain * breakdown.of_step["compute"],
            "memory": changes.no_model_gain * breakdown.of_step["memory"],
        },
    )


def _that_fit(sizes: Sequence[int], room: Room, memory_bytes: Line, peaks: "Peaks") -> tuple[int, ...]:
    """Returns the batch sizes to time: those that fit the memory and the time, and at least two."""
    if peaks.too_slow is not None and peaks.too_large is None:
        return peaks.batch_sizes
    if peaks.too_large is None and room.fits:
        largest = peaks.batch_sizes[-1]
        limit_bytes = room.device_bytes * (1 - HEADROOM)
        return tuple(size for size in sizes if size <= largest or memory_bytes(size) <= limit_bytes)
    fitting = peaks.batch_sizes[:-1] if len(peaks.batch_sizes) > 2 else peaks.batch_sizes
    return fitting if len(fitting) > 1 else tuple(sorted({max(1, fitting[0] // 2), fitting[0]}))


def _times(harness: "Harness", sizes: Sequence[int], num_rounds: int) -> Times:
    """Times loads and steps of all sizes in turn, after a warm-up with the smallest and the largest."""
    for size in {sizes[0], sizes[-1]}:
        harness.step(harness.load(size), size)
    begin = harness.now()
    measured: list[tuple[int, float, float]] = []
    for number in range(num_rounds):
        if number > 0 and harness.now() - begin > MEASURE_S:
            break
        for size in sizes:
            start = harness.now()
            batch = harness.load(size)
            loaded = harness.now()
            harness.step(batch, size)
            measured.append((size, loaded - start, harness.now() - loaded))
    batch_sizes, load_s, step_s = zip(*measured, strict=True)
    return Times(batch_sizes=batch_sizes, load_s=load_s, step_s=step_s)


def _shares(verdict: BoundVerdict) -> dict[str, Any]:
    """Returns the shares of the update, and those between which the verdict is mixed."""
    io, compute, of_memory = (verdict.shares[bound] for bound in ("io", "compute", "memory"))
    return {
        "load_share": io,
        "step_share": 1 - io,
        "compute_share": compute,
        "memory_share": of_memory,
        "input_bound": bounds.input_bound(io),
        "mixed": {bound: verdict.shares[bound] for bound in verdict.mixed},
    }


def _memory(room: Room, fit: memory_fit.MemoryFit, verdict: BoundVerdict) -> dict[str, Any]:
    return {
        "kind": verdict.kind,
        "peak_bytes": room.peak_bytes,
        "device_bytes": room.device_bytes,
        "too_large": fit.peaks.too_large,
        "how": fit.peaks.how,
        "memory_remedies": fit.notes,
    }


def _counterfactual(breakdown: Breakdown, verdict: BoundVerdict) -> dict[str, Any]:
    changes = breakdown.changes
    return {
        **{name: value for name, value in asdict(changes).items() if name.endswith("gain")},
        "update_s": changes.update_s,
        "no_compute_gain": verdict.gains["compute"],
        "no_traffic_gain": verdict.gains["memory"],
        "agrees": not verdict.mixed,
        "step_was_run": breakdown.step_was_run,
        **breakdown.cold_s,
    }


def _symptoms(
    lines: UpdateLines, breakdown: Breakdown, verdict: BoundVerdict, *, device: str
) -> Mapping[str, Any]:
    ceilings, fastest = breakdown.ceilings, data_sheets.fastest()
    flops_per_s, _ = data_sheets.on_sheet(
        device, flops_per_s=ceilings.flops_per_s, bytes_per_s=ceilings.copy_bytes_per_s
    )
    shown = bounds.symptoms(
        verdict=verdict,
        room=lines.room,
        load_busy=breakdown.changes.load_busy,
        input_bytes=breakdown.input_bytes,
        lookup_share=breakdown.share(lambda operator: operator.num_rows > 0),
        flops=breakdown.flops,
        fastest_times=fastest.speeds.flops_per_s / flops_per_s,
        fixed_bytes=lines.memory_bytes.fixed,
    )
    return shown | {"fastest_device": fastest.device}


def _dispatch(breakdown: Breakdown, verdict: BoundVerdict) -> dict[str, Any]:
    return {
        "num_operators": len(breakdown.operators),
        "seconds_each": breakdown.ceilings.dispatch_s,
        "share": breakdown.dispatch_share,
        "bound": verdict.kind == "dispatch",
    }


def _roofline(operators: Sequence[Operator], step_s: float, ceilings: "Ceilings") -> dict[str, float]:
    """Returns the step's place on the roofline, and how much of its time the roofline explains."""
    flops = sum(operator.flops for operator in operators)
    num_bytes = sum(operator.num_bytes for operator in operators)
    row_bytes = sum(operator.num_rows * operator.row_bytes for operator in operators)
    least_s = sum(max(op.arithmetic_s(ceilings), op.traffic_s(ceilings)) for op in operators)
    rows = [operator for operator in operators if operator.num_rows]
    rate = sum(op.num_rows * op.row_bytes for op in rows) / max(1e-12, sum(op.seconds for op in rows))
    width = row_bytes / max(1, sum(operator.num_rows for operator in rows))
    return {
        "flops_per_s": flops / step_s,
        "peak_flops_per_s": ceilings.flops_per_s,
        "bytes_per_s": (num_bytes + row_bytes) / step_s,
        "peak_bytes_per_s": ceilings.copy_bytes_per_s,
        "gather_bytes_per_s": rate,
        "peak_gather_bytes_per_s": ceilings.gather_bytes_per_s(width) if rows else 0.0,
        "flops_per_byte": flops / (num_bytes + row_bytes) if num_bytes + row_bytes else 0.0,
        "ridge_flops_per_byte": ceilings.flops_per_s / ceilings.copy_bytes_per_s,
        "explained_share": least_s / step_s,
    }


def _plain(name: str) -> str:
    """Returns the name of an operator without the marks of the backward pass or of in-place operation."""
    return name.removesuffix("_").removesuffix("_backward")


def _machine(harness: "Harness", peaks: "Peaks", ceilings: "Ceilings") -> dict[str, Any]:
    """Returns this machine as the catalog describes others; its memory is what this process may use."""
    import torch

    from daybreak.training import devices  # which imports torch

    installed = this_machine.installed_bytes()
    on_cpu = harness.device.type == "cpu"
    return {
        "name": devices.name(harness.device),
        "num_devices": 0 if on_cpu else torch.cuda.device_count(),
        "num_cores": ceilings.machine["num_cores"],
        "memory_bytes": installed,
        "device_memory_bytes": peaks.room_bytes,
        "flops_per_s": ceilings.flops_per_s,
        "bandwidth_bytes_per_s": ceilings.copy_bytes_per_s,
        "storage_bytes_per_s": ceilings.cold_bytes_per_s,
    }


def _noise(harness: "Harness", size: int) -> tuple[float, float]:
    """Returns square and variance of the gradient; zeros where memory does not suffice to add it up."""
    try:
        return harness.noise(size)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return 0.0, 0.0
