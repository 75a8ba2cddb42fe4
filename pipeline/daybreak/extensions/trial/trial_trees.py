"""Tries what training does with a team's estimator: some trees, a restart, and the same trees after it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from daybreak.training.fit import Fit, FitData

NUM_TREES, RESTART_AFTER = 6, 3


@dataclass(frozen=True, kw_only=True)
class TrialEstimator:
    """A workload, and its model after some trees."""

    workload: Any
    model: Any
    losses: list[float] = field(default_factory=list)  # of each tree


def try_trees(trial: TrialEstimator, data: FitData, *, seed: int) -> tuple[list[float], bool]:
    """Fits the trial's model, and returns the losses, and whether a restart leaves the trees as they are."""
    fit, num = _begun(trial, data, seed=seed), NUM_TREES if trial.model.library.by_trees else 1
    losses, halfway = [], b""
    for number in range(num):
        losses.append(fit.grow())
        if number + 1 == RESTART_AFTER:
            halfway = fit.content()
    trial.model.load(fit.content())
    if not halfway or fit.draws:  # so few trees may be equal by chance
        return losses, not fit.draws
    resumed = _begun(trial, data, seed=seed, content=halfway)
    for _ in range(RESTART_AFTER, NUM_TREES):
        resumed.grow()
    load = trial.model.library.load
    before, after = (load(each.content())(data.inputs) for each in (fit, resumed))
    return losses, bool(np.array_equal(before, after))


def _begun(trial: TrialEstimator, data: FitData, *, seed: int, content: bytes = b"") -> Fit:
    fit: Fit = trial.model.library.begin(trial.model.estimator, data, seed=seed, content=content)
    return fit
