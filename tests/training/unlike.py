"""Updates by workers of unlike speed: `python -m tests.training.unlike FOLDER`, alone or under torchrun.

Worker 1 works an eighth of its time, and rests for the others, sample by sample.
"""

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from daybreak.contract.record_parts import Tuning
from daybreak.training import checkpoint
from daybreak.training.engine import TorchEngine, UpdateResult
from daybreak.training.sample_order import Indices
from daybreak.training.trainer import Trainer
from tests.fakes import LineWorkload
from tests.training.recipes import recipe

NUM_SAMPLES, EPOCHS, BATCH = 100, 16, 32
WORK_S, RESTS = 0.0003, 7  # a sample


@dataclass
class Slow:
    """A data set that takes its time, and counts what was trained on."""

    data: Any
    sample_s: float
    count: Indices = field(default_factory=lambda: np.zeros(NUM_SAMPLES, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, indices: Indices) -> Any:
        time.sleep(self.sample_s * len(indices))
        np.add.at(self.count, indices, 1)
        return self.data.__getitems__(indices)


class Recorded(TorchEngine):
    """Keeps the size of this worker's share of each update."""

    def step(self, indices: Indices, **options: Any) -> UpdateResult:
        self.taken = [*getattr(self, "taken", []), len(indices)]
        return super().step(indices, **options)


def train(folder: Path, *, updates: float = float("inf")) -> tuple[Recorded, Slow]:
    """Train from the newest checkpoint in `folder`, to the end or for so many updates."""
    workload = LineWorkload(dropout=0.0)
    data = Slow(workload.dataset(folder, "train"), sample_s=0.0)
    made = Recorded(workload, data, seed=1, micro_batch_size=BATCH, tuning=Tuning())  # type: ignore[arg-type]
    if made.world_size > 1:
        data.sample_s = WORK_S * (1 + RESTS * made.rank)
    job = recipe(num_samples=NUM_SAMPLES * EPOCHS, batch_size=BATCH, peak=0.01, batching="by_speed")
    trainer = Trainer(
        made,
        job,
        folder=folder / "checkpoints",
        epoch_samples=NUM_SAMPLES,
        told_to_stop=lambda: len(getattr(made, "taken", [])) + 1 >= updates,
        report=lambda progress: None,
    )
    newest = checkpoint.newest(trainer.saver.folder, identity=job.identity)
    if newest:
        trainer.resume(newest)
    trainer.run()
    return made, data


def main(folder: Path) -> None:
    made, data = train(folder, updates=40)
    seen = {"taken": made.taken, "count": data.count.tolist()}
    (folder / f"worker-{made.rank}.json").write_text(json.dumps(seen))
    made.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
