"""Runs the phases of a run: the main one, and where it is validated the last one (last_phase.py).

The last phase is left out, and the log says so, where the time that is left does not suffice for all of it.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.contract.record_parts import Epoch
from daybreak.training import checkpoint
from daybreak.training.last_phase import MainPhase, last_phase
from daybreak.training.process_group import agreed
from daybreak.training.recipe import Recipe
from daybreak.training.trainer import RunOutcome, Trainer

if TYPE_CHECKING:
    from daybreak.training.supervision import AnyEngine
    from daybreak.training.validation import Validator

log = logging.getLogger(__name__)

Maker = Callable[[Recipe, MainPhase | None], Trainer]


class Phases:
    """The phases of a run, one trainer for each; `trainer` is that of the current one."""

    def __init__(
        self,
        engine: "AnyEngine",
        recipe: Recipe,
        make: Maker,
        *,
        num_all: int,
        validator: "Validator | None",
        left_s: Callable[[], float],
    ) -> None:
        """Begins with the main phase; the data set has `num_all` samples, and `left_s()` seconds are left."""
        self._engine, self._recipe, self._make, self._num_all = engine, recipe, make, num_all
        self._validator, self._left_s = validator, left_s
        self._main: MainPhase | None = None
        self.trainer = make(recipe, None)

    def resume(self, path: Path) -> None:
        """Restores a checkpoint, of the phase that it was made in."""
        state = checkpoint.scalars(path).get("main")
        if state and self._validator:
            self._begin_last(MainPhase.load(state, identity=self._recipe.identity, validator=self._validator))
        self.trainer.resume(path)

    @property
    def seen(self) -> int:
        """Samples trained on in all phases."""
        return (self._main.seen if self._main else 0) + self.trainer.seen

    def run(self) -> RunOutcome:
        """Trains to the end, or until the run is told to stop; every worker calls it."""
        if self._main is None:
            outcome = self.trainer.run()
            validator = self._validator
            if not validator or not self._recipe.validation.num_last or outcome.stopped_by == "terminated":
                return outcome
            if outcome.stopped_by == "deadline" or not agreed(self._has_time()):
                return self._without_last(outcome)
            self._engine.finish()
            self._begin_last(self.trainer.complete(outcome))
            validator.take_best()
        return self._run_last()

    def _begin_last(self, main: MainPhase) -> None:
        self._main = main
        self.trainer = self._make(last_phase(self._recipe, num_all=self._num_all), main)

    def _has_time(self) -> bool:
        """Returns whether the last phase would be whole in the time that is left."""
        return self.trainer.time_s(self._recipe.validation.num_last) <= self._left_s()

    def _run_last(self) -> RunOutcome:
        assert self._main and self._validator
        if not self.trainer.seen and not self._engine.rank:
            log.info(
                "the last phase goes on from the best weights, over the newest %d samples, those of the "
                "validation among them",
                self._recipe.validation.num_last,
            )
        outcome = self.trainer.run()
        if outcome.stopped_by == "terminated":
            return outcome
        if outcome.stopped_by == "deadline":
            return self._without_last(outcome)
        self._validator.is_over_all = True
        noise_scale = outcome.noise_scale or self._main.noise_scale
        return replace(outcome, stopped_by=self._main.stopped_by, noise_scale=noise_scale)

    def _without_last(self, outcome: RunOutcome) -> RunOutcome:
        """Returns that time was short for the last phase, which the log says."""
        if not self._engine.rank:
            log.warning(
                "there is no time for a whole last phase, so that the model has not been trained on the "
                "newest %d samples, by which it was validated; allow more by night.train_hours",
                self._recipe.validation.num_samples,
            )
        return replace(outcome, stopped_by="deadline")

    def epochs(self) -> tuple[Epoch, ...]:
        """Returns the audited epochs of all phases, in order; raises JobError if one has other samples."""
        return (self._main.epochs if self._main else ()) + self.trainer.audit.proven()
