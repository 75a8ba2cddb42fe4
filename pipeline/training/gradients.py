"""What do all workers say together? Gradients, loss, signals and times, added up by one all-reduce.

Gradients are views into one flat tensor per type, so nothing is copied. Behind them travel the loss, a few
signals, and a place for each worker's time that others leave at 0: so all know the same, and take the same
decision at the same update. Sparse gradients travel as rows.
"""

from dataclasses import astuple, dataclass, fields

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Signals:
    """What a worker tells all others with an update; they receive the sums. Small integers, 0: nothing."""

    stop: int = 0  # worker was told to end
    save: int = 0  # time for a checkpoint
    end_in: int = 0  # end after so many updates, counting from 1 for the next
    short: int = 0  # memory did not suffice, so the gradients are of no use


SIGNALS = [field.name for field in fields(Signals)]


class Gradients:
    """Gradients of all parameters of a model."""

    def __init__(self, model: nn.Module, *, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        sparse = {
            id(module.weight)
            for module in model.modules()
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
        }
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._sparse = [parameter for parameter in trained if id(parameter) in sparse]
        self._dense = [parameter for parameter in trained if id(parameter) not in sparse]
        if self._sparse:  # torch asks to be told: rows come from its own embeddings, so no checks
            torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
        # Loss, signals and times, behind the gradients of type float32, exact up to 2^24.
        self._slots = 1 + len(SIGNALS) + world_size
        self._flats: list[Tensor] = []
        self._views: list[Tensor] = []
        if world_size > 1:
            self._lay_out(trained[0].device)

    def _lay_out(self, device: torch.device) -> None:
        """One flat tensor per type, the gradients as views into them; that of float32 comes first."""
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
        """Forget the gradients of the last update."""
        if self._world_size > 1:
            for flat in self._flats:
                flat.zero_()
            for parameter, view in zip(self._dense, self._views, strict=True):
                parameter.grad = view  # backward adds into it: no copies
        else:
            for parameter in self._dense:
                parameter.grad = None
        for parameter in self._sparse:
            parameter.grad = None

    def reduce(
        self, losses: list[Tensor], signals: Signals, *, time_s: float = 0.0
    ) -> tuple[float, Signals, tuple[float, ...]]:
        """Add up over workers; the sum of the losses and the signals, of all, and the time of each.

        A worker alone has nobody to compare its time with, and gets none.
        """
        if self._world_size == 1:
            if signals.short:
                return 0.0, signals, ()
            for parameter in self._dense:
                if parameter.grad is None:  # as with more workers, where it is a view of zeros
                    parameter.grad = torch.zeros_like(parameter)
            return (losses[0] if len(losses) == 1 else torch.stack(losses).sum()).item(), signals, ()
        slots = self._flats[0][-self._slots :]
        slots[0] = torch.stack(losses).sum() if losses else 0.0
        times = [0.0] * self._world_size
        times[self._rank] = time_s
        slots[1:] = torch.tensor([*astuple(signals), *times], dtype=slots.dtype)
        for flat in self._flats:
            dist.all_reduce(flat)
        total, *told_all = slots.tolist()
        counts, times = told_all[: len(SIGNALS)], told_all[len(SIGNALS) :]
        told = Signals(**dict(zip(SIGNALS, map(int, counts), strict=True)))
        for parameter in () if told.short else self._sparse:
            parameter.grad = _add_sparse(parameter, self._world_size)
        return total, told, tuple(times)


def _add_sparse(parameter: Tensor, world_size: int) -> Tensor:
    """Sum over workers of a sparse gradient; the number of rows differs, so fewer are padded."""
    if parameter.grad is None:  # an empty share
        rows = torch.empty(0, dtype=torch.int64, device=parameter.device)
        values = parameter.new_empty(0, *parameter.shape[1:])
    else:
        own = parameter.grad.coalesce()
        rows, values = own.indices()[0], own.values()
    counts = [torch.zeros(1, dtype=torch.int64, device=parameter.device) for _ in range(world_size)]
    dist.all_gather(counts, torch.tensor([len(rows)], device=parameter.device))
    longest = max(int(count) for count in counts)
    all_rows = [torch.zeros(longest, dtype=torch.int64, device=parameter.device) for _ in range(world_size)]
    all_values = [values.new_zeros(longest, *values.shape[1:]) for _ in range(world_size)]
    dist.all_gather(all_rows, torch.cat([rows, rows.new_zeros(longest - len(rows))]))
    padding = values.new_zeros(longest - len(values), *values.shape[1:])
    dist.all_gather(all_values, torch.cat([values, padding]))
    gathered = torch.sparse_coo_tensor(
        torch.cat(all_rows)[None], torch.cat(all_values), size=parameter.shape, check_invariants=False
    )
    return gathered.coalesce()
