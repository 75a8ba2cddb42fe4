"""Adds up gradients, loss, signals and times over all workers, by one all-reduce.

Gradients are views into one flat tensor per type, so nothing is copied. Behind them travel the loss, a few
signals, and a slot for each worker's time that others leave at 0: so all workers know the same, and take the
same decision at the same update. Sparse gradients travel as rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from daybreak.training import noise
from daybreak.training.recipe import Clipping


@dataclass(frozen=True, kw_only=True)
class Signals:
    """Signals of a worker, sent with an update: small integers, 0 for none; all workers get the sums."""

    stop: int = 0  # the worker was told to end
    save: int = 0  # it is time for a checkpoint
    end_in: int = 0  # end after so many updates, counting from 1 for the next
    resize_to: int = 0  # batch size, as soon as possible
    short: int = 0  # memory did not suffice, so the gradients are invalid


ROUNDING = 1e-6  # as in torch's clip_grad_norm_
SIGNALS = [field.name for field in fields(Signals)]


@dataclass(frozen=True, kw_only=True)
class Sums:
    """The sums over all workers."""

    loss: float
    signals: Signals
    times_s: tuple[float, ...] = ()  # of each worker; empty for a single worker
    noise: tuple[float, float] | None = None  # |g|^2 and tr(Sigma) of this update (noise.py), if requested
    names: frozenset[str] | None = None  # of the optimizers that step; None: of all


NUM_NOISE = 3  # sums over workers: |gradient|^2 per sample, 1 / samples, and workers with samples


class Gradients:
    """Gradients of the parameters of a model that optimizers train."""

    def __init__(
        self,
        model: nn.Module,
        *,
        rank: int,
        world_size: int,
        apart: bool = False,
        thaws: bool = False,
        optimizers: Mapping[str, Optimizer],
    ) -> None:
        """Prepares the buffers; with `apart` gradients are added up elsewhere, and only the rest travels.

        With `thaws` parameters that are frozen now may be trained later.
        """
        self._rank, self.world_size = rank, world_size  # of the workers whose gradients are added up
        self._optimizers = tuple(optimizers) if len(optimizers) > 1 else ()
        # Backward reaches parameters without an optimizer, too. Nothing takes the factor of float16 out of
        # their gradients, which would count in every norm.
        owned = {
            id(each) for own in optimizers.values() for group in own.param_groups for each in group["params"]
        }
        self._unowned = [parameter for parameter in model.parameters() if id(parameter) not in owned]
        sparse = {
            id(module.weight)
            for module in model.modules()
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
        }
        parameters = list(model.parameters())
        trained = [each for each in parameters if id(each) in owned and (each.requires_grad or thaws)]
        self._trained = trained
        self._sparse = [parameter for parameter in trained if id(parameter) in sparse]
        self._dense = [parameter for parameter in trained if not apart and id(parameter) not in sparse]
        if self._sparse:  # torch wants a choice made: rows come from its own embeddings, so no checks
            torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
        # Loss, signals, times, optimizers that step, and noise, behind the gradients of type float32, exact
        # up to 2^24.
        self._slots = 1 + len(SIGNALS) + world_size + len(self._optimizers) + NUM_NOISE
        self._flats: list[Tensor] = []
        self._views: list[Tensor] = []
        if world_size > 1:
            self._lay_out(parameters[0].device)

    def _lay_out(self, device: torch.device) -> None:
        """Makes one flat tensor per type, float32 first, with the gradients as views into them."""
        kinds = dict.fromkeys([torch.float32, *(parameter.dtype for parameter in self._dense)])
        ends = dict.fromkeys(kinds, 0)
        for parameter in self._dense:
            ends[parameter.dtype] += parameter.numel()
        ends[torch.float32] += self._slots
        flats = {kind: torch.zeros(end, dtype=kind, device=device) for kind, end in ends.items()}
        starts = dict.fromkeys(kinds, 0)
        for parameter in self._dense:
            start, kind = starts[parameter.dtype], parameter.dtype
            starts[kind] += parameter.numel()
            self._views.append(flats[kind][start : starts[kind]].view_as(parameter))
        self._flats = list(flats.values())

    def clear(self) -> None:
        """Clears the gradients of the last update."""
        for parameter in self._unowned:
            parameter.grad = None
        if self.world_size > 1:
            for flat in self._flats:
                flat.zero_()
            for parameter, view in zip(self._dense, self._views, strict=True):
                # Backward adds into it: no copies. One without a gradient is left as it is by the optimizer.
                parameter.grad = view if parameter.requires_grad else None
        else:
            for parameter in self._dense:
                parameter.grad = None
        for parameter in self._sparse:
            parameter.grad = None

    def square(self) -> Tensor:
        """Returns |gradient|^2 of this worker's sums so far, or of the sums of all workers after `reduce`."""
        return nn.utils.get_total_norm(self._tensors()).square()

    def clip(self, limits: Clipping) -> None:
        """Limits each number of the sums of all workers, then the norm of all; call it after `reduce`.

        As torch's `clip_grad_value_` and `clip_grad_norm_` do, for sparse gradients too.
        """
        tensors = self._tensors()
        if limits.value:
            for tensor in tensors:
                tensor.clamp_(-limits.value, limits.value)
        if limits.norm:
            share = (limits.norm / (self._norm(tensors) + ROUNDING)).clamp(max=1.0)
            for tensor in tensors:
                tensor.mul_(share)

    def _norm(self, tensors: Sequence[Tensor]) -> Tensor:
        """Returns the norm of the gradient of all workers."""
        return nn.utils.get_total_norm(tensors)

    def _tensors(self) -> list[Tensor]:
        """Returns the tensors that hold all gradients, in buffers, by parameter, or as rows of a table."""
        tensors = [flat[: len(flat) - (0 if n else self._slots)] for n, flat in enumerate(self._flats)]
        # A gradient is sparse or dense by the use of its weight, not only by the kind of module.
        for parameter in self._sparse if tensors else (*self._dense, *self._sparse):
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
                tensors.append(parameter.grad.values())
            elif parameter.grad is not None:
                tensors.append(parameter.grad)
        return tensors

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
        """Adds up the gradients over workers; returns the sums of losses and signals, and each worker's time.

        An optimizer steps where a worker names it; None: all do.

        With a `batch_size` and this worker's `num_samples` of it, it estimates the noise too: from the parts
        of the workers, or for a single worker from the `first` of its passes (|gradient|^2 and samples).
        """
        if self.world_size == 1:
            sums = self._alone(losses, signals, batch_size=batch_size, first=first)
            return replace(sums, names=names) if self._optimizers else sums
        square = self.square() / num_samples**2 if batch_size and num_samples else 0.0
        parts = (1 / num_samples, 1.0) if num_samples else (0.0, 0.0)
        sums, noise_sums = self._exchange(
            losses, signals, time_s=time_s, noise_terms=(square, *parts), names=names or frozenset()
        )
        for parameter in () if sums.signals.short else self._sparse:
            if parameter.requires_grad:
                parameter.grad = _add_sparse(parameter, self.world_size)
        squares, inverse, num_parts = noise_sums
        if batch_size and num_parts > 1 and not sums.signals.short:
            small = squares * batch_size**2 / num_parts
            big = self.square().item()
            return replace(sums, noise=finite_noise(small, num_parts / inverse, big, batch_size))
        return sums

    def _exchange(
        self,
        losses: list[Tensor],
        signals: Signals,
        *,
        time_s: float,
        noise_terms: Sequence[Tensor | float],
        names: frozenset[str] = frozenset(),
    ) -> tuple[Sums, list[float]]:
        """Adds up all buffers over workers; returns the sums, and those of the NUM_NOISE `noise_terms`."""
        slots = self._flats[0][-self._slots :]
        slots[0] = torch.stack(losses).sum() if losses else 0.0
        times = [0.0] * self.world_size
        times[self._rank] = time_s
        numbers = [
            *astuple(signals),
            *times,
            *(float(name in names) for name in self._optimizers),
            *(0.0 if isinstance(each, Tensor) else each for each in noise_terms),
        ]
        slots[1:] = torch.tensor(numbers, dtype=slots.dtype)
        for place, each in enumerate(noise_terms, len(slots) - NUM_NOISE):
            if isinstance(each, Tensor):
                slots[place] = each
        for flat in self._flats:
            dist.all_reduce(flat)
        total, *rest = slots.tolist()
        counts, rest = rest[: len(SIGNALS)], rest[len(SIGNALS) :]
        agreed = Signals(**dict(zip(SIGNALS, map(int, counts), strict=True)))
        times, turns = rest[: self.world_size], rest[self.world_size : -NUM_NOISE]
        stepping = frozenset(name for name, num in zip(self._optimizers, turns, strict=True) if num)
        sums = Sums(
            loss=total,
            signals=agreed,
            times_s=tuple(times),
            names=stepping if self._optimizers else None,
        )
        return sums, rest[-NUM_NOISE:]

    def _alone(
        self, losses: list[Tensor], signals: Signals, *, batch_size: int, first: tuple[Tensor, int] | None
    ) -> Sums:
        if signals.short:
            return Sums(loss=0.0, signals=signals)
        for parameter in self._dense:
            # As with more workers, where it is a view of zeros.
            if parameter.grad is None and parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        loss = (losses[0] if len(losses) == 1 else torch.stack(losses).sum()).item()
        estimate = None
        if first and 0 < first[1] < batch_size:
            square = first[0].item() * (batch_size / first[1]) ** 2
            estimate = finite_noise(square, first[1], self.square().item(), batch_size)
        return Sums(loss=loss, signals=signals, noise=estimate)


