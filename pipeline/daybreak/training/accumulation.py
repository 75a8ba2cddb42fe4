"""Computes the gradient of a worker's share of a batch, in one pass or several (gradient accumulation).

Each loss has the weight 1 / the batch size of all workers, so the sum over passes and workers is the gradient
of the mean, for any shares and any size of the passes.
"""

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.amp import GradScaler

from daybreak.contract.errors import is_out_of_memory
from daybreak.contract.workload import (
    Batch,
    TrainingProgress,
    Workload,
    asks_progress,
    is_over_batch,
    thaws,
)
from daybreak.training import cached_gradients
from daybreak.training.cached_gradients import Stages
from daybreak.training.generators import Generators
from daybreak.training.gradients import Gradients
from daybreak.training.loader import Loader
from daybreak.training.micro_batch import MicroBatches
from daybreak.training.own_state import keeps_state
from daybreak.training.process_group import WorkerGroup
from daybreak.training.sample_order import Indices
from daybreak.training.side_effects import SideEffects
from daybreak.training.tuning import Tuner, halves, normalised
from daybreak.training.turns import Turns

log = logging.getLogger(__name__)

# Updates between measurements of the noise: from parts that exist anyway, or from a pass halved for it.
# Primes, so that optimizers that take turns are all measured.
LOOK_EVERY, HALVE_EVERY = 23, 101


@dataclass(frozen=True, kw_only=True)
class Accumulated:
    """What the passes over a share gave, besides the gradient in the parameters."""

    losses: list[Tensor]  # of each pass
    first: tuple[Tensor, int] | None = None  # |gradient|^2 and samples of the first pass, for the noise
    is_short: bool = False  # memory did not suffice, so the gradient is not valid
    names: frozenset[str] = frozenset()  # of the optimizers that step


