"""Applies a `Tuning` to data set, model, optimizer, batch and loss.

The trials of the profile and the training both use this module, so what was measured is what runs. With all
of a tuning off nothing is changed. What the model learns stays the same: bit for bit for what moves data and
for recomputing, up to rounding for kernels and orders of summing, and within the tolerance that the profile
states for bfloat16 (weights, gradients and optimizer stay float32; only products are taken in bfloat16).
"""

import inspect
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import ceil, sqrt
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import Dataset

from daybreak import hooks
from daybreak.contract.errors import ParamsError
from daybreak.contract.extra_state import SUFFIX
from daybreak.contract.record_parts import Tuning
from daybreak.contract.workload import (
    Batch,
    State,
    TrainingProgress,
    Workload,
    asks_progress,
    collated,
    is_encoded,
    is_over_batch,
    is_undivided,
    loss_of,
    make_model,
    thaws,
)
from daybreak.training.column_files import ColumnFiles, DaySamples
from daybreak.training.eager_optimizers import without_compiler
from daybreak.training.learning_rate import Kind
from daybreak.training.own_state import keeps_state
from daybreak.training.sample_order import Indices
from daybreak.training.turns import Losses

Samples = list[int] | Indices
FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
LARGE = 1 << 20  # numbers in an embedding table, from which on sparse gradients may be worth it
TURNS = 10  # updates, at most, by which a loss has reached all lazy modules
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Tuner:
    """Applies a tuning on a device."""

    def __init__(self, tuning: Tuning, device: torch.device) -> None:
        self.tuning, self.device = tuning, device

    def data(self, dataset: "Dataset[Any]", *, files: ColumnFiles | None = None) -> "Dataset[Any]":
        """Returns the data set, with samples kept in memory or batches pinned if the tuning says so.

        `files` have the samples of days that were parsed in earlier nights.
        """
        if self.tuning.in_memory:
            dataset = Columns(dataset, files=files)
        return Pinned(dataset) if self.tuning.pinned and self.device.type == "cuda" else dataset

    def model(self, model: nn.Module) -> nn.Module:
        """Returns the model on the device; names and shapes of its tensors stay the same."""
        model = model.to(self.device)
        for table in tables(model) if self.tuning.sparse else ():
            table.sparse = True
            # torch wants a choice made: rows come from its own embeddings, so they need no checks.
            torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
        if self.tuning.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.tuning.recompute:
            recompute(model)
        if self.tuning.compiled:
            model.compile()
        return model

    def optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Returns the optimizer, fused if the tuning says so; call it again after its state was loaded."""
        if self.tuning.fused and fusible(optimizer):
            for group in optimizer.param_groups:
                group |= {"fused": True, "foreach": False}
        return optimizer

    def batch(self, batch: Batch) -> Batch:
        """Returns the batch on the device."""
        if self.device.type == "cpu" and not self.tuning.channels_last:
            return batch  # it is already there
        return to(batch, self.device, images_last=self.tuning.channels_last)

    def loss(
        self, workload: Workload, model: nn.Module, batch: Batch, progress: TrainingProgress | None = None
    ) -> Losses:
        """Returns the loss of each sample, in float32 unless the workload uses higher precision.

        `progress` is for a loss that asks for it.
        """
        method: Callable[..., Losses] = workload.loss
        if progress is not None:
            method = partial(method, progress=progress)
        losses: Losses = self.run(method, model, batch)
        return losses

    def run(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Returns what a method of a workload returns, with products in the precision of the tuning."""
        if self.tuning.precision == "float32":
            return method(*arguments)
        rounded = getattr(torch, self.tuning.precision)
        with torch.autocast(self.device.type, rounded):
            returned = method(*arguments)
        return leaves(returned, lambda leaf: leaf.float() if leaf.dtype == rounded else leaf)


