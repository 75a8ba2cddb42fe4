"""Measures other ways to agree on a slow network: speed, forecast and loss of quality.

Two real workers over gloo train the recommender on the embedded shop: by gradients added up at each update,
by weights that are averaged every 32 (train.sync: every_h_updates), likewise without a barrier, and as the
plan chooses and training verifies (auto). The network is loopback, faster than any; a link of so many
bytes per second is made by a rest before each all-reduce, as long as a ring would take to send its 2 (R-1)/R
of the bytes over it, and a tenth of a millisecond for each message. One that is sent beside updates rests in
a thread. Samples, their order and the number of updates are the same.

Quality is the difference of the mean held-out score, held against the gate's margin. Times of an update are
held against the plan's forecast (prediction/update_time.py): it knows an update without any link, the bytes
of the model, and one night on that link with sums at every update, and predicts the other ways.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import frame
from benchmarks.bench_batch import shop
from benchmarks.eightfold import Trial, train
from daybreak.contract.record_parts import EVERY_UPDATE, Sync
from daybreak.examples.shop.recommender import Recommender
from daybreak.extensions.averaging.local_sgd import LocalSgdEngine
from daybreak.machines import catalog
from daybreak.machines.startup import Z90
from daybreak.prediction import local_updates
from daybreak.prediction.calibration import CostCalibration, PastUpdateTime
from daybreak.prediction.update_time import TimedUpdate, by_profile, updates
from daybreak.training.engine import TorchEngine
from daybreak.training.tuning import new_model
from tests.planning import jobs

EVERY = 32
LINKS = {"1 Gbit/s": 125e6, "100 Mbit/s": 12.5e6}
MESSAGE_S = 1e-4
EPOCHS = 1 if frame.QUICK else 3
NUM_WORKERS = 2
BATCH_SIZE = 64
WARMUP = 0.05  # share of the updates, as in eightfold.py
WAYS = {
    f"every {EVERY}": Sync(every=EVERY),
    f"every {EVERY}, no barrier": Sync(every=EVERY, is_late=True),
}


def main() -> None:
    """Train each way over each link; hold speed, forecast and quality against their targets."""
    figures: dict[str, float] = {}
    rows: list[Mapping[str, object]] = []
    with shop() as arrays:
        bare = _run(arrays, EVERY_UPDATE, bytes_per_s=float("inf"))
        for link, rate in LINKS.items():
            each = _run(arrays, EVERY_UPDATE, bytes_per_s=rate)
            forecast = Forecast(bare, each, bytes_per_s=rate)
            chosen = forecast.chosen(each)
            ways = {"every update": EVERY_UPDATE, **WAYS, "auto": chosen}
            for name, sync in ways.items():
                run = each
                if name != "every update":
                    run = _run(arrays, sync, bytes_per_s=rate, is_tried=name == "auto")
                    figures[f"{link}, {name}: times as fast"] = each["seconds"] / run["seconds"]
                    figures[f"{link}, {name}: score - score at every update"] = run["score"] - each["score"]
                update_s = run["seconds"] / run["updates"]
                predicted = forecast.update(sync)
                low, high = _interval(predicted)
                if name in WAYS:
                    figures[f"{link}, {name}: measured / predicted time"] = update_s / predicted.seconds
                    figures[f"{link}, {name}: within the 90 % interval"] = float(low <= update_s <= high)
                rows.append(
                    {
                        "link": link,
                        "agree": name,
                        "as": str(sync),
                        "at last": run["sync"],
                        "seconds": run["seconds"],
                        "of them waiting": run["waited_s"],
                        "ms an update": 1e3 * update_s,
                        "predicted": 1e3 * predicted.seconds,
                        "90 %": f"{1e3 * low:.3g} to {1e3 * high:.3g}",
                        "score": run["score"],
                    }
                )
    frame.table(rows)
    targets: dict[str, frame.Target] = {key: (">=", -frame.MARGIN) for key in figures if "score" in key}
    targets |= {key: ("==", 1) for key in figures if "interval" in key}
    targets |= {f"100 Mbit/s, {name}: times as fast": (">=", 2) for name in WAYS}
    frame.finish("sync", figures, {**targets, "100 Mbit/s, auto: times as fast": (">=", 1)})


class Forecast:
    """Times of an update by the model of the plan, after one night with sums at every update."""

    def __init__(self, bare: dict[str, Any], night: dict[str, Any], *, bytes_per_s: float) -> None:
        bare_s = bare["seconds"] / bare["updates"]
        self._profile = replace(
            jobs.profile(),
            load_s=jobs.line(0.0, 0.0),
            step_s=jobs.line(bare_s, 0.0),
            sync_bytes=jobs.line(bare["num_bytes"], 0.0),
        )
        here = catalog.local(self._profile, today=date(2026, 3, 4))
        self._machine = jobs.with_speeds(here, network_bytes_per_s=bytes_per_s)
        self._known = CostCalibration()
        plain = self.update(EVERY_UPDATE)
        past = PastUpdateTime(
            machine=self._machine.name,
            device=self._machine.device,
            measured_here=True,
            setting=plain.setting,
            update=by_profile(self._profile, self._machine, measured=self._machine),
            ratio=night["seconds"] / night["updates"] / plain.seconds,
        )
        self._known = CostCalibration.of([past])

    def update(self, sync: Sync) -> TimedUpdate:
        """The time of an update with workers that agree so."""
        return self._updates(sync).of(0)

    def _updates(self, sync: Sync) -> Any:
        return updates(
            self._profile,
            self._machine,
            measured=self._machine,
            counts=(NUM_WORKERS,),
            num_workers=1,
            batch_sizes=(BATCH_SIZE,),
            syncs=(sync,),
            known=self._known,
        )

    def chosen(self, night: dict[str, Any]) -> Sync:
        """What the plan would choose, by the noise of that night."""
        choices = local_updates.worthwhile(
            self._updates(EVERY_UPDATE),
            batch_size=BATCH_SIZE,
            num_samples=BATCH_SIZE * night["updates"],
            noise_scale=night["noise_scale"],
        )
        return choices[0][1] if choices else EVERY_UPDATE


def _interval(timed: TimedUpdate) -> tuple[float, float]:
    """90 %, of the seconds of an update."""
    late = [
        sum(part.seconds * torch.tensor(z * part.spread).exp().item() for part in timed.parts)
        for z in (-Z90, Z90)
    ]
    return late[0], late[1]


def _run(arrays: Path, sync: Sync, *, bytes_per_s: float, is_tried: bool = False) -> dict[str, Any]:
    """What worker 0 found."""
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={NUM_WORKERS}"]
    environment = {**os.environ, "PYTHONPATH": str(frame.ROOT), "OMP_NUM_THREADS": "1"}
    words = [str(arrays), str(sync.every), str(int(sync.is_late)), str(int(is_tried)), str(bytes_per_s)]
    subprocess.run(
        [sys.executable, *command, "-m", "benchmarks.bench_sync", *words],
        env=environment,
        cwd=frame.ROOT,
        check=True,
    )
    result: dict[str, Any] = json.loads((arrays / "found.json").read_text())
    return result


class Link:
    """All-reduce over a link of so many bytes per second, by a ring of R workers."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s, self.waited_s = bytes_per_s, 0.0
        self.over_loopback = dist.all_reduce
        self.beside = ThreadPoolExecutor(1)  # one link: messages are sent one after the other

    def all_reduce(self, tensor: torch.Tensor, *, async_op: bool = False) -> "Sending | None":
        """Sends a tensor, and waits for it unless that is to be done beside other work."""
        sending = Sending(self, self.beside.submit(self._send, tensor))
        if async_op:
            return sending
        sending.wait()
        return None

    def _send(self, tensor: torch.Tensor) -> None:
        others = dist.get_world_size() - 1
        sent = 2 * others / (others + 1) * tensor.nbytes
        time.sleep(sent / self.bytes_per_s + 2 * others * MESSAGE_S)
        self.over_loopback(tensor)


