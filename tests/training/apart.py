"""Two workers that agree now and then: `torchrun -m tests.training.apart FOLDER`, or `train` by one alone."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pipeline.contract.records import Tuning
from pipeline.training import checkpoint
from pipeline.training.engine import agreed
from pipeline.training.local_sgd import LocalSgdEngine
from pipeline.training.trainer import Trainer
from tests.fakes import LineWorkload
from tests.training.recipes import recipe

NUM_SAMPLES, EPOCHS, EVERY = 100, 5, 4


def train(folder: Path, *, name: str, updates: float = float("inf"), **changed: Any) -> Trainer:
    """Train from the newest checkpoint, to the end or until told to stop after so many updates."""
    workload = LineWorkload()
    data = workload.dataset(folder, "train")
    made = LocalSgdEngine(workload, data, seed=1, micro_batch_size=5, tuning=Tuning(), sync_every=EVERY)
    job = recipe(num_samples=NUM_SAMPLES * EPOCHS, batch_size=8, rate=0.01, sync_every=EVERY, **changed)
    trainer = Trainer(
        made,
        job,
        folder=folder / name,
        epoch_samples=NUM_SAMPLES,
        told_to_stop=lambda: trainer.num_updates + 1 >= updates,
        report=lambda progress: None,
    )
    newest = checkpoint.newest(trainer.saver.folder, identity=job.identity) if made.rank == 0 else None
    newest = agreed(newest)
    if newest:
        trainer.resume(newest)
    if trainer.run().stopped_by != "terminated":
        trainer.save()
        trainer.saver.wait()
    return trainer


def bits(trainer: Trainer) -> dict[str, torch.Tensor]:
    """All that is learned."""
    state = trainer.engine.save()
    return {
        f"{part} {name}": value.clone()
        for part in state.tensors
        for name, value in state.tensors[part].items()
    }


def main(folder: Path) -> None:
    whole = train(folder, name="whole")
    stopped = [train(folder, name="broken", updates=updates).seen for updates in (6, 21)]
    broken = train(folder, name="broken")
    one, other = bits(whole), bits(broken)
    apart = [value.clone() for value in whole.engine.model.state_dict().values()]  # type: ignore[attr-defined]
    for value in apart:
        dist.broadcast(value, src=0)
    same = zip(apart, whole.engine.model.state_dict().values(), strict=True)  # type: ignore[attr-defined]
    resized = train(folder, name="resized", updates=10)
    seen = {
        "stopped": stopped,
        "bit-equal": one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one),
        "workers agree": all(torch.equal(*pair) for pair in same),
        "moments": sum(name.startswith("outer") for name in one),
        "resized at": resized.seen,
        "epochs": [epoch.num_samples for epoch in whole.audit.proven()] if whole.engine.rank == 0 else [],
    }
    (folder / f"worker-{whole.engine.rank}.json").write_text(json.dumps(seen))
    whole.engine.close()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
