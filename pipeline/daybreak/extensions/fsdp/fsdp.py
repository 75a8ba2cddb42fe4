"""Trains a model that does not fit one device: each worker holds a share of weights, gradients and moments.

Stage 3 of ZeRO (Rajbhandari et al. 2020) by torch's `fully_shard` (FSDP2; Zhao et al. 2023, arXiv
2304.11277): the weights of a block are gathered for its computation and released afterwards; its gradients
are summed over workers when the backward pass leaves the block, and each worker keeps a share. So all workers
take each pass together:

- All take as many passes as the worker with the most; the others fill up with passes of weight 0
  on one sample.
- A worker that runs out of memory cannot go on with smaller passes, as the others wait for it in the middle
  of one: it records half the size for the next start, and ends.
- All take as long as the slowest worker, so times carry no information, and shares of a batch stay
  unchanged.

What is learned is the same, up to rounding, and so are checkpoints: whole, and for any number of workers.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from daybreak.contract.errors import JobError, PlanError, is_out_of_memory
from daybreak.contract.workload import Batch, TrainingProgress, Workload
from daybreak.training.accumulation import Accumulated, Accumulation
from daybreak.training.engine import TorchEngine
from daybreak.training.gradients import Gradients, Signals, Sums, finite_noise
from daybreak.training.sample_order import Indices
from daybreak.training.tuning import blocks, halves, normalised, read
from daybreak.training.updater import Updater

log = logging.getLogger(__name__)


class ModelWithLoss(nn.Module):
    """A model and its loss in one forward pass: weights are gathered however the loss uses the model."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, batch: Batch, *progress: TrainingProgress | None) -> Tensor:
        """Returns the loss of each sample."""
        losses: Tensor = self._loss(batch, *progress)
        return losses


def shard(model: nn.Module, loss: Callable[..., Any], *, device: torch.device) -> ModelWithLoss:
    """Divides the weights of a model among all workers, block by block, and moves the shares to the device.

    Gradients are summed, not averaged. Raises PlanError for a model whose weights cannot be divided.
    """
    if normalised(model):
        raise PlanError(
            "the model has BatchNorm, which takes its statistics over a worker's whole share, so its weights "
            "cannot be divided among workers; use LayerNorm or GroupNorm, or name a machine with more memory "
            "in plan.machines"
        )
    if any(getattr(module, "sparse", False) for module in model.modules()):
        raise PlanError(
            "the model has embeddings with sparse gradients, so its weights cannot be divided among workers; "
            "make them dense, or name a machine with more memory in plan.machines"
        )
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    whole = ModelWithLoss(model, loss)
    for unit in (*_units(model), whole):
        fully_shard(unit, mesh=mesh)
    for module in whole.modules():
        if isinstance(module, FSDPModule):  # none of these reaches the modules below
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            module.set_reduce_scatter_unused_params(True, recurse=False)
    return whole


def _units(model: nn.Module) -> Iterator[nn.Module]:
    """Yields parts whose weights are gathered separately; weights used elsewhere too go with the rest."""
    uses: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for block in blocks(model):
        for part in block:
            own = list(part.parameters())
            if own and all(uses[id(each)] == 1 for each in own) and not isinstance(part, _CONTAINERS):
                yield part


_CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # have no forward pass to gather for


