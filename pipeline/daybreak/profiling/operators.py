"""Measures the work and the time of each operator of a step.

FLOPs come from torch's own formulas (`torch.utils.flop_counter`), plus formulas for attention and recurrent
layers on a CPU, which torch lacks. Bytes are those that must come from memory: recently used tensors are in
the last-level cache, modelled as a least-recently-used list of storages of that size. Rows looked up in a
table larger than the cache are counted separately, each distinct row once, since random rows come far slower
than a stream.
"""

import resource
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from daybreak.machines import this_machine
from daybreak.profiling.bounds import Operator

# Operators that touch only the requested rows of the table that they are given.
ROWS = {
    "embedding",
    "index",
    "index_select",
    "gather",
    "_embedding_bag",
    "index_put_",
    "_index_put_impl_",
    "index_add_",
    "index_copy_",
    "scatter_add_",
}
NEW = {"embedding_dense_backward", "_embedding_bag_backward"}  # these first fill a new table
ROWS |= NEW
READ = {"embedding", "index", "index_select", "gather", "_embedding_bag"}  # of these, the ones that only read
IN_PLACE = object()
PAGE_BYTES = resource.getpagesize()
LINE_BYTES = 64  # the least that comes from memory


def _rnn_flops(args: Any) -> int:
    """Returns the FLOPs of multiplying input and state by their weights; args: input, w_ih, w_hh."""
    inputs, weights = args[0], args[1:3]
    return int(2 * prod(inputs.shape[:-1]) * sum(prod(weight.shape) for weight in weights))


MISSED: dict[str, Callable[[Any], int]] = {
    "_scaled_dot_product_flash_attention_for_cpu": lambda args: int(
        sdpa_flop_count(*(t.shape for t in args[:3]))  # type: ignore[no-untyped-call]
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward": lambda args: int(
        sdpa_backward_flop_count(*(t.shape for t in args[:4]))  # type: ignore[no-untyped-call]
    ),
    "mkldnn_rnn_layer": _rnn_flops,
    "mkldnn_rnn_layer_backward": lambda args: 2 * _rnn_flops(args),
}


class OperatorLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every operator that runs inside, in order; `now` returns seconds once the device is done."""

    def __init__(self, now: Callable[[], float], *, cache_bytes: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[Operator] = []
        self._now = now
        self._cache = _Cache(this_machine.last_cache_bytes() if cache_bytes is None else cache_bytes)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        faults, begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, self._now()
        result = func(*args, **kwargs)
        seconds = self._now() - begin
        if not getattr(func, "is_view", False):
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
            operator = self._operator(func, args, kwargs, result)
            self.operators.append(replace(operator, seconds=seconds, new_bytes=float(faults * PAGE_BYTES)))
        return result

    def _operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Operator:
        name = _name(func)
        given, made = list(_tensors((args, tuple(kwargs.values())))), list(_tensors(result))
        table, rows = _lookup(name, args, given, made)
        num_rows, row_bytes = 0, 0
        if table is not None and _num_bytes(table) > self._cache.num_bytes:
            alone = name.startswith(("gather", "scatter"))  # these pick single numbers
            num_rows = rows.numel() if alone else len(torch.unique(rows))
            row_bytes = max(LINE_BYTES, _num_bytes(table) // (table.numel() if alone else len(table)))
            given = [tensor for tensor in given if tensor is not table]
            made = [tensor for tensor in made if tensor is not table or name in NEW]
        num_bytes = sum(self._cache.misses(tensor) for tensor in (*given, *made))
        return Operator(
            name=name,
            seconds=0.0,
            flops=_flops(func, name, args, kwargs, result),
            num_bytes=num_bytes,
            num_rows=num_rows,
            row_bytes=row_bytes,
            scatters=num_rows > 0 and name not in READ,
        )


class _Cache:
    """The storages in the last-level cache, which evicts the least recently used one first."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._held: OrderedDict[int, int] = OrderedDict()
        self._total = 0

    def misses(self, tensor: Tensor) -> int:
        """Returns the bytes of the tensor that are not in the cache, and adds them to it."""
        needed, key = _num_bytes(tensor), tensor.untyped_storage().data_ptr()
        held = self._held.pop(key, 0)
        self._total -= held
        if needed > self.num_bytes:  # it passes through and evicts everything else
            self._held.clear()
            self._total = 0
            return needed
        self._held[key] = max(needed, held)
        self._total += max(needed, held)
        while self._total > self.num_bytes:
            self._total -= self._held.popitem(last=False)[1]
        return max(0, needed - held)


def _flops(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    packet = getattr(func, "overloadpacket", func)
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=result))
    return MISSED[name](args) if name in MISSED else 0


def _lookup(
    name: str, args: tuple[Any, ...], given: list[Tensor], made: list[Tensor]
) -> tuple[Tensor | None, Tensor]:
    """Returns the table that an operator reads rows of or adds rows to, or None, and the row numbers."""
    sparse = [t for t in args if isinstance(t, Tensor) and t.layout is torch.sparse_coo]
    rows = [t for t in given if t.dtype in (torch.int64, torch.int32)]
    if sparse:
        rows = [sparse[0]._indices()[0]]
    elif name not in ROWS:
        rows = []
    tables = [t for t in (*given, *made) if t.is_floating_point() and t.dim()]
    if not rows or not tables:
        return None, torch.empty(0)
    return max(tables, key=_num_bytes), rows[0]


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        if values.layout is torch.sparse_coo:
            yield from (values._indices(), values._values())
        elif values.layout is torch.strided:
            yield own(values)
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _tensors(value)


def own(tensor: Tensor) -> Tensor:
    """Returns this worker's share of a tensor that may be divided among workers."""
    share: Tensor = getattr(tensor, "_local_tensor", tensor)
    return share


def _num_bytes(tensor: Tensor) -> int:
    return int(prod(tensor.shape)) * tensor.element_size()


class OtherStep(Exception):
    """A step took other operators than before."""


class Replay(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Repeats the same step, skipping the operators at the places in `skipped`.

    The first time all operators run, and the results of those to be skipped are kept; from then on these
    return the kept results, and change nothing in place. Raises OtherStep where the step takes other
    operators.
    """

    def __init__(self, names: Sequence[str], skipped: Set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names, self._skipped = names, skipped
        self._made: dict[int, Any] = {}
        self._place = 0

    def rewind(self) -> None:
        """Expects the first operator of the step next."""
        self._place = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "is_view", False):
            return func(*args, **(kwargs or {}))
        place, self._place = self._place, self._place + 1
        if place >= len(self._names) or self._names[place] != _name(func):
            raise OtherStep(f"operator {place} of the step differs from the one before")
        if place in self._made:
            made = self._made[place]
            return args[0] if made is IN_PLACE else tree_map(_alias, made)
        result = func(*args, **(kwargs or {}))
        if place in self._skipped and all(isinstance(t, Tensor | None) for t in tree_leaves(result)):
            if args and result is args[0]:
                self._made[place] = IN_PLACE
            else:  # a second reference to a gradient would make autograd copy it, one more operator
                self._made[place] = result
                return tree_map(_alias, result)
        return result


def _alias(value: Any) -> Any:
    # Autograd annotates the tensors it is given.
    return value.detach() if isinstance(value, Tensor) else value


def _name(func: Any) -> str:
    return str(getattr(getattr(func, "overloadpacket", func), "__name__", func))
