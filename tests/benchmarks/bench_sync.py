"""What is agreeing every 32 updates worth on a slow network, and what does it cost in quality?

Two real workers over gloo train the recommender on the embedded shop, by gradients added up at each update,
and by weights that are averaged every 32 (train.sync: every_h_updates). The network is loopback, which is
faster than any; a link of so many bytes per second is made by a rest before each all-reduce, as long as a
ring would take to send its 2 (R-1)/R of the bytes over it, and a tenth of a millisecond for each message.
Samples, their order and the number of updates are the same. Quality is the difference of the mean held-out
score, held against the gate's margin.
"""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pipeline.examples.shop.recommender import Recommender
from pipeline.training.engine import TorchEngine
from pipeline.training.local_sgd import LocalSgdEngine
from tests.benchmarks import frame
from tests.benchmarks.bench_batch import shop
from tests.benchmarks.eightfold import Trial, train

EVERY = 32
LINKS = {"1 Gbit/s": 125e6, "100 Mbit/s": 12.5e6}
MESSAGE_S = 1e-4
EPOCHS = 1 if frame.QUICK else 3
NUM_WORKERS = 2


def main() -> None:
    """Train both ways over each link, and hold speed and quality against their targets."""
    figures: dict[str, float] = {}
    rows: list[dict[str, object]] = []
    with shop() as arrays:
        for link, rate in LINKS.items():
            each, apart = (_run(arrays, sync_every=every, bytes_per_s=rate) for every in (1, EVERY))
            figures[f"{link}: times as fast"] = each["seconds"] / apart["seconds"]
            figures[f"{link}: score - score at every update"] = apart["score"] - each["score"]
            rows += [
                {"link": link, "agree": name, "seconds": result["seconds"],
                 "of them sending": result["sent_s"], "score": result["score"], "updates": result["updates"]}
                for name, result in (("every update", each), (f"every {EVERY}", apart))
            ]  # fmt: skip
    frame.table(rows)
    targets: dict[str, frame.Target] = {key: (">=", -frame.MARGIN) for key in figures if "score" in key}
    frame.finish("sync", figures, {**targets, "100 Mbit/s: times as fast": (">=", 2)})


def _run(arrays: Path, *, sync_every: int, bytes_per_s: float) -> dict[str, Any]:
    """What worker 0 found."""
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={NUM_WORKERS}"]
    environment = {**os.environ, "PYTHONPATH": str(frame.ROOT), "OMP_NUM_THREADS": "1"}
    arguments = [str(arrays), str(sync_every), str(bytes_per_s)]
    subprocess.run(
        [sys.executable, *command, "-m", "tests.benchmarks.bench_sync", *arguments],
        env=environment, cwd=frame.ROOT, check=True,
    )  # fmt: skip
    result: dict[str, Any] = json.loads((arrays / "found.json").read_text())
    return result


class Link:
    """All-reduce over a link of so many bytes per second, by a ring of R workers."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s, self.slept_s = bytes_per_s, 0.0
        self.over_loopback = dist.all_reduce

    def all_reduce(self, tensor: torch.Tensor, *given: Any, **options: Any) -> Any:
        others = dist.get_world_size() - 1
        sent = 2 * others / (others + 1) * tensor.nbytes
        rest_s = sent / self.bytes_per_s + 2 * others * MESSAGE_S
        time.sleep(rest_s)
        self.slept_s += rest_s
        return self.over_loopback(tensor, *given, **options)


def work(arrays: Path, *, sync_every: int, bytes_per_s: float) -> None:
    """One worker."""
    torch.set_num_threads(1)
    link = Link(bytes_per_s)
    dist.all_reduce = link.all_reduce
    trial = Trial(Recommender(num_candidates=100, num_popular=50), arrays, 64, 2e-3, EPOCHS)
    engine = partial(LocalSgdEngine, sync_every=sync_every) if sync_every > 1 else TorchEngine
    outcome = train(trial, engine=engine, sync_every=sync_every)
    if int(os.environ["RANK"]) == 0:
        result = {
            "score": float(outcome.scores.mean()),
            "seconds": outcome.seconds,
            "updates": outcome.num_updates,
        }
        (arrays / "found.json").write_text(json.dumps({**result, "sent_s": link.slept_s}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(Path(sys.argv[1]), sync_every=int(sys.argv[2]), bytes_per_s=float(sys.argv[3]))
    else:
        main()
