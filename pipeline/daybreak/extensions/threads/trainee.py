"""Computes and applies the gradients of parts of batches, in the process of an asynchronous worker."""

import math
from collections.abc import Mapping, Sequence
from time import thread_time
from typing import Any

from torch import nn

from daybreak.extensions.threads.asynchronous_workers import BatchPart, Done, Gradient
from daybreak.extensions.threads.shared_weights import SharedWeights
from daybreak.extensions.threads.thread_policy import momentum_left
from daybreak.training.accumulation import Accumulation
from daybreak.training.gradients import Signals
from daybreak.training.learning_rate import Scaled, scaled
from daybreak.training.micro_batch import MicroBatches
from daybreak.training.tuning import rule_of
from daybreak.training.updater import SCALED, Updater


class PartAccumulation(Accumulation):
    """Passes over a part of a batch, which measures the noise where the training process asks for it."""

    looks = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The updates of a worker are not in a row, by which draws are noticed, so it is seeded for each.
        self.generators.draws = True

    def measures_noise(self, num_samples: int, *, update: int) -> bool:
        """Returns whether the training process asks for the noise of this part."""
        return self.looks


class PartUpdater(Updater):
    """The optimizer, whose options depend on how much of a batch an update has and how many workers run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tuned = self._read_tuned()

    def rescale(self, **sizes: Any) -> Scaled:
        """Changes betas and eps for batches of another size."""
        scaling = super().rescale(**sizes)
        self._tuned = self._read_tuned()
        return scaling

    def options(
        self, *, rate: float, num_samples: int, batch_size: int, num_workers: int
    ) -> tuple[dict[str, Any], ...]:
        """Returns rate, momentum, betas and eps of each group for an update by `num_samples`.

        `rate` is for batches of `batch_size`; `num_workers` change the weights asynchronously.
        """
        options = []
        for tuned, part in zip(self._tuned, self.rate_shares, strict=True):
            scaling = scaled(
                rule_of(self.optimizer),
                name=type(self.optimizer).__name__,
                rule="by_optimizer",
                batch_size=num_samples,
                base_size=batch_size,
                betas=tuple(tuned["betas"] or ()),
                eps=tuned["eps"] or 0.0,
            )
            own: dict[str, Any] = {"lr": rate * scaling.rate * part}
            if momentum := tuned["momentum"] or 0.0:
                own["momentum"] = momentum_left(momentum, num_workers=num_workers)
                own["lr"] *= (1 - own["momentum"]) / (1 - momentum)  # a gradient goes as far in the end
            if scaling.betas and tuned["betas"]:
                first, *rest = scaling.betas
                own["betas"] = (momentum_left(first, num_workers=num_workers), *rest)
            if tuned["eps"]:
                own["eps"] = scaling.eps
            options.append(own)
        return tuple(options)

    def set_options(self, options: Sequence[Mapping[str, Any]]) -> None:
        """Sets the options of each group."""
        for group, own in zip(self.optimizer.param_groups, options, strict=True):
            group.update(own)

    def _read_tuned(self) -> list[dict[str, Any]]:
        names = (*SCALED, "momentum")
        return [{name: group.get(name) for name in names} for group in self.optimizer.param_groups]


class SharedTrainee:
    """Trains the shared weights on parts of batches."""

    def __init__(
        self,
        model: nn.Module,
        shared: SharedWeights,
        *,
        accumulation: PartAccumulation,
        micro_batches: MicroBatches,
        updater: PartUpdater,
    ) -> None:
        self._model, self._shared = model, shared
        self._accumulation, self._micro_batches, self._updater = accumulation, micro_batches, updater

    def gradient(self, part: BatchPart) -> Gradient:
        """Returns the gradient of a part at the shared weights of this moment."""
        began = thread_time()
        accumulation = self._accumulation
        self._shared.read()
        self._micro_batches.resize(part.micro_batch_size)
        size = len(part.indices)
        accumulation.prepare(part.indices, progress=part.progress)
        accumulation.begin(part.indices)
        accumulation.looks = part.measures_noise
        restore = accumulation.side_effects.snapshot()
        own = accumulation.add_up(part.indices, batch_size=size, update=part.number)
        if own.is_short:
            restore()
        sums = accumulation.gradients.reduce(
            own.losses,
            Signals(short=int(own.is_short)),
            num_samples=size,
            first=own.first,
            batch_size=size if part.measures_noise else 0,
        )
        return Gradient(
            loss=sums.loss,
            tensors=self._shared.gradients(),
            buffers=tuple(each.clone() for each in self._model.buffers()),
            noise=sums.noise,
            num_passes=len(own.losses),
            takes_s=thread_time() - began,
            short=own.is_short,
        )

    def apply(self, gradient: Gradient, part: BatchPart) -> Done:
        """Changes the shared weights, unless the loss is not finite; one worker at a time calls it."""
        began, is_update = thread_time(), False
        if not gradient.short and math.isfinite(gradient.loss):
            self._updater.set_options(part.options)
            is_update = self._shared.add_gradients(gradient.tensors, weight=part.weight, of=part.of)
            if is_update:
                self._updater.step()
            self._shared.set_buffers(gradient.buffers)
        return Done(
            loss=gradient.loss,
            noise=gradient.noise,
            num_passes=gradient.num_passes,
            gradient_s=gradient.takes_s,
            apply_s=thread_time() - began,
            is_update=is_update,
            short=gradient.short,
        )
