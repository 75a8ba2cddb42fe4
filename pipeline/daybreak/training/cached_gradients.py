"""Computes the gradient of a loss over a batch whose samples are encoded in passes, on any workers.

With encodings e_i = f(x_i; w) and L the sum of the losses over all of them, dL/dw = sum_i (dL/de_i)(de_i/dw).
So each worker encodes its samples without keeping activations, all workers exchange their encodings, each
takes the loss over all of them and its gradient by each encoding, and encodes its samples again, pass by
pass, with that as the gradient of each encoding (GradCache: Gao et al. 2021, arXiv 2101.06983). This is the
gradient of one pass over the batch, for one more forward pass; an update in one pass of one worker has no
use for it. Random numbers of a pass are the same both times.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from daybreak.contract.errors import JobError, ParamsError, is_out_of_memory
from daybreak.training.process_group import WorkerGroup

Encoded = Mapping[str, Tensor]  # by name; "" for a single tensor


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The parts of an update, as a class and a tuning have them."""

    encode: Callable[[int], Any]  # the samples of a pass by its number, which it also seeds by
    batch_loss: Callable[[Any], Tensor]  # of all samples, shape [b]
    # Takes back what encoding changes in buffers and in the class's own state, which it finds the same twice.
    kept: Callable[[], AbstractContextManager[None]]
    weigh: Callable[[Tensor], Tensor]  # the sum of the losses, as a part of the mean


def add_up(stages: Stages, sizes: Sequence[int], group: WorkerGroup) -> Tensor | None:
    """Adds the gradients of passes of these sizes to those of the weights.

    Returns the sum of the losses of this worker's samples; None where another worker lacks memory to encode.
    All workers call it together. Raises the error of a lack of memory to encode here, once others know of it,
    and JobError where memory does not suffice for the loss itself.
    """
    own: Encoded = {}
    lacking: Exception | None = None
    try:
        with torch.no_grad(), stages.kept():
            parts = [_named(stages.encode(number), size) for number, size in enumerate(sizes)]
        own = {name: torch.cat([part[name] for part in parts]) for name in parts[0]} if parts else {}
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        lacking = error
    counts = np.zeros(group.world_size + 1, dtype=np.int64)
    counts[group.rank], counts[-1] = sum(sizes), lacking is not None
    *shares, num_lacking = group.total(counts).tolist()
    if lacking:
        raise lacking
    if num_lacking:
        return None
    start = sum(shares[: group.rank])
    try:
        whole = _gathered(own, shares, group)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise _too_many(sum(shares)) from error
    losses, gradients = _by_encoding(stages, whole)
    for number, size in enumerate(sizes):
        encoded = _named(stages.encode(number), size)
        trained = [name for name in gradients if encoded[name].requires_grad]
        if trained:
            torch.autograd.backward(
                [encoded[name] for name in trained],
                [gradients[name][start : start + size] for name in trained],
            )
        start += size
    end = sum(shares[: group.rank + 1])
    return losses[end - sum(sizes) : end].sum()


def _by_encoding(stages: Stages, encoded: Encoded) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the loss of each sample, and the gradient of their weighed sum by each encoding."""
    leaves = {name: each.requires_grad_(each.is_floating_point()) for name, each in encoded.items()}
    size = len(next(iter(leaves.values())))
    try:
        losses = stages.batch_loss(leaves.get("", leaves))
        if not isinstance(losses, Tensor) or losses.shape != (size,):
            shape = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ParamsError(
                f"batch_loss returns shape {shape} for {size} samples; return one value a sample, shape "
                f"[{size}] (key workload)"
            )
        stages.weigh(losses.sum()).backward()  # type: ignore[no-untyped-call]
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise _too_many(size) from error
    return losses.detach(), {name: each.grad for name, each in leaves.items() if each.grad is not None}


def _too_many(size: int) -> JobError:
    return JobError(
        f"memory does not suffice for batch_loss over {size} encoded samples, which no smaller pass "
        f"changes; lower train.batch_size, or name a machine with more memory in plan.machines"
    )


def _named(encoded: Any, size: int) -> Encoded:
    """Returns what `encode` returned by name; raises ParamsError unless it has an entry for each sample."""
    named = encoded if isinstance(encoded, Mapping) else {"": encoded}
    for name, each in named.items():
        if not isinstance(each, Tensor) or each.dim() == 0 or len(each) != size:
            shape = list(each.shape) if isinstance(each, Tensor) else type(each).__name__
            raise ParamsError(
                f"encode returns {name or 'a tensor'} of shape {shape} for {size} samples; return tensors of "
                f"shape [{size}, ...] (key workload)"
            )
    return named


def _gathered(own: Encoded, shares: Sequence[int], group: WorkerGroup) -> Encoded:
    """Returns the encodings of all workers, in the order of their shares."""
    if len(shares) == 1:
        return own
    if not min(shares):  # one without samples knows neither names nor shapes
        known: list[Any] = [None] * len(shares)
        dist.all_gather_object(known, {name: each[:0].cpu() for name, each in own.items()})
        own = own or {name: each.to(group.device) for name, each in next(filter(None, known)).items()}
    longest, whole = max(shares), {}
    for name, each in own.items():
        padded = torch.cat([each, each.new_zeros(longest - len(each), *each.shape[1:])])
        parts = [torch.empty_like(padded) for _ in shares]
        dist.all_gather(parts, padded)
        whole[name] = torch.cat([part[:share] for part, share in zip(parts, shares, strict=True)])
    return whole