def finite_noise(
    small_square: float, small_size: float, big_square: float, big_size: int
) -> tuple[float, float] | None:
    """Returns |g|^2 and tr(Sigma) from |mean gradient|^2 of small and big batches; None on overflow."""
    estimate = noise.two_batches(
        small_square=small_square, small_size=small_size, big_square=big_square, big_size=big_size
    )
    return estimate if all(map(math.isfinite, estimate)) else None


def _add_sparse(parameter: Tensor, world_size: int) -> Tensor:
    """Returns the sum over workers of a sparse gradient; shorter lists of rows are padded to travel.

    The sum is dense where that of a worker is, as for a weight that an output layer uses too.
    """
    is_dense = parameter.grad is not None and not parameter.grad.is_sparse
    if parameter.grad is None or is_dense:  # none: an empty share
        rows = torch.empty(0, dtype=torch.int64, device=parameter.device)
        values = parameter.new_empty(0, *parameter.shape[1:])
    else:
        own = parameter.grad.coalesce()
        rows, values = own.indices()[0], own.values()
    counts = [torch.zeros(1, dtype=torch.int64, device=parameter.device) for _ in range(world_size)]
    dist.all_gather(counts, torch.tensor([-1 if is_dense else len(rows)], device=parameter.device))
    lengths = [int(count) for count in counts]
    longest = max(lengths)
    if min(lengths) < 0:
        whole = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
        dist.all_reduce(whole)
        return whole
    all_rows = [torch.zeros(longest, dtype=torch.int64, device=parameter.device) for _ in range(world_size)]
    all_values = [values.new_zeros(longest, *values.shape[1:]) for _ in range(world_size)]
    dist.all_gather(all_rows, torch.cat([rows, rows.new_zeros(longest - len(rows))]))
    padding = values.new_zeros(longest - len(values), *values.shape[1:])
    dist.all_gather(all_values, torch.cat([values, padding]))
    # Without what is padded: an optimizer of sparse gradients would step a row that nobody looked up.
    all_rows, all_values = (
        [each[:length] for each, length in zip(parts, lengths, strict=True)]
        for parts in (all_rows, all_values)
    )
    gathered = torch.sparse_coo_tensor(
        torch.cat(all_rows)[None], torch.cat(all_values), size=parameter.shape, check_invariants=False
    )
    return gathered.coalesce()
