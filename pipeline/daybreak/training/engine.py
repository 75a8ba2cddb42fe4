"""Takes updates: the protocol `Engine`, and its implementation in torch with one process per device.

The gradient of an update is the sum of the gradients of its samples / its global batch size, for any shares
of the workers and any size of the passes: shares may differ, and a share may be empty. Where memory does not
suffice for a pass on one worker, all workers repeat that update, in passes of half the size or as a guard of
the memory says (hook `guard`).
"""

import logging
import math
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from daybreak import hooks
from daybreak.contract.errors import JobError, is_out_of_memory
from daybreak.contract.record_types import EVERY_UPDATE, Sync, Tuning
from daybreak.contract.workload import Batch, Workload
from daybreak.training import process_group
from daybreak.training.checkpoint import TrainingState, pack, unpack
from daybreak.training.column_files import ColumnFiles
from daybreak.training.devices import device, device_names
from daybreak.training.gradients import Gradients, Signals
from daybreak.training.learning_rate import Rule, Scaled, rate_shares, scaled
from daybreak.training.loader import Loader
from daybreak.training.sample_order import Indices
from daybreak.training.timers import StepTimer
from daybreak.training.tuning import (
    ShardedOptimizer,
    Tuner,
    check_model,
    check_optimizer,
    halves,
    new_model,
    normalised,
    rule_of,
    schedules_rate,
)

log = logging.getLogger(__name__)

COLLECTIVE_TIMEOUT = timedelta(minutes=5)  # after which a silent worker has all of them restarted
SCALED = ("betas", "eps")  # options of an optimizer that a rule changes, besides its rate
# Updates between measurements of the noise: from parts that exist anyway, or from a pass halved for it.
LOOK_EVERY, HALVE_EVERY = 25, 100


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """The result of an update, the same on all workers."""

    loss: float  # mean per sample of the global batch
    signals: Signals
    times_s: tuple[float, ...] = ()  # of each worker for its share of the update before; empty: shares stay
    noise: tuple[float, float] | None = None  # |g|^2 and tr(Sigma) (noise.py), at some updates


