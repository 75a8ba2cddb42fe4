"""How is one update taken? The protocol `Engine`, and torch with one process per device.

The gradient of an update is the sum of the gradients of its samples / its global batch size, whatever the
shares of the workers and the size of the passes: shares may differ, one may be empty. Where memory does not
suffice for a pass on one worker, all take that update again in passes of half the size.
"""

import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from pipeline.contract.errors import JobError, is_out_of_memory
from pipeline.contract.records import Tuning
from pipeline.contract.workload import Workload
from pipeline.training.checkpoint import State, pack, unpack
from pipeline.training.devices import device, devices
from pipeline.training.gradients import Gradients, Signals
from pipeline.training.learning_rate import Rule, Scaled, scaled
from pipeline.training.loader import Loader
from pipeline.training.sample_order import Indices
from pipeline.training.timers import Stopwatch
from pipeline.training.tuning import Shards, Tuner, halves, normalised, rule_of

log = logging.getLogger(__name__)

PATIENCE = timedelta(minutes=5)  # of workers with one of them, before all are started again
TOLD = ("betas", "eps")  # what a rule changes of an optimizer, besides its rate
# Updates between looks at the noise: by parts that there are anyway, and by a pass that is halved for it.
LOOK_EVERY, HALVE_EVERY = 25, 100


@dataclass(frozen=True, kw_only=True)
class Step:
    """What came of an update; the same on all workers."""

    loss: float  # mean per sample of the global batch
    signals: Signals
    times_s: tuple[float, ...] = ()  # of each worker for its share of the update before; empty: shares stay
    noise: tuple[float, float] | None = None  # |g|^2 and tr(Sigma) (noise.py), now and then


