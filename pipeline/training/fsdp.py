"""What if a model does not fit one device? Each worker holds a share of weights, gradients and moments.

Stage 3 of ZeRO (Rajbhandari et al. 2020) by torch's `fully_shard` (FSDP2; Zhao et al. 2023, arXiv
2304.11277): the weights of a block are gathered when it is computed and let go afterwards; its gradients are
added up over workers as the backward pass leaves it, and each worker keeps its share. So each pass is one of
all workers:

- All take as many passes as the one with the most, the others for one sample that counts nothing.
- Who runs out of memory cannot go on with smaller passes, as others wait for it in the middle of one: it
  remembers half the size for the next start, and ends.
- All take as long as the slowest, so times tell nothing, and shares of a batch stay as they are.

What is learned is the same, to rounding, and so are checkpoints: whole, and for any number of workers.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from pipeline.contract.errors import JobError, PlanError, is_out_of_memory
from pipeline.contract.workload import Batch
from pipeline.training.engine import TorchEngine, log
from pipeline.training.gradients import Gradients, Signals, Sums, told_noise
from pipeline.training.sample_order import Indices
from pipeline.training.tuning import blocks, halves, normalised, read


class Whole(nn.Module):
    """A model and its loss, in one forward pass: weights are there whatever the loss does with the model."""

    def __init__(self, model: nn.Module, loss: Callable[[Batch], Tensor]) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, batch: Batch) -> Tensor:
        """Loss of each sample."""
        return self._loss(batch)


def divide(model: nn.Module, loss: Callable[[Batch], Tensor], *, device: torch.device) -> Whole:
    """Divide the weights of a model among all workers, block by block, and bring the shares to the device.

    Gradients are summed, not averaged. PlanError for a model whose weights cannot be divided.
    """
    if normalised(model):
        raise PlanError(
            "the model has BatchNorm, whose statistics are of a whole share, so its weights cannot be "
            "divided among workers; use LayerNorm or GroupNorm, or name a machine with more memory in "
            "plan.machines"
        )
    if any(getattr(module, "sparse", False) for module in model.modules()):
        raise PlanError(
            "the model has embeddings with sparse gradients, so its weights cannot be divided among workers; "
            "make them dense, or name a machine with more memory in plan.machines"
        )
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    whole = Whole(model, loss)
    for unit in (*_units(model), whole):
        fully_shard(unit, mesh=mesh)
    for module in whole.modules():
        if isinstance(module, FSDPModule):  # none of these reaches the modules below
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            module.set_reduce_scatter_unused_params(True, recurse=False)
    return whole


def _units(model: nn.Module) -> Iterator[nn.Module]:
    """Parts whose weights are gathered by themselves; what others use too is gathered with the rest."""
    uses: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for block in blocks(model):
        for part in block:
            own = list(part.parameters())
            if own and all(uses[id(each)] == 1 for each in own) and not isinstance(part, _CONTAINERS):
                yield part


_CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # have no forward pass to gather for


class DividedEngine(TorchEngine):
    """Updates of workers who each hold a share of the model."""

    def __init__(self, workload: Any, dataset: Any, **told: Any) -> None:
        self._whole: Whole
        self._num_passes = 1  # of this update, on each worker
        super().__init__(workload, dataset, **told)
        self._dataset, self._spare = dataset, None
        self._stopwatch = None

    def _divided(self, model: nn.Module) -> nn.Module:
        loss = partial(self._tuner.loss, self._workload, model)
        self._whole = divide(model, loss, device=self.device)
        return model

    def _made_gradients(self) -> Gradients:
        return DividedGradients(self.model, rank=self.rank, world_size=self.world_size, apart=True)

    def _in_parts(self, num_samples: int) -> bool:
        return self._num_passes > 1

    def _accumulate(
        self, indices: Indices, batch_size: int
    ) -> tuple[list[Tensor], tuple[Tensor, int] | None, int]:
        """Gradients of all shares, in as many passes on each worker; see `TorchEngine`."""
        self._sow()
        self._gradients.clear()
        passes = self._passes(indices)
        whole = len(indices) < 2 or not self._may_halve
        most = torch.tensor([len(passes), int(whole)], device=self.device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        self._num_passes, any_whole = most.tolist()
        looks = self._looks(len(indices))
        halved = looks and self._num_passes == 1 and not any_whole
        losses: list[Tensor] = []
        first: tuple[Tensor, int] | None = None
        try:
            for number in range(self._num_passes):
                part = passes[number] if number < len(passes) else indices[:0]
                batch = self._tuner.batch(self._loader.get(part) if len(part) else self._idle())
                for each in halves(batch, len(part)) if halved else (batch,):
                    loss = self._whole(each).sum()
                    loss.backward(loss.new_tensor(1 / batch_size if len(part) else 0.0))
                    if len(part):
                        losses.append(loss.detach())
                    if looks and first is None:
                        first = self._gradients.square(), len(part) // 2 if halved else len(part)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                self._remember(len(passes[0]) if passes else 1)
            raise
        return losses, first if self._num_passes > 1 or len(losses) > 1 else None, 0

    def _idle(self) -> Batch:
        """A batch of one sample, for a pass that counts nothing."""
        if self._spare is None:
            self._spare = read(self._dataset, [0])
        return self._spare

    def _remember(self, size: int) -> None:
        if size == 1:
            raise JobError(
                "memory does not suffice for a step on one sample, with weights divided among "
                f"{self.world_size} workers; train a smaller model, or name a machine with more memory in "
                "plan.machines"
            )
        log.warning("memory does not suffice for %d samples a pass; ending, to begin again with half", size)
        self._shrunk(-(-size // 2))

    def weights(self) -> dict[str, Tensor]:
        """The whole model in main memory of worker 0; nothing on others."""
        found = {name: self._gathered(tensor) for name, tensor in self.model.state_dict().items()}
        return {} if self.rank else found

    def _moments(self) -> dict[str, Any]:
        told = self.optimizer.state_dict()
        state = {
            place: {name: self._gathered(value) for name, value in kept.items()}
            for place, kept in told["state"].items()
        }
        return {**told, "state": {} if self.rank else state}

    def _gathered(self, value: Any) -> Any:
        """A tensor whose shares all workers hold; whole on worker 0, and None on others."""
        if not isinstance(value, DTensor):
            return value
        found = value.full_tensor()
        return None if self.rank else found.cpu()

    def _take_over(self, tensors: dict[str, Tensor]) -> None:
        own = self.model.state_dict()
        self.model.load_state_dict({name: _share(value, own.get(name)) for name, value in tensors.items()})

    def _own(self, tree: dict[str, Any]) -> dict[str, Any]:
        parameters = [each for group in self.optimizer.param_groups for each in group["params"]]
        state = {
            place: {name: _share(value, parameters[place]) for name, value in kept.items()}
            for place, kept in tree["state"].items()
        }
        return {**tree, "state": state}


class DividedGradients(Gradients):
    """Gradients that the backward pass has added up over workers, a share on each."""

    def __init__(self, model: nn.Module, **told: Any) -> None:
        super().__init__(model, **told)
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def clear(self) -> None:
        """Forget the gradients of the last update."""
        for parameter in self._trained:
            parameter.grad = None

    def square(self) -> Tensor:
        """This worker's part of |gradient|^2 of all workers."""
        shares = (each.grad for each in self._trained)
        own = [share.to_local() for share in shares if isinstance(share, DTensor)]
        return nn.utils.get_total_norm(own).square()

    def reduce(
        self,
        losses: list[Tensor],
        signals: Signals,
        *,
        time_s: float = 0.0,
        num_samples: int = 0,
        batch_size: int = 0,
        first: tuple[Tensor, int] | None = None,
    ) -> Sums:
        """Add up what else is said; the noise by the `first` passes of all workers, as of one alone."""
        for parameter in self._trained:
            if parameter.grad is None:  # no worker has used it
                parameter.grad = torch.zeros_like(parameter)
        told = (first[0], float(first[1]), self.square()) if batch_size and first else (0.0, 0.0, 0.0)
        sums, (small, size, big) = self._exchange(losses, signals, time_s=time_s, told=told)
        if not 0 < size < batch_size:
            return sums
        found = told_noise(small * (batch_size / size) ** 2, size, big, batch_size)
        return replace(sums, noise=found)


def _share(value: Any, like: Any) -> Any:
    """This worker's share of a whole tensor, divided as another of its shape is."""
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    whole = value.to(like.device)
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
