"""Takes updates on a TPU with torch_xla, which gathers operations and runs them as one program.

Nothing is computed until `torch_xla.sync()`, and each new program is compiled first, which takes seconds to
minutes. So an update is exactly two programs: loss and gradients of all passes, then the optimizer's step.
Batches of one shape run the same two; a workload whose samples differ in size compiles anew for each size, so
pad its samples. Rates and seeds are passed as values, not compiled in.

A job has one chip: machines with more are not planned (pipeline/planning/candidates.py). torch_xla belongs to
one release of torch, so the image for TPUs is built with that one (docs/vertex.md). PJRT_DEVICE=CPU runs the
same programs without a TPU; this module was tested that way, since no TPU was available.
"""

from typing import Any

import torch
from torch import Tensor

from pipeline.contract.errors import JobError
from pipeline.training.engine import TorchEngine
from pipeline.training.sample_order import Indices


class TpuEngine(TorchEngine):
    """Training on one chip."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.world_size > 1:
            raise JobError(
                f"{self.world_size} workers were started on TPUs, and the trainer uses one chip per job; set "
                f"train.num_workers to 1"
            )
        self._may_halve = False  # a halved pass would compile one more program

    def _accumulate(
        self, indices: Indices, batch_size: int
    ) -> tuple[list[Tensor], tuple[Tensor, int] | None, int]:
        accumulated = super()._accumulate(indices, batch_size)
        _run()  # before the loss is read, as reading it alone would run the forward pass twice
        return accumulated

    def _update(self) -> None:
        super()._update()
        _run()

    def _seed_generators(self) -> None:
        import torch_xla

        super()._seed_generators()
        torch_xla.manual_seed(torch.default_generator.initial_seed() % (1 << 63))


def _run() -> None:
    import torch_xla

    torch_xla.sync()