class Columns(Dataset[Any]):
    """Samples of a data set in columns in memory, which first reads fill and later reads gather from.

    For data sets that return a sample identically each time, in tensors of one shape. Where a batch has
    another shape, the columns are released and the data set is read as before. Days that are in `files` are
    taken from there, others are written there once all of their samples have been read.
    """

    def __init__(self, dataset: Any, *, files: ColumnFiles | None = None) -> None:
        self._dataset, self._files = dataset, files
        self._filled = torch.zeros(len(dataset), dtype=torch.bool)
        self.is_full = False  # all samples are in the columns
        self._columns: Any = None
        self._enabled = not hasattr(dataset, "collate")  # by which a sample differs from batch to batch
        self._lock, self._file_lock = threading.Lock(), threading.Lock()
        self._from_files: list[DaySamples] = []

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, sample: int) -> Any:
        return self._dataset[sample]

    def __getitems__(self, samples: Samples) -> Batch:
        wanted = torch.tensor(np.asarray(samples, dtype=np.int64))
        columns = self._columns
        if self.is_full and columns is not None:
            return leaves(columns, lambda column: column.index_select(0, wanted))
        if self._files and not bool(self._filled[wanted].all()):
            self._read_files(self._files, wanted)
        missing = wanted[~self._filled[wanted]].tolist()
        batch = read(self._dataset, missing) if missing and self._enabled else None
        with self._lock:
            if batch is not None and self._enabled:  # another loader may have released the columns meanwhile
                self._fill(missing, batch)
            columns = self._columns
        if columns is None:
            return read(self._dataset, samples)
        return leaves(columns, lambda column: column.index_select(0, wanted))

    def _read_files(self, files: ColumnFiles, wanted: Tensor) -> None:
        """Fills the columns with the days of these samples that are in files."""
        with self._file_lock:
            for day in files.days(wanted[~self._filled[wanted]]):
                values = files.read(day)
                if values is None:
                    continue
                ends = [day.start, day.stop - 1]
                batch = read(self._dataset, ends)
                rows = torch.tensor(ends) - day.start
                if not same_bits(list(tensors(batch)), [value[rows] for value in values]):
                    files.distrust(day)
                    self._forget(self._from_files)
                    return
                with self._lock:
                    if self._enabled:
                        self._fill(list(range(day.start, day.stop)), batch, values=values)
                        self._from_files.append(day)

    def _forget(self, days: list[DaySamples]) -> None:
        """Has the samples of these days read again."""
        with self._lock:
            self.is_full = False
            for day in days:
                self._filled[day.start : day.stop] = False

    def _write_files(self, files: ColumnFiles, rows: Tensor) -> None:
        """Writes the days of these samples that have all been read."""
        for day in files.days(rows):
            if bool(self._filled[day.start : day.stop].all()):
                files.write(day, [column[day.start : day.stop] for column in tensors(self._columns)])

    def _fill(self, samples: list[int], batch: Batch, *, values: list[Tensor] | None = None) -> None:
        """Fills the columns with `values`, by default the batch itself; both have the same structure."""
        # The system allocates pages as they are written, so new columns take no memory yet.
        if self._columns is None:
            size = len(self._dataset)
            self._columns = leaves(batch, lambda leaf: torch.empty(size, *leaf.shape[1:], dtype=leaf.dtype))
        columns, values = list(tensors(self._columns)), values or list(tensors(batch))
        if [(c.shape[1:], c.dtype) for c in columns] != [(v.shape[1:], v.dtype) for v in values]:
            self._enabled, self._columns, self.is_full = False, None, False
            return
        rows = torch.tensor(samples)
        for column, value in zip(columns, values, strict=True):
            column.index_copy_(0, rows, value)  # on one thread: others could wait for a core
        self._filled[rows] = True
        if self._files and self._files.is_trusted:
            self._write_files(self._files, rows)
        self.is_full = bool(self._filled.all())