class FsdpEngine(TorchEngine):
    """Updates by workers that each hold a share of the model."""

    can_score = False  # weights are gathered for passes with a loss alone
    takes_all = False

    def __init__(
        self,
        workload: Any,
        dataset: Any,
        *,
        on_shrink: Callable[[int], None] = lambda micro_batch_size: None,
        **options: Any,
    ) -> None:
        self._whole: ModelWithLoss
        self._dataset, self._on_shrink = dataset, on_shrink  # which any worker calls
        # Workers gather weights together, so none may take other passes than the rest.
        super().__init__(workload, dataset, **(options | {"follow_memory": "off"}))
        self._timer = None

    def _shard(self, model: nn.Module, workload: Workload) -> nn.Module:
        loss = partial(self._tuner.loss, workload, model)
        self._whole = shard(model, loss, device=self.device)
        return model

    def _new_updater(self, optimizers: Mapping[str, Optimizer]) -> Updater:
        return FsdpUpdater(optimizers, model=self.model, tuner=self._tuner, group=self.group)

    def _new_gradients(self) -> Gradients:
        return FsdpGradients(
            self.model,
            rank=self.rank,
            world_size=self.world_size,
            apart=True,
            optimizers=self.updater.optimizers,
        )

    def _new_accumulation(self, *args: Any, **parts: Any) -> Accumulation:
        return FsdpAccumulation(
            *args, whole=self._whole, dataset=self._dataset, on_shrink=self._on_shrink, **parts
        )

    def whole(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns weights whole, in main memory, on worker 0; {} on others."""
        tensors = {name: _gathered(tensor, self.rank) for name, tensor in weights.items()}
        return {} if self.rank else tensors

    def shares(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns this worker's shares of whole weights."""
        own = self.model.state_dict()
        return {name: _share(value, own.get(name)) for name, value in weights.items()}


class FsdpAccumulation(Accumulation):
    """Passes that all workers take together, as many as the worker with the most."""

    def __init__(
        self, *args: Any, whole: ModelWithLoss, dataset: Any, on_shrink: Callable[[int], None], **parts: Any
    ) -> None:
        super().__init__(*args, **parts)
        self._whole, self._dataset, self._on_shrink = whole, dataset, on_shrink
        self._spare: Batch | None = None
        self._num_passes = 1  # of this update, on each worker

    def _in_parts(self, num_samples: int) -> bool:
        return self._num_passes > 1

    def add_up(self, indices: Indices, *, batch_size: int, update: int) -> Accumulated:
        """Adds up the gradients of all shares, in equally many passes on each worker."""
        progress = self._begin(update)
        passes = self._micro_batches.split(indices)
        whole = len(indices) < 2 or not self.may_halve
        most = torch.tensor([len(passes), int(whole)], device=self._group.device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        self._num_passes, any_whole = most.tolist()
        measures_noise = self.measures_noise(len(indices), update=update)
        halved = measures_noise and self._num_passes == 1 and not any_whole
        losses: list[Tensor] = []
        first: tuple[Tensor, int] | None = None
        try:
            for number in range(self._num_passes):
                part = passes[number] if number < len(passes) else indices[:0]
                batch = self._batch(part) if len(part) else self._tuner.batch(self._idle())
                for each in halves(batch, len(part)) if halved else (batch,):
                    loss = self._whole(each, progress).sum()
                    loss.backward(loss.new_tensor(1 / batch_size if len(part) else 0.0))
                    if len(part):
                        losses.append(loss.detach())
                    if measures_noise and first is None:
                        first = self.gradients.square(), len(part) // 2 if halved else len(part)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                self._remember(len(passes[0]) if passes else 1)
            raise
        is_apart = self._num_passes > 1 or len(losses) > 1
        return Accumulated(losses=losses, first=first if is_apart else None)

    def _idle(self) -> Batch:
        """Returns a batch of one sample, for a pass of weight 0."""
        if self._spare is None:
            self._spare = read(self._dataset, [0])
        return self._spare

    def _remember(self, size: int) -> None:
        if size == 1:
            raise JobError(
                "memory does not suffice for a step on one sample, with weights divided among "
                f"{self._group.world_size} workers; train a smaller model, or name a machine with more "
                "memory in plan.machines"
            )
        log.warning("memory does not suffice for %d samples a pass; ending, to start again with half", size)
        self._on_shrink(-(-size // 2))


class FsdpUpdater(Updater):
    """An optimizer whose moments are divided among workers as the weights are."""

    def _whole_state(self, name: str) -> dict[str, Any]:
        own = self.optimizers[name].state_dict()
        state = {
            place: {name: _gathered(value, self._group.rank) for name, value in kept.items()}
            for place, kept in own["state"].items()
        }
        return {**own, "state": {} if self._group.rank else state}

    def _own_state(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        own = {
            place: {name: _share(value, parameters[place]) for name, value in kept.items()}
            for place, kept in state["state"].items()
        }
        return {**state, "state": own}


class FsdpGradients(Gradients):
    """Gradients that the backward pass has added up over workers, a share on each."""

    def clear(self) -> None:
        """Clears the gradients of the last update."""
        for parameter in (*self._unowned, *self._trained):
            parameter.grad = None

    def _tensors(self) -> list[Tensor]:
        """Returns this worker's shares of the gradients of all workers."""
        shares = (each.grad for each in self._trained)
        return [share.to_local() for share in shares if isinstance(share, DTensor)]

    def _norm(self, tensors: Sequence[Tensor]) -> Tensor:
        square = super()._norm(tensors).square()
        dist.all_reduce(square)
        return square.sqrt()

    def reduce(
        self,
        losses: list[Tensor],
        signals: Signals,
        *,
        time_s: float = 0.0,
        num_samples: int = 0,
        batch_size: int = 0,
        first: tuple[Tensor, int] | None = None,
        names: frozenset[str] | None = None,
    ) -> Sums:
        """Adds up losses, signals and times over workers; the noise comes from the `first` passes of all."""
        for parameter in self._trained:
            if parameter.grad is None:  # no worker has used the parameter
                parameter.grad = torch.zeros_like(parameter)
        noise_terms = (first[0], float(first[1]), self.square()) if batch_size and first else (0.0, 0.0, 0.0)
        sums, (small, size, big) = self._exchange(losses, signals, time_s=time_s, noise_terms=noise_terms)
        if not 0 < size < batch_size:
            return sums
        estimate = finite_noise(small * (batch_size / size) ** 2, size, big, batch_size)
        return replace(sums, noise=estimate)


def _gathered(value: Any, rank: int) -> Any:
    """Returns a tensor divided among workers as a whole on worker 0, and None on others."""
    if not isinstance(value, DTensor):
        return value
    whole = value.full_tensor()
    return None if rank else whole.cpu()


def _share(value: Any, like: Any) -> Any:
    """Returns this worker's share of a whole tensor, divided in the same way as `like`."""
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    whole = value.to(like.device)
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