class Accumulation:
    """Passes over the shares of a worker, whose gradients it adds up."""

    def __init__(
        self,
        workload: Workload,
        model: nn.Module,
        *,
        loader: Loader,
        micro_batches: MicroBatches,
        gradients: Gradients,
        tuner: Tuner,
        group: WorkerGroup,
        seed: int,
        turns: Turns,
        scaler: GradScaler | None = None,
    ) -> None:
        self._turns, self._scaler = turns, scaler
        self.gradients, self.progress = gradients, TrainingProgress()  # of the share of this update
        self._workload, self._model, self._tuner = workload, model, tuner
        self.side_effects = SideEffects(workload, model, group)
        self._loader, self._micro_batches = loader, micro_batches
        self._group = group
        self.generators = Generators(
            seed=seed, rank=group.rank, world_size=group.world_size, device=group.device
        )
        self._asks_progress, self._thaws = asks_progress(workload), thaws(workload)
        self._is_over_batch = is_over_batch(workload)
        self._prepared: deque[tuple[Indices, TrainingProgress]] = deque()  # shares that come
        self._weights: dict[int, Tensor] = {}
        self._warns_of_passes = normalised(model)
        # Halving would compile for one more shape, and BatchNorm would take statistics over half a pass.
        self.may_halve = not tuner.tuning.compiled and not self._warns_of_passes

    def prepare(self, indices: Indices, *, progress: TrainingProgress) -> None:
        """Starts to load a share."""
        self._prepared.append((indices, progress))
        self._loader.prepare(self._micro_batches.split(indices), epoch=progress.epoch)

    def begin(self, indices: Indices) -> None:
        """Finds the progress of a share; one that was not prepared has that of the update before."""
        place = next((n for n, (share, _) in enumerate(self._prepared) if share is indices), -1)
        for _ in range(place + 1):  # those before it had no samples
            _, self.progress = self._prepared.popleft()

    def add_up(self, indices: Indices, *, batch_size: int, update: int) -> Accumulated:
        """Adds up the gradients of a share of a batch of `batch_size` samples, of the update of that number.

        It seeds by that number. Raises JobError where memory never suffices.
        """
        measures_noise = self.gradients.world_size == 1 and self.measures_noise(len(indices), update=update)
        if self._is_over_batch:
            return self._over_batch(indices, batch_size, update, measures_noise=measures_noise)
        progress = self._begin(update)
        losses: list[Tensor] = []
        names: frozenset[str] = frozenset()
        first = None
        weigh = partial(self._weighed, batch_size=batch_size)
        try:
            passes = self._micro_batches.split(indices)
            if len(passes) > 1 and self._warns_of_passes:
                self._warns_of_passes = False
                log.warning("BatchNorm takes its statistics over %d samples, a pass", len(passes[0]))
            halved = measures_noise and len(passes) == 1 and len(indices) > 1 and self.may_halve
            halved = halved and not keeps_state(self._workload)  # a class that counts would count two passes
            for part in passes:
                whole = self._batch(part)
                for batch in halves(whole, len(part)) if halved else (whole,):
                    loss = self._tuner.loss(self._workload, self._model, batch, progress)
                    summed, stepping = self._turns.backward(loss, weigh)
                    losses.append(summed)
                    names |= stepping
                    if measures_noise and first is None:
                        first = self.gradients.square(), len(part) // 2 if halved else len(part)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._micro_batches.fall_short(error)
            # The others are waiting in the all-reduce: join them, and signal it there.
            return Accumulated(losses=losses, is_short=True)
        return Accumulated(losses=losses, first=first if len(losses) > 1 else None, names=names)

    def _over_batch(
        self, indices: Indices, batch_size: int, update: int, *, measures_noise: bool
    ) -> Accumulated:
        """Returns what a loss over the whole batch gave, of which this worker has a share.

        The noise comes from the gradients of two batches: this one, and its first half by itself, whose
        samples have fewer others beside them (McCandlish 2018, appendix A.1).
        """
        half, first = len(indices) // 2, None
        try:
            if measures_noise and half > 1 and self.may_halve:
                with self._kept():
                    self._one_batch(indices[:half], batch_size, update)
                    first = self.gradients.square(), half
            loss, names = self._one_batch(indices, batch_size, update)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            loss, names = None, frozenset()
            self._micro_batches.fall_short(error)
        if loss is None:
            return Accumulated(losses=[], is_short=True)
        return Accumulated(losses=[loss], first=first, names=names)

    def _one_batch(
        self, indices: Indices, batch_size: int, update: int
    ) -> tuple[Tensor | None, frozenset[str]]:
        """Computes the gradient of a loss over one batch; returns the sum of the losses of this share.

        That is None where another worker lacks memory. The names are those of the optimizers that step.
        """
        progress = self._begin(update)
        passes = self._micro_batches.split(indices)
        weigh = partial(self._weighed, batch_size=batch_size)
        if self.gradients.world_size == 1 and len(passes) == 1:
            loss = self._tuner.loss(self._workload, self._model, self._batch(indices), progress)
            return self._turns.backward(loss, weigh)
        read: dict[int, Batch] = {}  # of each pass, which is encoded twice

        def encode(number: int) -> Any:
            if number not in read:
                read[number] = self._loader.get(passes[number], epoch=self.progress.epoch)
            self.generators.begin_part(update, number)
            method: Any = self._workload.encode  # type: ignore[attr-defined]
            return self._tuner.run(method, self._model, self._tuner.batch(read[number]))

        stages = Stages(
            encode=encode,
            batch_loss=partial(self._batch_loss, update=update),
            weigh=weigh,
            kept=self._kept,
        )
        sizes = [len(part) for part in passes]
        return cached_gradients.add_up(stages, sizes, self._group), self._turns.names

    def _batch_loss(self, encoded: Any, *, update: int) -> Any:
        self.generators.begin_part(update, -1)
        return self._tuner.run(self._workload.batch_loss, encoded)  # type: ignore[attr-defined]

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Takes back what a loss changes in buffers and in the state of its class."""
        restore = self.side_effects.snapshot(always=True)
        try:
            yield
        finally:
            restore()

    def _begin(self, update: int) -> TrainingProgress | None:
        """Seeds for an update, freezes and clears; returns its progress if the loss asks for it."""
        self._seed_generators(update)
        progress = None
        if self._asks_progress or self._thaws:
            progress = replace(self.progress, update=update, generator=self.generators.device)
        if self._thaws and progress:
            self._workload.trainable(self._model, progress)  # type: ignore[attr-defined]
        self.gradients.clear()
        return progress if self._asks_progress else None

    def measures_noise(self, num_samples: int, *, update: int) -> bool:
        """Returns whether this update measures the noise of gradients.

        Shares of a batch that the loss is over are no batches of their own, by which it would show.
        """
        if self._is_over_batch and self.gradients.world_size > 1:
            return False
        return (update + 1) % (LOOK_EVERY if self._in_parts(num_samples) else HALVE_EVERY) == 0

    def _in_parts(self, num_samples: int) -> bool:
        """Returns whether an update has parts that can be compared without halving a pass for it."""
        divided = self.gradients.world_size > 1 or num_samples > self._micro_batches.size
        return divided and not self._is_over_batch

    def _batch(self, part: Indices) -> Batch:
        """Returns the samples of a pass, on the device."""
        return self._tuner.batch(self._loader.get(part, epoch=self.progress.epoch))

    def _weighed(self, loss: Tensor, *, batch_size: int) -> Tensor:
        """Returns a sum of losses as a part of its batch's mean, times the factor of float16.

        The weight is cached, as making it takes as long as a layer.
        """
        if batch_size not in self._weights:
            self._weights = {batch_size: loss.new_tensor(1 / batch_size)}
        weighed = loss * self._weights[batch_size]
        return self._scaler.scale(weighed) if self._scaler else weighed

    def _seed_generators(self, update: int) -> None:
        """Seeds by the number of the update: dropout is repeatable without saving a generator's state."""
        self.generators.begin(update)