class Sending:
    """A message on its way."""

    def __init__(self, link: Link, future: "Future[None]") -> None:
        self._link, self._future = link, future

    def wait(self) -> None:
        """Wait until all workers have it."""
        began = time.perf_counter()
        self._future.result()
        self._link.waited_s += time.perf_counter() - began


def work(arrays: Path, sync: Sync, *, is_tried: bool, bytes_per_s: float) -> None:
    """One worker."""
    torch.set_num_threads(1)
    link = Link(bytes_per_s)
    if bytes_per_s < float("inf"):
        dist.all_reduce = link.all_reduce
    trial = Trial(Recommender(num_candidates=100, num_popular=50), arrays, BATCH_SIZE, 2e-3, EPOCHS)
    engine: Any = TorchEngine
    if sync.every > 1:
        num_updates = EPOCHS * len(trial.workload.dataset(arrays, "train")) // BATCH_SIZE
        engine = partial(
            LocalSgdEngine,
            sync_every=sync.every,
            is_late=sync.is_late,
            try_after=int(WARMUP * num_updates) if is_tried else None,
        )
    run = train(trial, engine=engine, sync=sync)
    if int(os.environ["RANK"]) == 0:
        data = trial.workload.dataset(arrays, "train")
        parameters = new_model(trial.workload, getattr(data, "state", {}), rate=0.0).parameters()
        result = {
            "score": float(run.scores.mean()),
            "seconds": run.seconds,
            "updates": run.num_updates,
            "waited_s": link.waited_s,
            "noise_scale": run.noise_scale,
            "sync": str(run.sync),
            "num_bytes": sum(each.nbytes for each in parameters if each.requires_grad),
        }
        (arrays / "found.json").write_text(json.dumps(result))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        every, is_late, is_tried = map(int, sys.argv[2:5])
        work(
            Path(sys.argv[1]),
            Sync(every=every, is_late=bool(is_late)),
            is_tried=bool(is_tried),
            bytes_per_s=float(sys.argv[5]),
        )
    else:
        main()