class Pinned(Dataset[Any]):
    """A data set with batches in page-locked memory, from which the accelerator copies asynchronously."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, sample: int) -> Any:
        return self._dataset[sample]

    def __getitems__(self, samples: Samples) -> Batch:
        return leaves(read(self._dataset, samples), lambda leaf: leaf.pin_memory())


class ShardedOptimizer:
    """An optimizer with state divided among workers: each worker updates a share and sends it to all.

    Stage 1 of ZeRO (Rajbhandari et al. 2020): it divides the memory for the state by the number of workers,
    and costs one broadcast of the weights. torch's optimizers skip parameters without a gradient, and make no
    state for them.
    """

    def __init__(self, optimizer: Optimizer, *, rank: int, world_size: int) -> None:
        self._optimizer, self._rank, self._world_size = optimizer, rank, world_size
        # After the hooks of the team, so that one which clips by the norm has the whole gradient.
        optimizer.register_step_pre_hook(lambda *_: self._drop_others_gradients())
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        load = [0] * world_size
        self._owners = [0] * len(self._parameters)
        for place in sorted(range(len(self._parameters)), key=lambda n: -self._parameters[n].numel()):
            self._owners[place] = load.index(min(load))
            load[self._owners[place]] += self._parameters[place].numel()
        self.drop_others_state()  # some optimizers make their moments at once

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of the optimizer, by which a GradScaler finds the gradients."""
        return self._optimizer.param_groups

    def step(self) -> None:
        """Updates, with all workers together; gradients of others' parameters are dropped."""
        self._optimizer.step()
        for parameter, owner in zip(self._parameters, self._owners, strict=True):
            dist.broadcast(parameter.detach(), src=owner)

    def _drop_others_gradients(self) -> None:
        """Releases the gradients of parameters that others update."""
        for parameter, owner in zip(self._parameters, self._owners, strict=True):
            if owner != self._rank:
                parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the whole state on worker 0, and their share on others; all workers call it together."""
        own = self._optimizer.state_dict()
        parts: list[Any] | None = [None] * self._world_size if self._rank == 0 else None
        dist.gather_object(own["state"], parts)
        whole = {place: state for part in parts or [own["state"]] for place, state in part.items()}
        return {**own, "state": dict(sorted(whole.items()))}

    def drop_others_state(self) -> None:
        """Releases the state that others hold, after a whole state was loaded."""
        for parameter, owner in zip(self._parameters, self._owners, strict=True):
            if owner != self._rank:
                self._optimizer.state.pop(parameter, None)


def read(dataset: Any, samples: Samples) -> Batch:
    """Returns a batch of these samples, read at once if the data set supports that."""
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__(samples)
    return collated(dataset, [dataset[int(sample)] for sample in samples])


def to(batch: Batch, device: torch.device, *, images_last: bool = False) -> Batch:
    """Returns the batch on the device, whatever its structure."""

    def move(leaf: Tensor) -> Tensor:
        if images_last and leaf.dim() == 4:
            return leaf.to(device, non_blocking=True, memory_format=torch.channels_last)
        return leaf.to(device, non_blocking=True)

    return leaves(batch, move)


def halves(batch: Batch, num_samples: int) -> tuple[Batch, ...]:
    """Returns the batch in two halves, as views, or whole if not all of it is tensors of `num_samples`."""
    parts = list(tensors(batch))
    if not parts or any(leaf.dim() == 0 or len(leaf) != num_samples for leaf in parts):
        return (batch,)
    middle = num_samples // 2
    return leaves(batch, lambda leaf: leaf[:middle]), leaves(batch, lambda leaf: leaf[middle:])


def leaves(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """Returns the same batch with each tensor in it changed."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {key: leaves(value, change) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        parts = [leaves(value, change) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def tensors(batch: Batch) -> Iterator[Tensor]:
    """Yields all tensors in a batch, in order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, dict):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors(value)


def same_bits(some: list[Tensor], others: list[Tensor]) -> bool:
    """Returns whether tensors are equal bit for bit, in type and shape too."""
    return len(some) == len(others) and all(
        one.shape == other.shape
        and one.dtype == other.dtype
        and torch.equal(
            one.contiguous().flatten().view(torch.uint8), other.contiguous().flatten().view(torch.uint8)
        )
        for one, other in zip(some, others, strict=True)
    )


def fusible(optimizer: Optimizer) -> bool:
    """Returns whether torch has one kernel for the whole update."""
    return isinstance(optimizer, FUSED) and not any(
        group.get("differentiable") or group.get("capturable") for group in optimizer.param_groups
    )


def tables(model: nn.Module) -> list[nn.Embedding | nn.EmbeddingBag]:
    """Returns the large embedding tables with dense gradients, whose weights nothing else uses."""
    users = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    return [
        module
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        and not module.sparse
        and module.max_norm is None
        and not module.scale_grad_by_freq
        and module.weight.requires_grad
        and module.weight.numel() >= LARGE
        and users[id(module.weight)] == 1
    ]


def same_if_sparse(optimizer: Optimizer) -> bool:
    """Returns whether the optimizer leaves weights without a gradient as they are, and keeps no moments."""
    return all(
        (isinstance(optimizer, torch.optim.SGD) and not group["momentum"] and not group["weight_decay"])
        or (isinstance(optimizer, torch.optim.Adagrad) and not group["weight_decay"])
        for group in optimizer.param_groups
    ) and not any(group.get("fused") or group.get("foreach") for group in optimizer.param_groups)


def rule_of(optimizer: Optimizer) -> Kind | None:
    """Returns the rule by which the rate follows the batch size (learning_rate.py); None without one."""
    kinds: tuple[tuple[Kind, tuple[type[Optimizer], ...]], ...] = (
        ("sgd", (torch.optim.SGD,)),
        ("adam", (torch.optim.Adam,)),  # AdamW is one
        ("adagrad", (torch.optim.Adagrad,)),
    )
    return next((kind for kind, classes in kinds if isinstance(optimizer, classes)), None)


def check_model(model: nn.Module, workload: Workload) -> None:
    """Raises ParamsError for a model that cannot be trained by the loss of its workload."""
    if is_encoded(workload) and normalised(model):
        raise ParamsError(
            f"the model has BatchNorm, by which {type(workload).__name__}.encode depends on the samples of a "
            f"pass; take LayerNorm or GroupNorm, or set whole_batch = True in place of batch_loss (key "
            f"workload)"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ParamsError(
            "no parameter of the model is trained, as all are frozen or there is none; set requires_grad for "
            "those that should learn (key workload)"
        )
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ParamsError(
                f"the model's {name} has no shape after a pass, as the loss does not reach it; leave it out, "
                f"or name the number of inputs in place of a Lazy module (key workload)"
            )


def wants_whole(workload: Workload, model: nn.Module, optimizers: Mapping[str, Optimizer]) -> bool:
    """Returns whether each worker needs the whole model, and all agree at every update."""
    has_extra_state = any(name.endswith(SUFFIX) for name in model.state_dict())
    return len(optimizers) > 1 or thaws(workload) or has_extra_state or is_over_batch(workload)


def wants_one_worker(workload: Workload) -> bool:
    """Returns whether a workload keeps state beside its model, or has a loss over an undivided batch."""
    return keeps_state(workload) or is_undivided(workload)


def check_optimizer(optimizer: Optimizer) -> None:
    """Raises ParamsError for an optimizer that has to compute the loss again by itself."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure and closure.default is inspect.Parameter.empty:
        raise ParamsError(
            f"{type(optimizer).__name__} computes the loss of a batch several times an update, and training "
            f"computes it once; take an optimizer whose step needs no closure, such as AdamW (key workload)"
        )


