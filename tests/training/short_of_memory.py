"""Updates under a real limit of memory on one worker of two: `-m tests.training.short_of_memory FOLDER`.

Worker 0 may take three quarters of what a pass over its whole share took before; half the share takes half.
Large blocks have to come straight from the system (MALLOC_MMAP_THRESHOLD_): what a heap kept free would fit.
"""

import resource
import sys
from pathlib import Path

import numpy as np
import torch

from daybreak.contract.record_parts import Tuning
from daybreak.machines import this_machine
from daybreak.profiling import memory
from daybreak.training import sample_order
from daybreak.training.engine import TorchEngine
from daybreak.training.gradients import Signals
from tests.fakes import LineWorkload

WIDTH = 1 << 16  # of the hidden layer: activations of a share take 32 MiB each
BATCH = 256


def engine(folder: Path) -> TorchEngine:
    workload = LineWorkload(width=WIDTH, dropout=0.0)
    data = workload.dataset(folder, "train")
    return TorchEngine(
        workload,
        data,
        seed=1,
        micro_batch_size=BATCH,
        tuning=Tuning(),
        on_shrink=lambda size: (folder / "shrunk").write_text(str(size)),
    )


def update(made: TorchEngine, number: int) -> None:
    share = sample_order.share(np.arange(BATCH), rank=made.rank, world_size=made.world_size)
    signals = Signals(stop=made.rank, end_in=0 if made.rank else number)
    step = made.step(share, batch_size=BATCH, rate=0.0, signals=signals)  # so all have the same gradient
    assert step.signals == Signals(stop=made.world_size - 1, end_in=number)


def updates(folder: Path, *, short: bool) -> TorchEngine:
    """Three updates: the first allocates lasting memory, the second measures a pass, the third runs short."""
    made = engine(folder)
    update(made, 0)
    memory._reset_peak()
    update(made, 1)
    if short and made.rank == 0:
        resident, peak = memory._resident()
        _limit(this_machine.status()["VmData"] + (peak - resident) * 3 // 4)
    update(made, 2)
    return made


def _limit(num_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, resource.RLIM_INFINITY))


def gradients(made: TorchEngine) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in made.model.named_parameters() if p.grad is not None}


def main(folder: Path) -> None:
    made = updates(folder, short=True)
    if made.rank == 0:
        _limit(resource.RLIM_INFINITY)
        torch.save(gradients(made), folder / "gradients.pt")
    made.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
