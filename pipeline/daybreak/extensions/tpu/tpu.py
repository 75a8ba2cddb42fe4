"""Takes updates on the chips of a TPU with torch_xla, which compiles all operations into one program.

Nothing is computed until `torch_xla.sync()`, and each new program is compiled first, which takes seconds to
minutes. So an update is exactly two programs: loss and gradients of all passes, then the optimizer's step.
Batches of one shape run the same two; a workload whose samples differ in size compiles anew for each size, so
pad its samples. Rates and seeds are passed as values, not compiled in.

One process drives all chips of a machine (SPMD): the samples of a pass are divided among them, each has the
whole model, and the compiler adds what sums over chips. A job has one machine: those with topologies of more
are not planned (daybreak/planning/candidates.py). torch_xla belongs to one release of torch, so the image for
TPUs is built with that one (docs/vertex.md). PJRT_DEVICE=CPU with CPU_NUM_DEVICES=4 runs the same programs
without a TPU; this module was tested that way, since no TPU was available.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from daybreak.contract.errors import JobError
from daybreak.contract.workload import Batch
from daybreak.training import gpus
from daybreak.training.accumulation import Accumulated, Accumulation
from daybreak.training.engine import TorchEngine
from daybreak.training.learning_rate import Rule, Scaled
from daybreak.training.sample_order import Indices
from daybreak.training.tuning import tensors
from daybreak.training.updater import Updater


class TpuEngine(TorchEngine):
    """Training on the chips of one machine."""

    takes_all = False

    def __init__(
        self,
        *args: Any,
        micro_batch_size: int,
        on_shrink: Callable[[int], None] = lambda micro_batch_size: None,
        **kwargs: Any,
    ) -> None:
        import torch_xla.distributed.spmd as xs
        import torch_xla.runtime as xr

        if not xr.is_spmd():
            xr.use_spmd()  # before anything is on a chip
        self._num_chips = xr.global_runtime_device_count()
        gpus.check_chips(self._num_chips)
        self._mesh = xs.Mesh(np.arange(self._num_chips), (self._num_chips,), ("samples",))
        super().__init__(
            *args,
            micro_batch_size=micro_batch_size * self._num_chips,
            on_shrink=lambda size: on_shrink(-(-size // self._num_chips)),
            **kwargs,
        )
        if self.world_size > 1:
            raise JobError(
                f"{self.world_size} workers were started on TPUs, and one drives all chips of a machine; set "
                f"train.num_workers to 1"
            )

    def rescale(
        self, *, batch_size: int, base_size: int, rule: Rule, micro_batch_size: int | None = None
    ) -> Scaled:
        """Changes betas and eps of the optimizer by its rule; see the protocol."""
        of_all = micro_batch_size and micro_batch_size * self._num_chips
        return super().rescale(batch_size=batch_size, base_size=base_size, rule=rule, micro_batch_size=of_all)

    def _new_accumulation(self, *args: Any, **parts: Any) -> Accumulation:
        return TpuAccumulation(*args, mesh=self._mesh, num_chips=self._num_chips, **parts)

    def _new_updater(self, optimizers: Mapping[str, Optimizer]) -> Updater:
        return TpuUpdater(optimizers, model=self.model, tuner=self._tuner, group=self.group)


class TpuAccumulation(Accumulation):
    """Passes whose samples are divided among the chips: one program for all passes of an update."""

    def __init__(self, *args: Any, mesh: Any, num_chips: int, **parts: Any) -> None:
        super().__init__(*args, **parts)
        self._mesh, self._num_chips = mesh, num_chips
        self.may_halve = False  # a halved pass would compile one more program

    def add_up(self, indices: Indices, *, batch_size: int, update: int) -> Accumulated:
        """Adds up the gradients, and runs the program before the loss is read.

        Reading it alone would run the forward pass twice.
        """
        accumulated = super().add_up(indices, batch_size=batch_size, update=update)
        _run()
        return accumulated

    def _batch(self, part: Indices) -> Batch:
        """Returns the samples of a pass, divided among the chips; whole on each where that does not go even.

        The compiler of torch_xla 2.9 aborts on uneven parts.
        """
        import torch_xla.distributed.spmd as xs

        batch = super()._batch(part)
        for leaf in tensors(batch):
            if leaf.dim() and len(leaf) == len(part) and len(part) % self._num_chips == 0:
                xs.mark_sharding(leaf, self._mesh, ("samples", *[None] * (leaf.dim() - 1)))
        return batch

    def _seed_generators(self, update: int) -> None:
        import torch_xla

        super()._seed_generators(update)
        torch_xla.manual_seed(torch.default_generator.initial_seed() % (1 << 63))


class TpuUpdater(Updater):
    """Steps of the optimizer, each one program."""

    def step(self, names: Collection[str] | None = None) -> None:
        """Changes the weights."""
        super().step(names)
        _run()


def _run() -> None:
    import torch_xla

    torch_xla.sync()