class Engine(Protocol):
    """How a step is taken."""

    rank: int
    world_size: int

    def prepare(self, indices: Indices) -> None:
        """Begin to get a batch ready that `step` will soon be asked for."""

    def step(self, indices: Indices, *, batch_size: int, rate: float, signals: Signals) -> Step:
        """One update from this worker's share `indices` of `batch_size` samples.

        A loss that is not finite leaves the model as it was.
        """

    def rescale(
        self, *, batch_size: int, base_size: int, rule: Rule, micro_batch_size: int | None = None
    ) -> Scaled:
        """Take updates as is right for this batch size, with a rate that is for batches of `base_size`.

        The caller multiplies the rate. ParamsError where the optimizer has no rule.
        """

    def total(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sum over workers, who call it together."""

    def save(self) -> State:
        """Model and optimizer; all workers call it together."""

    def load(self, state: State) -> None:
        """Go on from what `save` gave, on any number of workers."""


class TorchEngine:
    """Data-parallel training: over gloo on CPU, bit for bit repeatable; over nccl on GPU."""

    def __init__(
        self,
        workload: Workload,
        dataset: "Dataset[Any]",
        *,
        seed: int,
        micro_batch_size: int,
        tuning: Tuning,
        shrunk: Callable[[int], None] = lambda micro_batch_size: None,
    ) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        if not 0 <= self.rank < self.world_size:
            raise JobError(
                f"worker {self.rank} of a world of {self.world_size} has nobody to train with; "
                f"start at least one by torchrun (key train.num_workers)"
            )
        self.device = device()
        if self.device.type == "cpu":
            torch.use_deterministic_algorithms(True, warn_only=True)
            # Costs time, and nobody reads it.
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        if self.world_size > 1 and not dist.is_initialized():
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=PATIENCE)
        torch.manual_seed(seed)
        self._seed = seed
        self._workload = workload
        self._micro_batch_size, self._shrunk = micro_batch_size, shrunk
        self._tuner = Tuner(tuning, self.device)
        self.model = self._tuner.model(self._divided(workload.model()))
        self.model.train()
        self.optimizer = self._tuner.optimizer(workload.optimizer(self.model.parameters()))
        self._shards: Shards | None = None
        if tuning.sharded and not tuning.sharded_weights and self.world_size > 1:
            self._shards = Shards(self.optimizer, rank=self.rank, world_size=self.world_size)
        self._gradients = self._made_gradients()
        self._loader = Loader(self._tuner.data(dataset), num_loaders=tuning.num_loaders)
        self._updates = 0
        self._sample_weights: dict[int, Tensor] = {}
        self._base = [{name: group.get(name) for name in TOLD} for group in self.optimizer.param_groups]
        self._warn_of_passes = normalised(self.model)
        # One more shape would be compiled for, and statistics be taken over half a pass.
        self._may_halve = not tuning.compiled and not self._warn_of_passes
        # BatchNorm takes its statistics over a share: of another size, it would learn something else.
        self._stopwatch = None if self.world_size == 1 or self._warn_of_passes else Stopwatch(self.device)

    def _divided(self, model: nn.Module) -> nn.Module:
        """The model, before it is brought to the device."""
        return model

    def _made_gradients(self) -> Gradients:
        return Gradients(self.model, rank=self.rank, world_size=self._num_partners)

    @property
    def _num_partners(self) -> int:
        """Workers whose gradients make an update."""
        return self.world_size

    def prepare(self, indices: Indices) -> None:
        """Begin to load a share."""
        self._loader.prepare(self._passes(indices))

    def step(self, indices: Indices, *, batch_size: int, rate: float, signals: Signals) -> Step:
        """One update; see the protocol. JobError where memory does not suffice for it."""
        short, watch = 1, self._stopwatch
        before_s = watch.read() if watch else 0.0
        while short:
            if watch:
                watch.start()
            losses, first, short = self._accumulate(indices, batch_size)
            if watch:
                watch.stop()
            own = replace(signals, short=short) if short else signals
            looks = self._looks(len(indices))
            sums = self._gradients.reduce(
                losses, own, time_s=before_s, num_samples=len(indices),
                batch_size=batch_size if looks else 0, first=first,
            )  # fmt: skip
            short = sums.signals.short
            if short:
                self._shrink(batch_size)
        self._updates += 1
        mean = sums.loss / batch_size
        if math.isfinite(mean):
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self._update()
        times_s = sums.times_s if watch else ()
        return Step(loss=mean, signals=sums.signals, times_s=times_s, noise=sums.noise)

    def _looks(self, num_samples: int) -> bool:
        """Whether this update tells how noisy gradients are."""
        return (self._updates + 1) % (LOOK_EVERY if self._in_parts(num_samples) else HALVE_EVERY) == 0

    def _in_parts(self, num_samples: int) -> bool:
        """Whether an update is made of parts that can be compared, with nothing halved for it."""
        return self._num_partners > 1 or num_samples > self._micro_batch_size

    def _update(self) -> None:
        """Change the weights; some may be changed when memory ends, so there is no second try."""
        try:
            (self._shards or self.optimizer).step()
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
        """Gradients of this worker's share: the loss of each pass, what the first one tells of the noise.

        The last is 1 if memory did not suffice.
        """
        self._sow()
        self._gradients.clear()
        losses: list[Tensor] = []
        first = None
        looks = self._num_partners == 1 and self._looks(len(indices))
        try:
            passes = self._passes(indices)
            if len(passes) > 1 and self._warn_of_passes:
                self._warn_of_passes = False
                log.warning("BatchNorm takes its statistics over %d samples, a pass", len(passes[0]))
            halved = looks and len(passes) == 1 and len(indices) > 1 and self._may_halve
            for part in passes:
                whole = self._tuner.batch(self._loader.get(part))
                for batch in halves(whole, len(part)) if halved else (whole,):
                    loss = self._tuner.loss(self._workload, self.model, batch).sum()
                    loss.backward(self._weight(loss, batch_size))  # type: ignore[no-untyped-call]
                    losses.append(loss.detach())
                    if looks and first is None:
                        first = self._gradients.square(), len(part) // 2 if halved else len(part)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            # Others are waiting in the all-reduce: join them, and tell.
            return losses, None, 1
        return losses, first if len(losses) > 1 else None, 0

    def _weight(self, loss: Tensor, batch_size: int) -> Tensor:
        """What a loss counts in the mean of its batch; kept, since to make it takes as long as a layer."""
        if batch_size not in self._sample_weights:
            self._sample_weights = {batch_size: loss.new_tensor(1 / batch_size)}
        return self._sample_weights[batch_size]

    def _sow(self) -> None:
        """Seed by position: dropout is repeatable with no generator state to save."""
        key = (self._seed * 1_000_003 + self._updates) * self.world_size + self.rank
        torch.default_generator.manual_seed(key % (1 << 63))  # torch.manual_seed would take 0.3 ms
        if self.device.type == "cuda":
            torch.cuda.manual_seed(key % (1 << 63))

    def _shrink(self, batch_size: int) -> None:
        """Halve the passes, on all workers alike."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        before = min(self._micro_batch_size, -(-batch_size // self._num_partners))
        if before == 1:
            raise JobError(
                "memory does not suffice for a step on one sample; train a smaller model, "
                "or name a machine with more memory in plan.machines"
            )
        self._micro_batch_size = -(-before // 2)
        log.warning(
            "memory does not suffice for %d samples a pass; going on with %d", before, self._micro_batch_size
        )
        if self.rank == 0:
            self._shrunk(self._micro_batch_size)

    def rescale(
        self, *, batch_size: int, base_size: int, rule: Rule, micro_batch_size: int | None = None
    ) -> Scaled:
        """Change betas and eps of the optimizer by its rule; see the protocol."""
        told = []
        for group, base in zip(self.optimizer.param_groups, self._base, strict=True):
            found = scaled(
                rule_of(self.optimizer), name=type(self.optimizer).__name__, rule=rule,
                batch_size=batch_size, base_size=base_size,
                betas=tuple(base["betas"] or ()), eps=base["eps"] or 0.0,
            )  # fmt: skip
            group |= {name: getattr(found, name) for name in TOLD if base[name] is not None}
            told.append(found)
        self._micro_batch_size = micro_batch_size or self._micro_batch_size
        return min(told, key=lambda each: each.most_times)

    def total(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sum over workers."""
        if self.world_size == 1:
            return counts
        added = torch.from_numpy(counts).to(self.device)
        dist.all_reduce(added)
        summed: NDArray[np.int64] = added.cpu().numpy()
        return summed

    def weights(self) -> dict[str, Tensor]:
        """The whole model, on worker 0; all workers call it together."""
        return dict(self.model.state_dict())

    def save(self) -> State:
        """Model and optimizer, as references: write them before the next step."""
        tensors, tree = pack(self._moments())
        return State(
            tensors={"model": self.weights(), "optimizer": tensors},
            scalars={"optimizer": tree, "engine_updates": self._updates, "device": devices()},
        )

    def load(self, state: State) -> None:
        """Take over model and optimizer."""
        self._take_over(state.tensors["model"])
        tree = unpack(state.tensors.get("optimizer", {}), state.scalars["optimizer"])
        self.optimizer.load_state_dict(self._own(tree))
        self._tuner.optimizer(self.optimizer)
        if self._shards:
            self._shards.forget_others()
        self._updates = state.scalars["engine_updates"]

    def _moments(self) -> dict[str, Any]:
        """The whole state of the optimizer, on worker 0."""
        return (self._shards or self.optimizer).state_dict()

    def _take_over(self, tensors: dict[str, Tensor]) -> None:
        """Weights, of a whole model."""
        self.model.load_state_dict(tensors)

    def _own(self, tree: dict[str, Any]) -> dict[str, Any]:
        """What this worker keeps of a whole state of the optimizer, before it comes to the device."""
        return tree

    def begin_from(self, tensors: dict[str, Tensor]) -> bool:
        """Start warm from a model's tensors; False, and nothing changed, if it has another shape."""
        own = {name: tensor.shape for name, tensor in self.model.state_dict().items()}
        if own != {name: tensor.shape for name, tensor in tensors.items()}:
            return False
        self._take_over(tensors)
        return True

    def close(self) -> None:
        """End loaders and the process group."""
        self._loader.close()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _passes(self, indices: Indices) -> list[Indices]:
        size = self._micro_batch_size
        return [indices[start : start + size] for start in range(0, len(indices), size)]


def agreed(value: Any) -> Any:
    """What worker 0 says, on all workers."""
    if not dist.is_initialized():
        return value
    told = [value]
    dist.broadcast_object_list(told)
    return told[0]
