"""Decides whether I/O, compute or memory binds a job, and whether removing that cause proves the verdict.

An update loads a batch and takes a step; a step consists of operators. An operator is bound by memory where
the roofline says so (Williams, Waterman and Patterson 2009): bytes at the measured bandwidth, plus random
rows at the measured rate, take longer than operations at the measured FLOP/s, and memory traffic, with the
pages that the system had to allocate, explains at least `EXPLAINED` of the operator's time. All other
operators are compute.

    io       the share of the update that loading takes
    memory   the share of operators bound by memory (bandwidth); or the job does not fit (capacity)
    compute  the share of the rest of the step

Of a job bound by compute, the operators may be so small that dispatching them takes the time: as many
operators, each at the least seconds of any, make up at least `DISPATCHED` of the step.

The largest share is the verdict. It stands only if removing its own cause gains most: no input, no
arithmetic, or no traffic. Otherwise, or where the two largest gains are within `CLOSE`, the verdict is mixed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from daybreak.contract.record_parts import Line
from daybreak.machines.catalog import HEADROOM

Bound = Literal["io", "compute", "memory"]

EXPLAINED = 0.2  # of an operator's time; new pages and shared caches account for the rest
CLOSE = 0.05
DISPATCHED = 0.5  # of a step
MODERATELY, HIGHLY = 0.05, 0.20  # share of the input in the update (TensorFlow's profiler)
SYMPTOM_FROM = {  # the least value of each symptom that says yes
    "io_parsing_share": HIGHLY,
    "io_slow_storage_share": HIGHLY,
    "compute_fastest_times": 2.0,
    "memory_many_inputs_share": HIGHLY,
    "memory_many_parameters_share": HIGHLY,
    "memory_peak_share": 1 - HEADROOM,
}
NETWORK = 0.06  # share of the all-reduce in the update, above which the network binds
THRESHOLDS = {
    "input_moderately": MODERATELY,
    "input_highly": HIGHLY,
    "memory_headroom": HEADROOM,
    "traffic_explains": EXPLAINED,
    "gains_apart": CLOSE,
    "network": NETWORK,
    "dispatched": DISPATCHED,
}


class Rates(Protocol):
    """The most that the device reaches, measured."""

    @property
    def flops_per_s(self) -> float:
        """FLOP/s of a large matrix product."""

    @property
    def copy_bytes_per_s(self) -> float:
        """Bytes/s read and written by a copy."""

    @property
    def fresh_bytes_per_s(self) -> float:
        """Bytes/s written to new pages."""

    def gather_bytes_per_s(self, row_bytes: float) -> float:
        """Returns the bytes/s read and written by a gather of random rows of that width."""

    def scatter_bytes_per_s(self, row_bytes: float) -> float:
        """Returns the bytes/s read and written by adding to random rows of that width."""


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator of a step: work and time."""

    name: str
    seconds: float
    flops: float
    num_bytes: float  # sequential, from memory
    num_rows: int  # random rows, from memory
    row_bytes: float
    new_bytes: float = 0.0  # of pages that the system allocated meanwhile
    scatters: bool = False  # it writes its rows

    def arithmetic_s(self, rates: Rates) -> float:
        """Returns the least seconds of its operations."""
        return self.flops / rates.flops_per_s

    def traffic_s(self, rates: Rates) -> float:
        """Returns the least seconds to move bytes and random rows; bytes include the output of a gather."""
        rows = self.num_rows * self.row_bytes
        # The rate counts each row twice, read and written; `rows` counts it once.
        rate = rates.scatter_bytes_per_s if self.scatters else rates.gather_bytes_per_s
        random_s = 2 * rows / rate(self.row_bytes) if rows else 0.0
        return self.num_bytes / rates.copy_bytes_per_s + random_s

    def bound(self, rates: Rates) -> Bound:
        """Returns whether memory or compute binds the operator."""
        traffic_s = self.traffic_s(rates)
        # New pages beyond the bytes moved are workspace, which an allocator or a library could keep.
        explained_s = traffic_s + min(self.new_bytes, self.num_bytes) / rates.fresh_bytes_per_s
        at_limit = traffic_s > self.arithmetic_s(rates) and explained_s >= EXPLAINED * self.seconds
        return "memory" if at_limit else "compute"


def memory_share(operators: Sequence[Operator], rates: Rates) -> float:
    """Returns the share of the operators' time that is bound by memory."""
    total_s = sum(operator.seconds for operator in operators)
    bound_s = sum(operator.seconds for operator in operators if operator.bound(rates) == "memory")
    return bound_s / total_s if total_s else 0.0


@dataclass(frozen=True, kw_only=True)
class Room:
    """Whether the batch of the job fits the memory."""

    peak_bytes: float  # predicted
    device_bytes: float
    fits: bool


def room(
    memory_bytes: Line,
    *,
    batch_size: int,
    num_workers: int,
    sharing: int,
    device_bytes: float,
    too_large: int | None,
) -> Room:
    """Returns whether the predicted peak of the workers that share a device fits its memory less `HEADROOM`.

    `too_large` is a batch size that one process had no memory for when it was tried; None if all fitted.
    """
    peak = memory_bytes(batch_size / num_workers) * sharing
    fits = peak <= device_bytes * (1 - HEADROOM)
    failed = too_large is not None and batch_size / num_workers >= too_large
    return Room(peak_bytes=peak, device_bytes=device_bytes, fits=fits and not failed)


