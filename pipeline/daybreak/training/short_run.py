"""Trains for a trial in this process: the engines and the schedule of a night, without job or checkpoint.

It is compared with other such runs and then thrown away, so that nothing of it is kept, shown or resumed.
"""

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from daybreak.contract.errors import NotFinite
from daybreak.contract.record_parts import Tuning
from daybreak.contract.workload import TrainingProgress, is_over_batch, own_schedule
from daybreak.training.batch_schedule import BatchSchedule
from daybreak.training.engine import TorchEngine
from daybreak.training.estimator_engine import EstimatorEngine
from daybreak.training.gradients import Signals
from daybreak.training.learning_rate import rate_at
from daybreak.training.recipe import Clipping
from daybreak.training.sampling import SampleOrder, Sampling
from daybreak.training.worker_keys import clipping_of

if TYPE_CHECKING:
    from daybreak.contract.sections import TrainParams
    from daybreak.training.sample_order import Indices

NUM_TIMED = 5  # updates, by which the time of others is known
NOTHING = Signals()


class ShortRun:
    """One run from new weights over some samples of a data set, by `train.epochs` and the rate of `train`."""

    def __init__(self, workload: Any, dataset: Any, train: "TrainParams", *, samples: "Indices") -> None:
        self._train, self._samples, self.seen = train, samples, 0
        self.num_samples = round(train.epochs * len(samples))
        self.engine: TorchEngine | EstimatorEngine
        if hasattr(workload, "estimator"):  # a tree of all samples is an update
            self._batch_size = len(samples)
            self.engine = EstimatorEngine(workload, dataset, seed=train.seed)
        else:
            self._batch_size = train.batch_size
            asked = Clipping(norm=train.clip_norm or 0.0, value=train.clip_value or 0.0)
            self.engine = TorchEngine(
                workload,
                dataset,
                seed=train.seed,
                micro_batch_size=train.batch_size,
                tuning=Tuning(in_memory=True, fused=True),
                clipping=clipping_of(workload, asked, threads="fixed"),
            )
        least = max(self.engine.least_share, 2 if is_over_batch(workload) else 1)
        self._order = SampleOrder(
            seed=train.seed,
            num_samples=len(samples),
            sampling=Sampling.of(dataset).of_part(samples),
            batch_size=self._batch_size,
            by_tokens=train.batch_by == "tokens",
            least=least,
        )
        self._batches = BatchSchedule(
            batch_size=self._batch_size,
            base_size=self._batch_size,
            base_samples=self.num_samples,
            num_samples=self.num_samples,
            rule="fixed",
            least=least,
            batch_at=self._order.batch_at,
        )
        run: Any = {"num_updates": -(-self.num_samples // self._batch_size), "num_epochs": train.epochs}
        if hasattr(workload, "know_run"):
            workload.know_run(**run)
        self._own_schedule = None
        if train.schedule == "own":
            self._own_schedule = own_schedule(workload, model=self.engine.model, **run)

    def updates(self) -> Iterator[int]:
        """Takes the updates of the run one by one, and yields how many samples it has seen after each.

        Raises NotFinite where the loss is no number, which would leave the model as it was.
        """
        while self.seen < self.num_samples:
            stop = self.seen + self._batches.batch_size(self.seen)
            self._update(self.seen, stop)
            self.seen = stop
            yield stop

    def sample_s(self) -> float:
        """Returns the seconds of a sample, by a few updates from the beginning, after one that warms up."""
        size = self._batches.batch_size(0)
        self._update(0, size)
        began = time.monotonic()
        for _ in range(NUM_TIMED):
            self._update(0, size)
        return (time.monotonic() - began) / NUM_TIMED / size

    def _update(self, start: int, stop: int) -> None:
        train, num = self._train, self.num_samples
        rate = rate_at(
            (start + stop) / 2,
            num_samples=num,
            end=num,
            warmup=train.warmup,
            decay=train.decay,
            peak=train.rate,
            schedule=train.schedule,
            own=self._own_schedule,
        )
        samples = self._samples[self._order.samples(start, stop)]
        progress = TrainingProgress(seen=start, done=min(1.0, start / num), epoch=start // len(self._samples))
        self.engine.prepare(samples, progress=progress)
        step = self.engine.step(samples, batch_size=stop - start, rate=rate, signals=NOTHING)
        if not math.isfinite(step.loss):
            raise NotFinite(
                f"the loss of samples {start} to {stop - 1} of a trial is {step.loss}; lower train.rate "
                f"({train.rate:g})",
                update=start // self._batch_size + 1,
            )
