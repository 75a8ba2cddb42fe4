"""Validates a run during training, keeps the best weights, and says when scores have stopped improving.

The samples are the newest before those that are held out, so that they are later than all that is trained on.
Whatever happens to a run, it is validated at the same positions, by the same samples: one that was killed and
resumed keeps the same weights, and ends at the same update. When patience runs out, the trainer lets the rate
fall, which may bring better scores (Hu et al. 2024), and patience counts again.
"""

import logging
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from daybreak.training.checkpoint import TrainingState
from daybreak.training.recipe import BEST, Validation

if TYPE_CHECKING:
    from torch import Tensor

    from daybreak.training.engine import TorchEngine
    from daybreak.training.estimator_engine import EstimatorEngine
    from daybreak.training.weight_average import WeightAverage

log = logging.getLogger(__name__)

COST = 0.03  # share of a run's work at most, where that suffices for FEWEST validations of FEWEST_SCORED
FORWARD = 1 / 3  # work of scoring a sample, beside that of training on it
MOST, FEWEST, FEWEST_SCORED = 20, 4, 256


def validation_of(num_validated: int, *, num_samples: int, patience: int) -> Validation:
    """Returns how a run over `num_samples` is validated on the newest `num_validated`, at little cost."""
    if not num_validated:
        return Validation()
    affordable = COST * num_samples / FORWARD  # scores
    least = min(num_validated, FEWEST_SCORED)
    number = min(MOST, max(FEWEST, int(affordable / least)))
    return Validation(
        num_samples=num_validated,
        num_scored=min(num_validated, max(least, int(affordable / number))),
        every=max(1, num_samples // number),
        patience=patience,
    )


def finite(scores: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Returns the scores that are numbers, as records hold no others."""
    return tuple((seen, score) for seen, score in scores if math.isfinite(score))


class Validator:
    """Scores of a run on its newest samples, and the weights with the best of them."""

    def __init__(
        self,
        engine: "TorchEngine | EstimatorEngine",
        validation: Validation,
        *,
        num_all: int,
        average: "WeightAverage | None" = None,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine, self._validation, self._average = engine, validation, average
        self._alive = alive
        first = num_all - validation.num_samples
        self._samples = np.linspace(first, num_all - 1, validation.num_scored).round().astype(np.int64)
        self.scores: list[tuple[int, float]] = []  # samples trained on until then, and the mean score
        self._best: dict[str, Tensor] = {}
        self._num_before = 0  # validations that patience no longer counts

    @property
    def is_over(self) -> bool:
        """Returns whether patience has run out: so many validations in a row found nothing better."""
        patience = self._validation.patience
        return bool(patience) and len(self.scores) - max(self._best_at() + 1, self._num_before) >= patience

    def begin_again(self) -> None:
        """Lets patience count from the next validation on."""
        self._num_before = len(self.scores)

    def is_due(self, before: int, seen: int, *, end: int) -> bool:
        """Returns whether the update from position `before` to `seen` is followed by a validation."""
        every = self._validation.every
        return before // every < seen // every or seen >= end

    def validate(self, seen: int) -> None:
        """Scores the weights of this moment; all workers call it together."""
        score = self._score()
        self.scores.append((seen, score))
        if self._best_at() == len(self.scores) - 1:
            self._best = {name: weight.detach().clone() for name, weight in self._newest().items()}
        if not self._engine.rank:
            log.info("validated after %d samples: a mean score of %.6g", seen, score)

    def _score(self) -> float:
        if not self._average:
            return self._engine.mean_score(self._samples, alive=self._alive)
        model = self._engine.model
        own = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
        model.load_state_dict(self._average.tensors())
        try:
            return self._engine.mean_score(self._samples, alive=self._alive)
        finally:
            model.load_state_dict(own)

    def _newest(self) -> "dict[str, Tensor]":
        """Returns the weights that are scored now."""
        return self._average.tensors() if self._average else dict(self._engine.model.state_dict())

    def _best_at(self) -> int:
        """Returns the number of the validation with the best score, the first of equal ones; -1 for none."""
        finite = [(score, -number) for number, (_, score) in enumerate(self.scores) if math.isfinite(score)]
        return -max(finite)[1] if finite else -1

    def weights(self) -> "dict[str, Tensor]":
        """Returns the best weights whole on worker 0, or the newest; all workers call it together."""
        return self._engine.whole(self._best or self._newest())

    def save(self, state: TrainingState) -> None:
        """Adds scores and best weights to the state of a run; all workers call it together."""
        if self._best:
            state.tensors[BEST] = self.weights()
        state.scalars["validations"] = list(self.scores)  # which is written later
        state.scalars["validations_before"] = self._num_before

    def load(self, state: TrainingState) -> None:
        """Takes scores and best weights of a state over."""
        own = self._engine.model.state_dict()
        kept: dict[str, Any] = self._engine.shares(state.tensors.get(BEST, {}))
        self._best = {name: weight.to(own[name].device, copy=True) for name, weight in kept.items()}
        self.scores = [(seen, score) for seen, score in state.scalars.get("validations", ())]
        self._num_before = state.scalars["validations_before"]
