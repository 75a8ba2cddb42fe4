"""Trains a model whose weights count how often each sample was trained on, by two asynchronous processes.

`python -m tests.training.counted FOLDER` goes on from a checkpoint in FOLDER, and prints what became of it;
it may lose a core after some seconds.
"""

import argparse
import json
import multiprocessing
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from daybreak.contract.record_parts import Tuning
from daybreak.extensions.threads.asynchronous import AsynchronousEngine
from daybreak.extensions.threads.thread_policy import ThreadPolicy, ThreadSetting
from daybreak.training import checkpoint
from daybreak.training.trainer import Trainer
from tests.training.recipes import recipe

NUM_SAMPLES, EPOCHS, BATCH = 100, 4, 8
TWO = {
    name: ThreadSetting(num_workers=2, num_parts=2, is_asynchronous=name == "apart")
    for name in ("apart", "together")
}


class Samples:
    """The samples are their numbers; the first and the second process take so long to read some."""

    def __init__(self, first_s: float = 0.0, second_s: float = 0.0) -> None:
        self.first_s, self.second_s = first_s, second_s

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitems__(self, samples):
        is_second = multiprocessing.current_process().name.endswith("-2")
        time.sleep(self.second_s if is_second else self.first_s)
        return torch.as_tensor(np.asarray(samples))


class Counted:
    """Workload: the gradient of each sample adds one to its weight, by plain SGD."""

    def model(self) -> nn.Module:
        table = nn.Embedding(NUM_SAMPLES, 1)
        nn.init.zeros_(table.weight)
        return table

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters)

    def loss(self, model, batch):
        return -model(batch)[:, 0]


class TwoThenOne:
    """Cores: two, and one after some seconds."""

    limit = 2

    def __init__(self, lost_after_s: float) -> None:
        self.lost_after_s, self.began = lost_after_s, time.monotonic()

    def free(self, *, pids, wants) -> float:
        return 1.0 if time.monotonic() > self.began + self.lost_after_s else 2.0

    def close(self) -> None:
        pass


def main(
    folder: Path, *, way: str, reads_s: float, second_reads_s: float, lost_after_s: float, save_every_s: float
) -> None:
    cores = TwoThenOne(lost_after_s)
    data = Samples(reads_s, max(reads_s, second_reads_s))
    engine = AsynchronousEngine(Counted(), data, seed=1, micro_batch_size=BATCH, tuning=Tuning(), cores=cores)
    engine.queue.policy = ThreadPolicy(batch_size=BATCH, setting=TWO[way], accepted=TWO[way])
    job = recipe(
        num_samples=NUM_SAMPLES * EPOCHS,
        batch_size=BATCH,
        peak=float(BATCH),
        warmup=0.0,
        decay=0.0,
        every_s=save_every_s,
    )

    def told_to_stop() -> bool:
        print(json.dumps({"seen": trainer.seen}), flush=True)
        return False

    trainer = Trainer(
        engine,
        job,
        folder=folder,
        epoch_samples=NUM_SAMPLES,
        told_to_stop=told_to_stop,
        report=lambda progress: None,
        clock=time.monotonic,
    )
    if path := checkpoint.take_over(folder, identity=job.identity):
        trainer.resume(path)
    began = trainer.seen
    trainer.run()
    trainer.save()
    trainer.saver.wait()
    facts = {
        "began": began,
        "counts": engine.weights()["weight"][:, 0].tolist(),
        "epochs": [epoch.num_samples for epoch in trainer.audit.proven()],
        "gave up in": engine.queue.max_give_up_s,
        "workers": engine.queue.setting.num_workers,
    }
    engine.close()
    facts["left"] = [process.pid for process in multiprocessing.active_children()]
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--way", choices=TWO, default="apart")
    parser.add_argument("--reads-s", type=float, default=0.0)
    parser.add_argument("--second-reads-s", type=float, default=0.0)
    parser.add_argument("--lost-after-s", type=float, default=1e9)
    parser.add_argument("--save-every-s", type=float, default=1e9)
    main(**vars(parser.parse_args()))