def most_samples(memory_bytes: Line, *, device_bytes: float) -> float:
    """Returns the samples of the largest pass that leaves `HEADROOM`; infinite where any does, 0 if none."""
    left = device_bytes * (1 - HEADROOM) - memory_bytes.fixed
    if memory_bytes.per_sample <= 0:
        return math.inf if left >= 0 else 0.0
    return max(0.0, left // memory_bytes.per_sample)


def most_times(pass_bytes: float, *, device_bytes: float) -> float:
    """Returns how many times the bytes of a pass leave `HEADROOM`.

    A model that is so much larger, in weights and activations alike, still fits in such passes.
    """
    return device_bytes * (1 - HEADROOM) / max(1.0, pass_bytes)


@dataclass(frozen=True, kw_only=True)
class BoundVerdict:
    """What binds the job; `mixed` names the two largest gains where they do not confirm the bound."""

    bound: Bound
    kind: Literal["", "capacity", "bandwidth", "dispatch"]
    shares: dict[Bound, float]
    gains: dict[Bound, float]
    mixed: tuple[Bound, ...]


def judge(
    *,
    load_s: float,
    step_s: float,
    memory_share: float,
    fits: bool,
    gains: Mapping[Bound, float],
    dispatch_share: float = 0.0,
) -> BoundVerdict:
    """Returns the verdict by the shares, checked against the gains measured with each cause removed.

    `dispatch_share` is the share of the step that dispatching its operators takes.
    A job that does not fit is bound by memory whatever its shares: nothing else matters before it fits.
    """
    total_s = load_s + step_s
    io = load_s / total_s if total_s else 0.0
    shares: dict[Bound, float] = {
        "io": io,
        "compute": (1 - io) * (1 - memory_share),
        "memory": (1 - io) * memory_share,
    }
    if not fits:
        return BoundVerdict(bound="memory", kind="capacity", shares=shares, gains=dict(gains), mixed=())
    bound: Bound = max(shares, key=lambda name: shares[name])
    first, second, _ = sorted(gains, key=lambda name: -gains[name])
    dispatched = bound == "compute" and dispatch_share >= DISPATCHED
    kind: Literal["", "bandwidth", "dispatch"] = (
        "bandwidth" if bound == "memory" else "dispatch" if dispatched else ""
    )
    proven = first == bound and gains[first] - gains[second] > CLOSE
    return BoundVerdict(
        bound=bound,
        kind=kind,
        shares=shares,
        gains=dict(gains),
        mixed=() if proven else (first, second),
    )


def input_bound(share: float) -> Literal["highly", "moderately", "not"]:
    """Returns how much the input delays the update, in the terms of TensorFlow's profiler."""
    return "highly" if share >= HIGHLY else "moderately" if share >= MODERATELY else "not"


def symptoms(
    *,
    verdict: BoundVerdict,
    room: Room,
    load_busy: float,
    input_bytes: float,
    lookup_share: float,
    flops: float,
    fastest_times: float,
    fixed_bytes: float,
) -> dict[str, float | str | list[str]]:
    """Returns the nine symptoms of Lakshmanan's thread, each measured as a share of the update or the memory.

    The thread is about daily retraining in 18 hours; remedies.py has its remedies. `input_bytes` and `flops`
    are per update, `load_busy` is the share of loading in which the processor works, `lookup_share` the share
    of the step in operators that look up rows by the input, `fastest_times` how many times this device's
    FLOP/s the fastest of the catalog has, and `fixed_bytes` the memory that any batch needs. Many inputs are
    a symptom of I/O or of memory, by the larger cost: loading, or lookup and storage. `present` names the
    symptoms that the job shows: by `SYMPTOM_FROM`, or by the share of their cause.
    """
    io, step = verdict.shares["io"], 1 - verdict.shares["io"]
    device_bytes = room.device_bytes if room.device_bytes > 0 else 1.0
    kept = max(lookup_share * step, (room.peak_bytes - fixed_bytes) / device_bytes)
    values: dict[str, float] = {
        "io_many_inputs_bytes": input_bytes,
        "io_parsing_share": io * load_busy,
        "io_small_model_step_share": step,
        "io_slow_storage_share": io * (1 - load_busy),
        "compute_flops_per_input_byte": flops / input_bytes if input_bytes else 0.0,
        "compute_fastest_times": fastest_times,
        "memory_many_inputs_share": kept,
        "memory_many_parameters_share": fixed_bytes / device_bytes,
        "memory_peak_share": room.peak_bytes / device_bytes,
    }
    present = [name for name, least in SYMPTOM_FROM.items() if values[name] >= least]
    by_cause = {
        "io_many_inputs_bytes": io >= max(HIGHLY, kept),
        "io_small_model_step_share": io >= 1 - io,
        "compute_flops_per_input_byte": verdict.shares["compute"] >= 1 - verdict.shares["compute"],
    }
    present += [name for name, shown in by_cause.items() if shown]
    if io >= kept and "memory_many_inputs_share" in present:
        present.remove("memory_many_inputs_share")
    return values | {
        "present": sorted(present),
        "many_inputs_are_a_symptom_of": "io" if io >= kept else "memory",
    }