def schedules_rate(optimizer: Optimizer) -> bool:
    """Returns whether a scheduler of torch is attached to the optimizer, which then has its first rate."""
    return any("initial_lr" in group for group in optimizer.param_groups)


def normalised(model: nn.Module) -> bool:
    """Returns whether the model has BatchNorm, which makes the size of a pass matter."""
    return any(isinstance(module, NORMS) for module in model.modules())


def blocks(model: nn.Module) -> list[nn.Sequential | nn.ModuleList]:
    """Returns the outermost containers of layers to recompute in the backward pass, without BatchNorm."""
    if isinstance(model, nn.Sequential | nn.ModuleList) and len(model) > 1 and not normalised(model):
        return [model]
    return [block for child in model.children() for block in blocks(child)]


def new_model(workload: Workload, state: State, *, rate: float) -> nn.Module:
    """Returns a new model of the workload, without a share `rate` of the spectrum."""
    model = make_model(workload, state)
    return band_limit(model, rate) if rate else model


def give_shapes(model: nn.Module, workload: Workload, batch: Callable[[], Batch]) -> None:
    """Gives the weights of lazy modules their shapes and first values, by losses of a batch in eval mode."""
    modes = [(module, module.training) for module in model.modules()]
    number = 0
    while number < TURNS and _lacks_shapes(model):  # a later turn may reach what the first does not
        progress = TrainingProgress(update=number, done=number / TURNS)
        with torch.no_grad():
            loss_of(workload, progress=progress)(model.eval(), batch())
        number = number + 1 if asks_progress(workload) else TURNS
    for module, is_training in modes:
        module.training = is_training


def _lacks_shapes(model: nn.Module) -> bool:
    held = itertools.chain(model.parameters(), model.buffers())
    return any(isinstance(each, nn.UninitializedParameter | nn.UninitializedBuffer) for each in held)


def new_optimizers(workload: Workload, model: nn.Module) -> dict[str, Optimizer]:
    """Returns the workload's optimizers by name; one alone is named ""."""
    without_compiler()
    method: Any = workload.optimizer
    takes_model = "model" in inspect.signature(method).parameters
    made = method(model) if takes_model else method(model.parameters())
    return dict(made) if isinstance(made, Mapping) else {"": made}


def band_limit(model: nn.Module, rate: float) -> nn.Module:
    """Returns the model with convolutions that leave out a share `rate` of the spectrum; 0: all is back.

    Raises ParamsError where no extension here has such convolutions.
    """
    for limit in hooks.functions("band_limit"):
        limited: nn.Module = limit(model, rate)
        return limited
    raise ParamsError(
        f"the model leaves out {rate:.0%} of the spectrum, and no extension here has such convolutions; "
        f"restore pipeline/daybreak/extensions"
    )


def limitable(model: nn.Module) -> bool:
    """Returns whether the model has convolutions that `band_limit` changes."""
    return any(layers_of(model) for layers_of in hooks.functions("limitable"))


def recompute(model: nn.Module) -> None:
    """Keeps the input of each part of the blocks, not the activations inside it (Chen et al. 2016)."""
    for block in blocks(model):
        if isinstance(block, nn.ModuleList):
            for part in block:
                part.forward = partial(checkpoint, part.forward, use_reentrant=False)
        else:
            parts = list(block)
            segments = ceil(sqrt(len(parts)))
            block.forward = partial(  # type: ignore[method-assign]
                checkpoint_sequential, parts, segments, use_reentrant=False
            )


def keep_activations(model: nn.Module) -> None:
    """Undoes `recompute`."""
    for block in blocks(model):
        for module in block if isinstance(block, nn.ModuleList) else [block]:
            vars(module).pop("forward", None)