class Engine(Protocol):
    """Takes the updates of one worker."""

    rank: int
    world_size: int
    least_share: int  # samples of a share that is not empty, where the batch has as many: 2 for BatchNorm

    def prepare(self, indices: Indices, *, epoch: int = 0) -> None:
        """Starts to load a share of an epoch that `step` will soon be called with."""

    def step(self, indices: Indices, *, batch_size: int, rate: float, signals: Signals) -> UpdateResult:
        """Takes one update from this worker's share `indices` of a batch of `batch_size` samples.

        A loss that is not finite leaves the model unchanged.
        """

    def rescale(
        self, *, batch_size: int, base_size: int, rule: Rule, micro_batch_size: int | None = None
    ) -> Scaled:
        """Adapts the optimizer to this batch size, given a rate for batches of `base_size`.

        The caller multiplies the rate. Raises ParamsError where the optimizer has no rule.
        """

    def total(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the sum over workers, which all call it together."""

    def save(self) -> TrainingState:
        """Returns the state of model and optimizer; all workers call it together."""

    def load(self, state: TrainingState) -> None:
        """Restores a state that `save` returned, on any number of workers."""


class Guard(Protocol):
    """What follows a memory limit by settings that take less: a `micro_batch_size` each, and more."""

    setting: Any
    taken: Counter[str]
    peak_bytes: int

    def begin(self, micro_batch_size: int, *, num_samples: int, failed: Iterable[Any] = ()) -> Any:
        """Returns the setting of an update that begins, which the model now has."""

    @property
    def is_lowest(self) -> bool:
        """Whether no setting takes less."""

    def fail(self, error: BaseException) -> None:
        """Records that the memory did not suffice with this setting."""


def _guard(model: nn.Module, *, device: torch.device, tuning: Tuning, band_limits: bool) -> Guard | None:
    """Returns what follows the limit of memory; None where nothing here does."""
    guards = hooks.functions("guard")
    if not guards:
        log.warning(
            "no extension here follows a limit of memory that moves, as train.follow_memory asks; restore "
            "pipeline/daybreak/extensions, or set it to off"
        )
    made = (guard(model, device=device, tuning=tuning, band_limits=band_limits) for guard in guards)
    return next(made, None)


class TorchEngine:
    """Data-parallel training: over gloo on CPUs, repeatable bit for bit; over nccl where all have GPUs."""

    def __init__(
        self,
        workload: Workload,
        dataset: "Dataset[Any]",
        *,
        seed: int,
        micro_batch_size: int,
        tuning: Tuning,
        on_shrink: Callable[[int], None] = lambda micro_batch_size: None,
        column_files: ColumnFiles | None = None,
        follow_memory: Literal["off", "same_gradient", "band_limited"] = "off",
    ) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        if not 0 <= self.rank < self.world_size:
            raise JobError(
                f"worker {self.rank} of a world of {self.world_size} has no others to train with; "
                f"start at least one by torchrun (key train.num_workers)"
            )
        self.device = device()
        if self.device.type == "cpu":
            torch.use_deterministic_algorithms(True, warn_only=True)
            # Filling costs time, and uninitialized memory is never read.
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        names = process_group.form(
            self.device, rank=self.rank, world_size=self.world_size, timeout=COLLECTIVE_TIMEOUT
        )
        self.devices = device_names(names)
        torch.manual_seed(seed)
        self._seed = seed
        self._workload = workload
        self._micro_batch_size = self._recipe_pass = micro_batch_size
        self._on_shrink = on_shrink
        self._tuner = Tuner(tuning, self.device)
        model = new_model(workload, getattr(dataset, "state", {}), rate=tuning.band_rate)
        check_model(model)
        self.model = self._tuner.model(self._shard(model))
        self.model.train()
        optimizer = workload.optimizer(self.model.parameters())
        check_optimizer(optimizer)
        if schedules_rate(optimizer):
            log.warning(
                "the scheduler that optimizer() attaches changes nothing, as training sets the rate at each "
                "update; set train.rate, train.warmup and train.decay"
            )
        self.optimizer = self._tuner.optimizer(optimizer)
        self._sharded_optimizer: ShardedOptimizer | None = None
        if tuning.sharded and not tuning.sharded_weights and self.world_size > 1:
            self._sharded_optimizer = ShardedOptimizer(
                self.optimizer, rank=self.rank, world_size=self.world_size
            )
        self._gradients = self._new_gradients()
        self._loader = Loader(
            self._tuner.data(dataset, files=column_files),
            num_loaders=tuning.num_loaders,
            in_processes=tuning.loader_processes,
            seed=seed,
            on_cpu=self.device.type == "cpu",
        )
        self._prepared: deque[tuple[Indices, int]] = deque()  # shares that come, with their epochs
        self._epoch = 0  # of the share of this update
        self._updates = 0
        self._sample_weights: dict[int, Tensor] = {}
        self._base = [{name: group.get(name) for name in SCALED} for group in self.optimizer.param_groups]
        self._rate_shares = rate_shares(group.get("lr") for group in self.optimizer.param_groups)
        self._warn_of_passes = normalised(self.model)
        # The statistics of a single value say nothing, and torch refuses to take them.
        self.least_share = 2 if self._warn_of_passes else 1
        # Halving would compile for one more shape, and BatchNorm would take statistics over half a pass.
        self._may_halve = not tuning.compiled and not self._warn_of_passes
        self.memory_guard: Guard | None = None
        if follow_memory != "off" and not tuning.compiled:
            self.memory_guard = _guard(
                self.model, device=self.device, tuning=tuning, band_limits=follow_memory == "band_limited"
            )
        self._whole_pass = 1  # samples of the largest pass that the recipe asks for
        self._failed: list[Any] = []  # settings of the guard on which this update did not fit
        # BatchNorm takes its statistics over a share, so a share of another size would change the model.
        self._timer = None if self.world_size == 1 or self._warn_of_passes else StepTimer(self.device)

    def _shard(self, model: nn.Module) -> nn.Module:
        """Returns the model, divided among workers by engines that do so, before it goes to the device."""
        return model

    def _new_gradients(self) -> Gradients:
        return Gradients(self.model, rank=self.rank, world_size=self._num_partners)

    @property
    def _num_partners(self) -> int:
        """Number of workers whose gradients are added up in an update."""
        return self.world_size

    @property
    def waited_s(self) -> float | None:
        """Seconds that this worker's device waited for samples, since the job began here; None: not known."""
        return self._loader.waited_s

    def prepare(self, indices: Indices, *, epoch: int = 0) -> None:
        """Starts to load a share of an epoch."""
        self._prepared.append((indices, epoch))
        self._loader.prepare(self._passes(indices), epoch=epoch)

    def step(self, indices: Indices, *, batch_size: int, rate: float, signals: Signals) -> UpdateResult:
        """Takes one update; see the protocol. Raises JobError where memory does not suffice for it."""
        self._take_epoch(indices)
        short, timer = 1, self._timer
        before_s = timer.read() if timer else 0.0
        self._failed = []
        while short:
            self._follow_memory(len(indices), batch_size)
            if timer:
                timer.start()
            losses, first, short = self._accumulate(indices, batch_size)
            if timer:
                timer.stop()
            own = replace(signals, short=short) if short else signals
            measures_noise = self._measures_noise(len(indices))
            sums = self._gradients.reduce(
                losses,
                own,
                time_s=before_s,
                num_samples=len(indices),
                batch_size=batch_size if measures_noise else 0,
                first=first,
            )
            short = sums.signals.short
            if short and not self.memory_guard:
                self._shrink(batch_size)
        self._updates += 1
        mean = sums.loss / batch_size
        if math.isfinite(mean):
            for group, part in zip(self.optimizer.param_groups, self._rate_shares, strict=True):
                group["lr"] = rate * part
            self._update()
        times_s = sums.times_s if timer else ()
        return UpdateResult(loss=mean, signals=sums.signals, times_s=times_s, noise=sums.noise)

    def _take_epoch(self, indices: Indices) -> None:
        """Finds the epoch of a share; one that was not prepared is of the epoch of the update before."""
        place = next((n for n, (share, _) in enumerate(self._prepared) if share is indices), -1)
        for _ in range(place + 1):  # those before it had no samples
            _, self._epoch = self._prepared.popleft()

    def _follow_memory(self, num_samples: int, batch_size: int) -> None:
        """Takes the passes that come as the memory that is left allows, where a guard follows it."""
        if not self.memory_guard:
            return
        share = -(-batch_size // self._num_partners)
        self._whole_pass = max(self._whole_pass, min(self._recipe_pass, share))
        setting = self.memory_guard.begin(self._whole_pass, num_samples=num_samples, failed=self._failed)
        self._micro_batch_size = setting.micro_batch_size

    def _fall_short(self, error: RuntimeError | MemoryError) -> None:
        """Records that this update does not fit with its setting; raises JobError where none takes less."""
        if not self.memory_guard:
            return
        if self.memory_guard.is_lowest:
            raise self._too_large()
        self.memory_guard.fail(error)
        self._failed.append(self.memory_guard.setting)

    @property
    def short_of_memory(self) -> dict[str, int]:
        """Updates that were taken otherwise than the recipe says, as memory was short, by how."""
        return dict(self.memory_guard.taken) if self.memory_guard else {}

    @property
    def peak_bytes(self) -> int:
        """The most memory that was measured by the guard; 0 without one."""
        return self.memory_guard.peak_bytes if self.memory_guard else 0

    def _measures_noise(self, num_samples: int) -> bool:
        """Returns whether this update measures the noise of gradients."""
        return (self._updates + 1) % (LOOK_EVERY if self._in_parts(num_samples) else HALVE_EVERY) == 0

    def _in_parts(self, num_samples: int) -> bool:
        """Returns whether an update has parts that can be compared without halving a pass for it."""
        return self._num_partners > 1 or num_samples > self._micro_batch_size

    def _update(self) -> None:
        """Changes the weights; there is no retry, as some may have changed when memory ran out."""
        try:
            (self._sharded_optimizer or self.optimizer).step()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise JobError(
                "memory does not suffice for what the optimizer keeps, in passes of any size; take one "
                "that keeps less (key workload), or name a machine with more memory in plan.machines"
            ) from error

    def _accumulate(
        self, indices: Indices, batch_size: int
    ) -> tuple[list[Tensor], tuple[Tensor, int] | None, int]:
        """Adds up the gradients of this worker's share.

        Returns the loss of each pass; |gradient|^2 and samples of the first pass, for the noise; and 1 if
        memory did not suffice, else 0.
        """
        self._seed_generators()
        self._gradients.clear()
        losses: list[Tensor] = []
        first = None
        measures_noise = self._num_partners == 1 and self._measures_noise(len(indices))
        try:
            passes = self._passes(indices)
            if len(passes) > 1 and self._warn_of_passes:
                self._warn_of_passes = False
                log.warning("BatchNorm takes its statistics over %d samples, a pass", len(passes[0]))
            halved = measures_noise and len(passes) == 1 and len(indices) > 1 and self._may_halve
            for part in passes:
                whole = self._batch(part)
                for batch in halves(whole, len(part)) if halved else (whole,):
                    loss = self._tuner.loss(self._workload, self.model, batch).sum()
                    loss.backward(self._weight(loss, batch_size))  # type: ignore[no-untyped-call]
                    losses.append(loss.detach())
                    if measures_noise and first is None:
                        first = self._gradients.square(), len(part) // 2 if halved else len(part)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._fall_short(error)
            # The others are waiting in the all-reduce: join them, and signal it there.
            return losses, None, 1
        return losses, first if len(losses) > 1 else None, 0

    def _batch(self, part: Indices) -> Batch:
        """Returns the samples of a pass, on the device."""
        return self._tuner.batch(self._loader.get(part, epoch=self._epoch))

    def _weight(self, loss: Tensor, batch_size: int) -> Tensor:
        """Returns the weight of a loss in its batch's mean; cached, as it takes as long as a layer."""
        if batch_size not in self._sample_weights:
            self._sample_weights = {batch_size: loss.new_tensor(1 / batch_size)}
        return self._sample_weights[batch_size]

    def _seed_generators(self) -> None:
        """Seeds by the number of the update: dropout is repeatable without saving a generator's state."""
        key = (self._seed * 1_000_003 + self._updates) * self.world_size + self.rank
        torch.default_generator.manual_seed(key % (1 << 63))  # torch.manual_seed would take 0.3 ms
        if self.device.type == "cuda":
            torch.cuda.manual_seed(key % (1 << 63))

    def _shrink(self, batch_size: int) -> None:
        """Halves the size of passes, on all workers alike."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        before = min(self._micro_batch_size, -(-batch_size // self._num_partners))
        if before == 1:
            raise self._too_large()
        self._micro_batch_size = -(-before // 2)
        log.warning(
            "memory does not suffice for %d samples a pass; going on with %d", before, self._micro_batch_size
        )
        if self.rank == 0:
            self._on_shrink(self._micro_batch_size)

    def _too_large(self) -> JobError:
        return JobError(
            "memory does not suffice for a step on one sample; train a smaller model, "
            "or name a machine with more memory in plan.machines"
        )

    def rescale(
        self, *, batch_size: int, base_size: int, rule: Rule, micro_batch_size: int | None = None
    ) -> Scaled:
        """Changes betas and eps of the optimizer by its rule; see the protocol."""
        scalings = []
        for group, base in zip(self.optimizer.param_groups, self._base, strict=True):
            scaling = scaled(
                rule_of(self.optimizer),
                name=type(self.optimizer).__name__,
                rule=rule,
                batch_size=batch_size,
                base_size=base_size,
                betas=tuple(base["betas"] or ()),
                eps=base["eps"] or 0.0,
            )
            group |= {name: getattr(scaling, name) for name in SCALED if base[name] is not None}
            scalings.append(scaling)
        self._micro_batch_size = micro_batch_size or self._micro_batch_size
        self._recipe_pass = micro_batch_size or self._recipe_pass
        return min(scalings, key=lambda each: each.most_times)

    def total(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the sum over workers."""
        if self.world_size == 1:
            return counts
        added = torch.from_numpy(counts).to(self.device)
        dist.all_reduce(added)
        summed: NDArray[np.int64] = added.cpu().numpy()
        return summed

    def weights(self) -> dict[str, Tensor]:
        """Returns the whole model on worker 0; all workers call it together."""
        return dict(self.model.state_dict())

    def save(self) -> TrainingState:
        """Returns model and optimizer as references, valid until the next step."""
        tensors, tree = pack(self._moments())
        return TrainingState(
            tensors={"model": self.weights(), "optimizer": tensors},
            scalars={
                "optimizer": tree,
                "engine_updates": self._updates,
                "device": self.devices,
                "short_of_memory": self.short_of_memory,
            },
        )

    def load(self, state: TrainingState) -> None:
        """Restores model and optimizer."""
        self._load_weights(state.tensors["model"])
        tree = unpack(state.tensors.get("optimizer", {}), state.scalars["optimizer"])
        self.optimizer.load_state_dict(self._own(tree))
        self._tuner.optimizer(self.optimizer)
        if self._sharded_optimizer:
            self._sharded_optimizer.drop_others_state()
        self._updates = state.scalars["engine_updates"]
        if self.memory_guard:
            self.memory_guard.taken.update(state.scalars.get("short_of_memory", {}))

    def _moments(self) -> dict[str, Any]:
        """Returns the whole state of the optimizer on worker 0."""
        return (self._sharded_optimizer or self.optimizer).state_dict()

    def _load_weights(self, tensors: dict[str, Tensor]) -> None:
        """Loads the weights of a whole model."""
        self.model.load_state_dict(tensors)

    def _own(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Returns this worker's part of a whole state of the optimizer, before it goes to the device."""
        return tree

    def begin_from(self, tensors: dict[str, Tensor]) -> bool:
        """Loads the tensors of another model; returns False and changes nothing if their shapes differ."""
        own = {name: tensor.shape for name, tensor in self.model.state_dict().items()}
        if own != {name: tensor.shape for name, tensor in tensors.items()}:
            return False
        self._load_weights(tensors)
        return True

    def finish(self) -> None:
        """Completes averages in flight after the last update; all workers call this together."""

    @property
    def sync(self) -> Sync:
        """When workers agree."""
        return EVERY_UPDATE

    def close(self) -> None:
        """Ends the loaders and the process group."""
        self._loader.close()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _passes(self, indices: Indices) -> list[Indices]:
        size = self._micro_batch_size
        if self.least_share > 1 and 1 < size < len(indices):  # statistics over passes of about one size
            number = min(-(-len(indices) // size), len(indices) // self.least_share)
            return np.array_split(indices, number)
        return [indices[start : start + size] for start in range(0, len(indices), size)]


def agreed(value: Any) -> Any:
    """Returns the value of worker 0 on all workers."""
    if not dist.is_initialized():
        return value
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]
