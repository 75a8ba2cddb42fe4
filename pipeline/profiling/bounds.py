"""Which of I/O, compute and memory binds a job, and does changing that one thing prove it?

An update loads a batch and takes a step; a step is operators. An operator is at the limit of the memory
where the roofline puts it there (Williams, Waterman and Patterson 2009): its bytes at the measured bandwidth,
and its random rows at the measured rate of those, take longer than its operations at the measured FLOP/s; and
they, with the pages that the system had to give it, explain at least `EXPLAINED` of its time. All else in a
step is compute.

    io       the share of the update that loading takes
    memory   the share of operators at the limit of the memory (bandwidth); or the job does not fit (capacity)
    compute  the share of the rest of the step

The largest is the verdict. It counts only if taking its own cause away gains most: no input, no arithmetic,
or no traffic. Otherwise, or where the two largest gains are within `CLOSE`, it is mixed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pipeline.contract.records import Line
from pipeline.machines.catalog import HEADROOM

Bound = Literal["io", "compute", "memory"]

EXPLAINED = 0.2  # of an operator's time; pages that are new, and caches that are shared, account for the rest
CLOSE = 0.05
MODERATELY, HIGHLY = 0.05, 0.20  # share of the input in the update (TensorFlow's profiler)
NETWORK = 0.06  # share of the all-reduce in the update, above which the network binds
THRESHOLDS = {
    "input_moderately": MODERATELY,
    "input_highly": HIGHLY,
    "memory_headroom": HEADROOM,
    "traffic_explains": EXPLAINED,
    "gains_apart": CLOSE,
    "network": NETWORK,
}


class Rates(Protocol):
    """What the device reaches at most, measured."""

    @property
    def flops_per_s(self) -> float:
        """Of a large product."""

    @property
    def copy_bytes_per_s(self) -> float:
        """Read and written by a copy."""

    @property
    def fresh_bytes_per_s(self) -> float:
        """Written to pages that are new."""

    def gather_bytes_per_s(self, row_bytes: float) -> float:
        """Read and written by a gather of random rows of that width."""


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator of a step: what it does, and how long it takes."""

    name: str
    seconds: float
    flops: float
    num_bytes: float  # in order, from memory
    num_rows: int  # random ones, from memory
    row_bytes: float
    new_bytes: float = 0.0  # of pages that the system gave meanwhile

    def arithmetic_s(self, rates: Rates) -> float:
        """Least seconds of its operations."""
        return self.flops / rates.flops_per_s

    def traffic_s(self, rates: Rates) -> float:
        """Least seconds of its bytes and of its rows; what a gather writes is among the bytes."""
        rows = self.num_rows * self.row_bytes
        # The rate counts each row read and written, the row here is one of the two.
        random_s = 2 * rows / rates.gather_bytes_per_s(self.row_bytes) if rows else 0.0
        return self.num_bytes / rates.copy_bytes_per_s + random_s

    def bound(self, rates: Rates) -> Bound:
        """Whether memory or compute binds it."""
        traffic_s = self.traffic_s(rates)
        # New pages beyond what it moves are room to work in, which an allocator or a library could keep.
        explained_s = traffic_s + min(self.new_bytes, self.num_bytes) / rates.fresh_bytes_per_s
        at_limit = traffic_s > self.arithmetic_s(rates) and explained_s >= EXPLAINED * self.seconds
        return "memory" if at_limit else "compute"


def memory_share(operators: Sequence[Operator], rates: Rates) -> float:
    """Share of the operators' time that is at the limit of the memory."""
    total_s = sum(operator.seconds for operator in operators)
    bound_s = sum(operator.seconds for operator in operators if operator.bound(rates) == "memory")
    return bound_s / total_s if total_s else 0.0


@dataclass(frozen=True, kw_only=True)
class Room:
    """Whether the batch of the job fits the memory that there is."""

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
    """The predicted peak of the workers that share a device against its memory less `HEADROOM`.

    `too_large` is a batch that one process was seen to have no memory for.
    """
    peak = memory_bytes(batch_size / num_workers) * sharing
    fits = peak <= device_bytes * (1 - HEADROOM)
    seen = too_large is not None and batch_size / num_workers >= too_large
    return Room(peak_bytes=peak, device_bytes=device_bytes, fits=fits and not seen)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What binds the job; `mixed` names the two largest gains where they do not single out the bound."""

    bound: Bound
    kind: Literal["", "capacity", "bandwidth"]
    shares: dict[Bound, float]
    gains: dict[Bound, float]
    mixed: tuple[Bound, ...]


def judge(
    *, load_s: float, step_s: float, memory_share: float, fits: bool, gains: Mapping[Bound, float]
) -> Verdict:
    """The verdict from shares, held against the gains that were measured by taking each cause away.

    A job that does not fit is bound by memory whatever its shares are: no speed is gained before it fits.
    """
    total_s = load_s + step_s
    io = load_s / total_s if total_s else 0.0
    shares: dict[Bound, float] = {
        "io": io,
        "compute": (1 - io) * (1 - memory_share),
        "memory": (1 - io) * memory_share,
    }
    if not fits:
        return Verdict(bound="memory", kind="capacity", shares=shares, gains=dict(gains), mixed=())
    bound: Bound = max(shares, key=lambda name: shares[name])
    first, second, _ = sorted(gains, key=lambda name: -gains[name])
    proven = first == bound and gains[first] - gains[second] > CLOSE
    return Verdict(
        bound=bound,
        kind="bandwidth" if bound == "memory" else "",
        shares=shares,
        gains=dict(gains),
        mixed=() if proven else (first, second),
    )


def input_bound(share: float) -> Literal["highly", "moderately", "not"]:
    """How much the input holds up the update, in the words of TensorFlow's profiler."""
    return "highly" if share >= HIGHLY else "moderately" if share >= MODERATELY else "not"


def symptoms(
    *,
    verdict: Verdict,
    room: Room,
    load_busy: float,
    input_bytes: float,
    lookup_share: float,
    flops: float,
    flops_share: float,
    fixed_bytes: float,
) -> dict[str, float | str]:
    """The nine symptoms of Lakshmanan's thread, a measured quantity each: shares of the update or the memory.

    `input_bytes` and `flops` are those of an update, `load_busy` is the share of loading in which the
    processor works, `lookup_share` that of operators in the step which look up rows by the input,
    `flops_share` that of the peak, `fixed_bytes` what memory any batch needs. Many inputs are a symptom of
    I/O and of memory: what they cost, loaded or looked up and kept, tells of which.
    """
    io, step = verdict.shares["io"], 1 - verdict.shares["io"]
    there = room.device_bytes if room.device_bytes > 0 else 1.0
    kept = max(lookup_share * step, (room.peak_bytes - fixed_bytes) / there)
    return {
        "io_many_inputs_bytes": input_bytes,
        "io_parsing_share": io * load_busy,
        "io_small_model_step_share": step,
        "io_slow_storage_share": io * (1 - load_busy),
        "compute_flops_per_input_byte": flops / input_bytes if input_bytes else 0.0,
        "compute_share_of_peak_flops": flops_share,
        "memory_many_inputs_share": kept,
        "memory_many_parameters_share": fixed_bytes / there,
        "memory_peak_share": room.peak_bytes / there,
        "many_inputs_are_a_symptom_of": "io" if io >= kept else "memory",
    }
