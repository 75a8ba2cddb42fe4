"""States the facts about a job that remedies depend on: of its device, memory, reads, step and model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from daybreak.contract.record_parts import Line

Bound = Literal["io", "compute", "memory"]
COMPILE_S, COMPILE_LAYER_S = 15.0, 1.5  # to compile a model, and each of its layers (ResNet-18: 90 s)


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """The device that was measured, and its host."""

    on_cpu: bool
    num_cores: int
    flops_per_s: float
    bfloat16_flops_per_s: float = 0.0
    bytes_per_s: float = 0.0  # of the device's memory
    storage_bytes_per_s: float = 0.0
    name: str = ""  # by its driver


@dataclass(frozen=True, kw_only=True)
class MemoryFacts:
    """How the job fits the memory of the device."""

    fits: bool
    peak_bytes: float = 0.0
    remedies: Mapping[str, str] = field(default_factory=dict)  # without which no pass fits, and their effects
    most_samples: int = 0  # that fit in a pass; 0: the whole batch


@dataclass(frozen=True, kw_only=True)
class ReadFacts:
    """How the job reads its samples."""

    whole_batches: bool  # the data set reads a list of indices at once
    draws: bool = False  # samples are drawn at random each time, as crops are
    waited_share: float = 0.0  # of a load, in which it waits for storage
    batch_bytes: int = 0
    columns_bytes: int = 0  # of all samples kept in memory; 0: they cannot be kept
    memory_bytes: int = 0  # that they may use
    array_bytes: int = 0  # of the arrays on the disk
    new_share: float = 1.0  # of the samples, that a night has to read itself; the others were kept by day


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """Shares of a step's time by cause."""

    memory_share: float = 0.0  # in operators bound by memory
    dispatch_share: float = 0.0  # in which operators are dispatched
    activation_share: float = 0.0  # in activations that cost more than a ReLU
    optimizer_share: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What the model and its optimizer have that a remedy could change."""

    variants: frozenset[str] = frozenset()  # of VARIANTS, those that the workload offers
    sparse_rows: float = 0.0  # share of the rows of embedding tables that a step looks up; 0: none are dense
    sparse_equal: bool = False  # the optimizer leaves rows without a gradient as they are
    table_share: float = 0.0  # of the parameters that are in these tables
    fusible: bool = False  # torch has one kernel for the whole update
    images: bool = False  # the model convolves images
    blocks: bool = False  # the model has layers whose activations can be recomputed
    convolves: bool = False  # the model has convolutions that can be band-limited
    band_rate: float = 0.0  # at which they are
    is_undivided: bool = False  # the loss is over a whole batch, in one pass
    num_layers: int = 10  # with weights of their own

    @property
    def compile_s(self) -> float:
        """Seconds that it takes to compile the model, once in a trial and once in training."""
        return COMPILE_S + COMPILE_LAYER_S * self.num_layers


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """The facts about a job that remedies depend on."""

    bound: Bound
    batch_size: int
    load_s: Line
    step_s: Line
    device: DeviceFacts
    memory: MemoryFacts
    reads: ReadFacts
    step: StepFacts = StepFacts()
    model: ModelFacts = ModelFacts()
    epochs: float = 1.0
    num_workers: int = 1

    @property
    def total_s(self) -> float:
        """Seconds of load and step."""
        return self.load_s(self.batch_size) + self.step_s(self.batch_size)

    @property
    def again_share(self) -> float:
        """Share of the reads, over all epochs, of samples that were read before."""
        return max(0.0, 1 - self.reads.new_share / self.epochs) if self.epochs else 0.0

    @property
    def load_share(self) -> float:
        """Share of the time spent loading."""
        return self.load_s(self.batch_size) / self.total_s if self.total_s else 0.0

    @property
    def compute_share(self) -> float:
        """Share of the time that grows with the samples in a step."""
        return self.step_s.per_sample * self.batch_size / self.total_s if self.total_s else 0.0
