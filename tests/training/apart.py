"""Two workers that agree now and then: `torchrun -m tests.training.apart FOLDER MODE...`, or one, by `train`.

FOLDER has a folder of arrays for each mode, in which is left what came of it.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from daybreak.contract.record_parts import Sync, Tuning
from daybreak.extensions.averaging.local_sgd import LocalSgdEngine
from daybreak.training import checkpoint
from daybreak.training.engine import TorchEngine
from daybreak.training.process_group import agreed
from daybreak.training.trainer import Trainer
from tests.fakes import LineWorkload
from tests.training.recipes import recipe

NUM_SAMPLES, EPOCHS, EVERY = 100, 5, 4
MODES = ("barrier", "late", "refused")  # the last is timed, so that it wants processes of its own


def train(
    folder: Path, *, name: str, updates: float = float("inf"), mode: str = "barrier", **changed: Any
) -> Trainer:
    """Train from the newest checkpoint, to the end or until told to stop after so many updates."""
    workload = LineWorkload()
    data = workload.dataset(folder, "train")
    engine: Callable[..., TorchEngine] = TorchEngine
    if mode != "together":
        engine = partial(
            LocalSgdEngine,
            sync_every=EVERY,
            is_late=mode == "late",
            try_after=EVERY if mode == "refused" else None,
        )
    made = engine(workload, data, seed=1, micro_batch_size=5, tuning=Tuning())

    def told_to_stop() -> bool:
        if mode == "refused" and made.sync.every > 1:
            time.sleep(0.05)  # so that averages are slower, on a busy machine too
        return trainer.num_updates + 1 >= updates

    job = recipe(num_samples=NUM_SAMPLES * EPOCHS, batch_size=8, peak=0.01, sync=Sync(every=EVERY), **changed)
    trainer = Trainer(
        made,
        job,
        folder=folder / name,
        epoch_samples=NUM_SAMPLES,
        told_to_stop=told_to_stop,
        report=lambda progress: None,
    )
    newest = checkpoint.newest(trainer.saver.folder, identity=job.identity) if made.rank == 0 else None
    newest = agreed(newest)
    if newest:
        trainer.resume(newest)
    if trainer.run().stopped_by != "terminated":
        made.finish()
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


def main(folder: Path, mode: str) -> Trainer:
    whole = train(folder, name="whole", mode=mode)
    # After the trial of 8 intervals, if there is one: before, it would begin anew.
    stopped = [
        train(folder, name="broken", mode=mode, updates=updates).seen
        for updates in ((41, 50) if mode == "refused" else (6, 21))
    ]
    broken = train(folder, name="broken", mode=mode)
    one, others = bits(whole), [bits(broken)]
    if mode == "refused":  # what sums at every update give from the beginning
        others.append(bits(train(folder, name="plain", mode="together")))
    apart = [value.clone() for value in whole.engine.model.state_dict().values()]  # type: ignore[attr-defined]
    for value in apart:
        dist.broadcast(value, src=0)
    same = zip(apart, whole.engine.model.state_dict().values(), strict=True)  # type: ignore[attr-defined]
    resized = train(folder, name="resized", mode=mode, updates=10)
    seen = {
        "stopped": stopped,
        "bit-equal": all(
            one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
            for other in others
        ),
        "workers agree": all(torch.equal(*pair) for pair in same),
        "moments": sum(name.startswith("outer") for name in one),
        "resized at": resized.seen,
        "sync": [whole.engine.sync.every, broken.engine.sync.every],  # type: ignore[attr-defined]
        "epochs": [epoch.num_samples for epoch in whole.audit.proven()] if whole.engine.rank == 0 else [],
    }
    (folder / f"worker-{whole.engine.rank}.json").write_text(json.dumps(seen))
    return whole


if __name__ == "__main__":
    for each in sys.argv[2:]:
        trained = main(Path(sys.argv[1]) / each, each)
    trained.engine.close()  # type: ignore[attr-defined]
