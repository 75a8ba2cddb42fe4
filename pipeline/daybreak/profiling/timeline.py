"""Records when loads and steps run, over some updates taken as training takes them.

The data set is wrapped to record when each batch was read, the workload to record when the step on it began.
The same updates run once before, so that models are compiled and samples kept in memory are loaded.
"""

import time
from collections.abc import Iterable
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import torch

from daybreak.contract.record_parts import Tuning
from daybreak.contract.sections import TrainParams
from daybreak.contract.workload import Batch, TrainingProgress, Workload, loss_of
from daybreak.profiling.ab_timing import NOTHING, Variant, as_in_training
from daybreak.training.engine import TorchEngine

UPDATES = (3, 10)  # at least and at most
LIMIT_S = 2.0  # for as many updates as fit

Row = list[float]


def timelines(
    workload: Workload,
    dataset: Any,
    training: TrainParams,
    *,
    first: Tuning,
    tuning: Tuning,
    most_samples: int,
    update_s: float,
) -> dict[str, list[Row]]:
    """Returns the timeline before any remedy, and after those that were kept, if any.

    `first` is the tuning before, `tuning` the one after; `most_samples` fit in a pass; `update_s` is a rough
    time of an update.
    """
    size = min(training.batch_size, len(dataset))
    before = Variant(tuning=first, batch_size=size, micro_batch_size=min(size, most_samples))
    variants = {"before": before}
    if tuning != before.tuning:
        variants["after"] = replace(before, tuning=tuning)
    return {
        name: timeline(workload, dataset, training, variant, update_s=update_s)
        for name, variant in variants.items()
    }


def timeline(
    workload: Workload, dataset: Any, training: TrainParams, variant: Variant, *, update_s: float
) -> list[Row]:
    """Returns a row per update: load_start, load_end, step_start, step_end, in seconds from the first.

    `update_s` is a rough time of an update. A batch that is in memory takes no time to load.
    """
    size = min(variant.batch_size, len(dataset))
    count = min(max(UPDATES[0], ceil(LIMIT_S / max(update_s, 1e-6))), UPDATES[1])
    count = min(count, len(dataset) // size)
    order = np.random.default_rng(training.seed).permutation(len(dataset))
    shares = [order[number * size : (number + 1) * size] for number in range(count)]
    watch = _Watch(shares)
    with as_in_training():
        engine = TorchEngine(
            _WatchedWorkload(workload, watch),
            _WatchedDataset(dataset, watch),  # type: ignore[arg-type]
            seed=training.seed,
            micro_batch_size=variant.micro_batch_size,
            tuning=variant.tuning,
        )
        try:
            for _ in range(2):
                watch.begin()
                for share in shares[: variant.ahead]:
                    engine.prepare(share)
                for number, share in enumerate(shares):
                    for later in shares[number + variant.ahead : number + variant.ahead + 1]:
                        engine.prepare(later)
                    watch.number = number
                    engine.step(share, batch_size=size, rate=training.rate, signals=NOTHING)
                    watch.stepped()
        finally:
            engine.close()
    return watch.rows()


class _Watch:
    """The recorded times of updates, from all threads and processes."""

    def __init__(self, shares: list[Any]) -> None:
        self._update_of = {sample: number for number, share in enumerate(shares) for sample in share.tolist()}
        times: Any = torch.zeros(len(shares), 2, dtype=torch.float64)  # first start, last end
        self._loads = times.share_memory_()
        self.begin()

    def begin(self) -> None:
        """Discards the recorded times."""
        self.number = 0  # of the current update
        self._loads[:, 0], self._loads[:, 1] = float("inf"), 0.0
        self._starts: list[float] = []
        self._ends: list[float] = []

    def loaded(self, samples: Iterable[int], start: float) -> None:
        number = self._update_of.get(int(next(iter(samples))))
        if number is None:  # a sample of no update, which a lazy module gets its shape from
            return
        times = self._loads[number]
        times[0], times[1] = min(float(times[0]), start), time.perf_counter()

    def stepping(self) -> None:
        if len(self._starts) == self.number:  # otherwise a later pass of the same update
            self._starts.append(time.perf_counter())

    def stepped(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._ends.append(time.perf_counter())

    def rows(self) -> list[Row]:
        """Returns the rows, in seconds from the first start."""
        steps = zip(self._loads.tolist(), self._starts, self._ends, strict=True)
        rows = [[*(load if load[1] else (start, start)), start, end] for load, start, end in steps]
        first = min(min(row) for row in rows)
        return [[round(value - first, 6) for value in row] for row in rows]


class _WatchedDataset:
    """The data set, which records each batch that is read."""

    def __init__(self, dataset: Any, watch: _Watch) -> None:
        self._dataset, self._watch = dataset, watch
        self.state = getattr(dataset, "state", {})  # which the model is made from
        if hasattr(dataset, "__getitems__"):
            self.__getitems__ = self._whole

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, sample: int) -> Any:
        start = time.perf_counter()
        value = self._dataset[sample]
        self._watch.loaded([sample], start)
        return value

    def _whole(self, samples: Any) -> Batch:
        start = time.perf_counter()
        batch = self._dataset.__getitems__(samples)
        self._watch.loaded(samples, start)
        return batch


class _WatchedWorkload:
    """The workload, which records when each step begins."""

    def __init__(self, workload: Workload, watch: _Watch) -> None:
        self._workload, self._watch = workload, watch
        self._loss = loss_of(workload, progress=TrainingProgress())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def loss(self, model: Any, batch: Batch) -> Any:
        """Returns the workload's loss of each sample, and records that the step began."""
        self._watch.stepping()
        return self._loss(model, batch)
