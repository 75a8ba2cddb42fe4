"""Runs the training loop: a plain loop over `seen` that resumes where a run was and ends in time.

The loop knows nothing of restarts, workers or torch: the engine takes the updates, a checkpoint says where to
begin, and the position in the order of samples is the whole state. Decisions of worker 0 by its clock (save
now, end early) travel with the gradients, so that all workers act at the same update.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from daybreak.contract import clock as night_clock
from daybreak.contract.errors import NotFinite
from daybreak.contract.workload import TrainingProgress
from daybreak.training import checkpoint, sample_order
from daybreak.training.batch_schedule import BatchSchedule
from daybreak.training.batching import Batching, Sizes, even
from daybreak.training.checkpoint_copies import CheckpointCopies
from daybreak.training.checkpoint_saver import Saver
from daybreak.training.engine import Engine
from daybreak.training.gradients import Signals
from daybreak.training.learning_rate import MARGIN, OwnSchedule, Scaled, end_of_decay, rate_at
from daybreak.training.recipe import Progress, Recipe
from daybreak.training.sample_audit import SampleAudit
from daybreak.training.sample_order import Indices
from daybreak.training.sampling import SampleOrder, Sampling
from daybreak.training.validation import Validator
from daybreak.training.weight_average import WeightAverage

log = logging.getLogger(__name__)

REPORT_EVERY_S = 1.0
MAX_NAMED = 20  # samples in an error
REGAIN = 0.1  # an early end is put off only if this share of all samples is gained


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """Where and why a run ended."""

    seen: int
    num_updates: int
    stopped_by: Literal["finished", "validation", "deadline", "terminated"]
    noise_scale: float | None = None


class Trainer:
    """One run of a recipe on an engine, from the newest checkpoint in `folder` if there is one."""

    def __init__(
        self,
        engine: Engine,
        recipe: Recipe,
        *,
        folder: Path,
        epoch_samples: int,
        sampling: Sampling | None = None,
        parameters: Sequence[str] | None = None,
        told_to_stop: Callable[[], bool],
        report: Callable[[Progress], None],
        clock: Callable[[], float] = night_clock.now,
        memory_bytes: Callable[[], int] = lambda: 0,
        copies: CheckpointCopies | None = None,
        executor: Executor | None = None,
        end_by: Callable[[], float] = lambda: math.inf,
        schedule: OwnSchedule | None = None,
        average: WeightAverage | None = None,
        validator: Validator | None = None,
        least_batch: int = 1,
        asked_size: Callable[[], int] = lambda: 0,
    ) -> None:
        """Batches have `least_batch` samples at least, where a run has as many.

        `asked_size` returns the size of batches that a trigger asks for, 0 for none.
        """
        self.engine, self.recipe = engine, recipe
        least_batch = max(least_batch, engine.least_share)
        self._order = SampleOrder(
            seed=recipe.seed,
            num_samples=epoch_samples - recipe.first_sample,
            first_sample=recipe.first_sample,
            sampling=sampling,
            batch_size=recipe.batch_size,
            by_tokens=recipe.batch_by == "tokens",
            least=least_batch,
            grows=bool(recipe.sizes),
        )
        self._parameters = parameters  # names of the weights that are learned, which a checkpoint tells apart
        self._told_to_stop, self._report, self._asked_size = told_to_stop, report, asked_size
        self._schedule, self._average, self._validator = schedule, average, validator
        self._beside: list[WeightAverage | Validator] = [each for each in (average, validator) if each]
        self._clock, self._memory_bytes, self._end_by = clock, memory_bytes, end_by
        self.seen = 0
        self.num_updates = 0
        self.audit = SampleAudit(self._order)
        self.end = recipe.num_samples  # where this run ends; a deadline or validation may bring it forward
        self._decays_to: int | None = None  # where it ends by validation, once patience has run out
        self._meter = _Meter(clock())
        self._validated_s = 0.0  # seconds of the last validation
        self._nothing_left = False  # no update would change anything
        # Position and samples of each next share of this worker, and the sizes of all workers' shares.
        self._ahead: deque[tuple[int, Indices, Sizes]] = deque()
        self._sizes: Sizes = ()  # of all workers' shares, of the update before
        self._batching: Batching | None = None
        if engine.world_size > 1 and recipe.batching == "by_speed":
            self._batching = Batching(batch_size=recipe.batch_size, world_size=engine.world_size)
        self._reach = 0  # position up to which `_ahead` goes
        self.saver = Saver(
            folder,
            identity=recipe.identity,
            every_s=recipe.saves.every_s,
            mean_time_to_loss_s=recipe.saves.mean_time_to_loss_s,
            schedule_s=recipe.saves.schedule_s,
            clock=clock,
            copies=copies,
            executor=executor,
        )
        self._base_size = recipe.rate.base_batch_size or recipe.batch_size
        self.batch_schedule = BatchSchedule(
            batch_size=recipe.batch_size,
            base_size=self._base_size,
            base_samples=recipe.rate.base_samples or recipe.num_samples,
            num_samples=recipe.num_samples,
            rule=recipe.rate.scaling,
            sizes=recipe.sizes,
            least=least_batch,
            batch_at=self._order.batch_at,
        )
        # A batch that may change needs the limit of its rule from the beginning.
        self._scaled, self._scaled_for = Scaled(), 0 if recipe.sizes else self._base_size

    def resume(self, path: Path) -> None:
        """Restores a checkpoint."""
        state = checkpoint.load(path)
        self.engine.load(state)
        for part in self._beside:
            part.load(state)
        self.seen = state.scalars["seen"]
        self.num_updates = state.scalars["num_updates"]
        self.end = min(self.end, state.scalars["end"])
        self.audit = SampleAudit.load(state.scalars["sample_audit"], self._order)
        if "pace" in state.scalars:
            self.batch_schedule.load(state.scalars["pace"], seen=self.seen)
            if self._batching:
                size = self.batch_schedule.size(self.seen)
                self._batching = Batching(batch_size=size, world_size=self.engine.world_size)
        self._meter = _Meter(self._clock(), seen=self.seen)
        self._decays_to = state.scalars["decays_to"]

    @property
    def _last(self) -> int:
        """Where the run ends if time suffices."""
        return self.recipe.num_samples if self._decays_to is None else self._decays_to

    def run(self) -> RunOutcome:
        """Trains to the end; every worker calls it, and all return at the same update."""
        self._reach = self.seen
        while self.seen < self.end:
            before = self.seen
            signals = self._update()
            if signals.resize_to:
                self._resize(signals.resize_to)
            if signals.end_in and not self._nothing_left:
                self.end = min(self._last, self._after(signals.end_in - 1))
            if self._validator and self._validator.is_due(before, self.seen, end=self.end):
                self._validate(self._validator)
            if signals.save or signals.stop:
                self.save()
            if signals.stop and self.seen < self.end:
                self.saver.wait()
                return self._outcome("terminated")
        whole = self.seen >= self.recipe.num_samples or self.batch_schedule.done or self._nothing_left
        if self.seen >= self._last and not whole:
            return self._outcome("validation")
        return self._outcome("finished" if whole else "deadline")

    def _validate(self, validator: Validator) -> None:
        """Scores the weights, and brings the end forward where nothing better came for long."""
        began = self._clock()
        validator.validate(self.seen)
        self._validated_s = self._clock() - began
        self._meter.leave_out(self._validated_s)
        if validator.is_over and self.seen < self.end:
            self._decays_to = self.seen if self._decays_to is not None else self._end_of_decay()
            self.end = min(self.end, self._decays_to)
            validator.begin_again()

    def _end_of_decay(self) -> int:
        """Returns where the run ends whose rate falls from here on: after whole batches.

        What has no rate, as trees have none, ends here.
        """
        recipe = self.recipe
        if not self.engine.has_rate:
            return self.seen
        end = end_of_decay(
            self.seen,
            num_samples=recipe.num_samples,
            warmup=max(recipe.rate.warmup, self._scaled.warmup),
            decay=recipe.rate.decay,
            schedule=recipe.rate.schedule,
            progress=self.batch_schedule.position,
        )
        position, end = self.seen, min(recipe.num_samples, end)
        while position < end:  # as batches of groups or by tokens differ in size
            position += self.batch_schedule.batch_size(position)
        if not self.engine.rank:
            log.info(
                "validation found nothing better for long: the rate falls from %d to %d", self.seen, position
            )
        return position

    def _outcome(self, stopped_by: Literal["finished", "validation", "deadline", "terminated"]) -> RunOutcome:
        return RunOutcome(
            seen=self.seen,
            num_updates=self.num_updates,
            stopped_by=stopped_by,
            noise_scale=self.batch_schedule.noise_scale,
        )

    def save(self) -> None:
        """Starts a checkpoint; all workers call it together, and `saver` writes it on worker 0."""
        began = self._clock()
        state = self.engine.save()
        for part in self._beside:
            part.save(state)
        self.audit.settle(seen=self.seen, total=self.engine.total)
        if self.engine.rank:
            return
        self.audit.prove()
        scalars = {
            **state.scalars,
            "num_updates": self.num_updates,
            "end": self.end,
            "decays_to": self._decays_to,
            "sample_audit": self.audit.save(),
            "pace": self.batch_schedule.save(),
        }
        if self._parameters is not None:
            scalars["parameters"] = list(self._parameters)
        self.saver.begin(
            checkpoint.TrainingState(tensors=state.tensors, scalars=scalars), seen=self.seen, began=began
        )

    def _update(self) -> Signals:
        size = self.batch_schedule.batch_size(self.seen)
        position, share, sizes = self._next_share()
        after = self.seen + size
        rate = self._rate(self.seen + size / 2)
        step = self.engine.step(share, batch_size=size, rate=rate, signals=self._signals())
        if not math.isfinite(step.loss):
            raise self._not_finite(step.loss, size)
        if step.nothing_left:
            self._nothing_left, self.end = True, self.seen
            return step.signals
        self.audit.add(position, share)
        self.seen = after
        self.num_updates += 1
        if self._average:
            self._average.add(seen=after, end=self.end, batch_size=size)
        self.batch_schedule.step(size, loss=step.loss, noise=step.noise)
        if self._batching:
            if self._batching.observe(step.times_s, sizes=self._sizes) and not self.engine.rank:
                log.info("workers differ in speed; shares of a batch are now %s", self._batching.sizes)
            self._sizes = sizes
        self._meter.add(step.loss, size)
        self._send_heartbeat(rate)
        return step.signals

    def _not_finite(self, loss: float, size: int) -> NotFinite:
        """Returns an error that names the samples of the failed update, over all workers."""
        samples = self._order.samples(self.seen, self.seen + size)
        named = ", ".join(map(str, samples[:MAX_NAMED])) + (", ..." if size > MAX_NAMED else "")
        return NotFinite(
            f"the loss of update {self.num_updates + 1} (positions {self.seen} to {self.seen + size - 1}) is "
            f"{loss}, on {size} samples: {named}; look at these samples, or lower train.rate "
            f"({self.recipe.rate.peak:g})",
            update=self.num_updates + 1,
        )

    def _signals(self) -> Signals:
        """Returns the signals that this worker sends with the next update."""
        stop = int(self._told_to_stop())
        if self.engine.rank:
            return Signals(stop=stop)
        most = self._scaled.most_times * self._base_size
        return Signals(
            stop=stop,
            save=int(self.saver.due()),
            end_in=1 if self.batch_schedule.done else self._end_in(),
            resize_to=self.batch_schedule.next_size(seen=self.seen, most=most, asked=self._asked_size()),
        )

    def _resize(self, size: int) -> None:
        """Switches to batches of another size, from the first one that is not yet being loaded."""
        is_undone = size == self.batch_schedule.undo_to
        self.batch_schedule.resize(size, start=self._reach)
        if self._batching:
            self._batching = Batching(batch_size=size, world_size=self.engine.world_size)
        if not self.engine.rank:
            scale = self.batch_schedule.noise.scale
            why = "the loss has risen since they grew" if is_undone else f"the noise scale is {scale:.4g}"
            why = "a trigger asks for them" if size == self._asked_size() and not is_undone else why
            log.info("batches of %d from %d on: %s", size, self._reach, why)

    def _after(self, updates: int) -> int:
        """Returns the position after so many more updates."""
        position = self.seen
        for _ in range(updates):
            position += self.batch_schedule.batch_size(position)
        return position

    def _end_in(self) -> int:
        """Returns the updates after which to end, counted from 1 for the next; 0 to leave the end unchanged.

        Where the deadline comes before the last sample, the run ends early. That is decided as late as
        possible: when the time left is what the decay of the rate needs. The launcher may set a nearer end,
        where the budget ends before the time. An end that proves too early is put off again: a pause may have
        been mistaken for the speed, or the machine is a faster one now.
        """
        until = min(self.recipe.train_until.timestamp(), self._end_by())
        left_s = until - self._clock() - 2 * self.saver.takes_s - self._validated_s - 1.0
        if self._meter.samples_per_s:  # a signal arrives when workers average next
            delay = (self.recipe.signal_updates - 1) * self.batch_schedule.size(self.seen)
            left_s -= delay / self._meter.samples_per_s
        if left_s <= 0:
            return 1
        if not self._meter.samples_per_s:
            return 0
        total, size = self._last, self.batch_schedule.size(self.seen)
        reach = (1 - MARGIN) * left_s * self._meter.samples_per_s
        end = self.seen + reach
        too_early = self.end < total and (end >= total or end > self.end + REGAIN * total)
        # There is time for all samples, or to decide later.
        if end >= total or reach > self.recipe.rate.decay * end:
            end = total
        if end < self.end:
            return max(1, int(reach / size))
        return math.ceil((end - self.seen) / size) + 1 if too_early else 0

    def _send_heartbeat(self, rate: float) -> None:
        now = self._clock()
        if self.engine.rank or (now < self._meter.since + REPORT_EVERY_S and self.seen < self.end):
            return
        loss, speed = self._meter.read(now, self.seen)
        self._report(
            Progress(
                time=datetime.fromtimestamp(now, UTC),
                seen=self.seen,
                num_updates=self.num_updates,
                loss=loss,
                rate=rate,
                samples_per_s=speed,
                memory_bytes=self._memory_bytes(),
                batch_size=self.batch_schedule.size(self.seen - 1),
                noise_scale=self.batch_schedule.noise_scale,
                end=self.end,
                num_samples=self._last,
            )
        )

    def _rate(self, position: float) -> float:
        """Adapts the optimizer to the batch size, and returns the rate of an update centred on a position."""
        size, recipe = self.batch_schedule.size(self.seen), self.recipe
        if size != self._scaled_for:
            micro_batch_sizes = {each.batch_size: each.micro_batch_size for each in recipe.sizes}
            self._scaled = self.engine.rescale(
                batch_size=size,
                base_size=self._base_size,
                rule=recipe.rate.scaling,
                micro_batch_size=micro_batch_sizes.get(size),
            )
            self._scaled_for = size
        by_gain = self.batch_schedule.gain(size) if recipe.rate.scaling == "adascale" else 1.0
        return rate_at(
            position,
            progress=self.batch_schedule.position,
            num_samples=recipe.num_samples,
            end=self.end,
            warmup=max(recipe.rate.warmup, self._scaled.warmup),
            decay=recipe.rate.decay,
            peak=recipe.rate.peak * self._scaled.rate * by_gain,
            schedule=recipe.rate.schedule,
            own=self._schedule,
        )

    def _next_share(self) -> tuple[int, Indices, Sizes]:
        """Returns this worker's part of the next batch, and starts to load later ones, one per loader."""
        while len(self._ahead) <= max(1, self.recipe.tuning.num_loaders) and self._reach < self.end:
            self._ahead.append(self._share(self._reach))
            progress = TrainingProgress(
                seen=self._reach,
                done=min(1.0, self._reach / self.recipe.num_samples),
                epoch=self._reach // self._order.num_samples,
            )
            self.engine.prepare(self._ahead[-1][1], progress=progress)
            self._reach += self.batch_schedule.batch_size(self._reach)
        return self._ahead.popleft()

    def _share(self, position: int) -> tuple[int, Indices, Sizes]:
        """Returns this worker's part of a batch: its position, its samples, and all workers' sizes."""
        batch = range(position, position + self.batch_schedule.batch_size(position))
        sizes = self._batching.shares(len(batch)) if self._batching else ()
        if self.engine.least_share > 1:
            sizes = even(len(batch), world_size=self.engine.world_size, least=self.engine.least_share)
        part = sample_order.share(
            batch, rank=self.engine.rank, world_size=self.engine.world_size, sizes=sizes
        )
        return part.start, self._order.samples(part.start, part.stop), sizes


class _Meter:
    """Mean loss and speed since the last heartbeat."""

    def __init__(self, now: float, *, seen: int = 0) -> None:
        self.since, self._seen_then = now, seen
        self.samples_per_s = 0.0
        self._loss, self._weight = 0.0, 0

    def leave_out(self, seconds: float) -> None:
        """Leaves a pause out of the speed."""
        self.since += seconds

    def add(self, loss: float, size: int) -> None:
        self._loss += loss * size
        self._weight += size

    def read(self, now: float, seen: int) -> tuple[float, float]:
        loss = self._loss / self._weight if self._weight else math.nan
        self.samples_per_s = (seen - self._seen_then) / max(now - self.since, 1e-9)
        self.since, self._seen_then = now, seen
        self._loss, self._weight = 0.0, 0
        return loss, self.samples_per_s
