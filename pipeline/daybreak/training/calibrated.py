"""Fits the calibrator of a workload on the samples that a run was validated on (workloads/calibrators.py)."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from daybreak.contract.errors import ParamsError
from daybreak.contract.workload import CALIBRATION
from daybreak.training.recipe import Recipe
from daybreak.training.tuning import new_model, read, to

log = logging.getLogger(__name__)

MOST_SAMPLES = 50_000  # spread over all that a run was validated on
AT_ONCE = 1024  # samples


def calibrated(
    weights: Mapping[str, Tensor], workload: Any, dataset: Any, recipe: Recipe, *, num_validated: int
) -> dict[str, Tensor]:
    """Returns weights with the numbers of the workload's calibrator, fitted on the newest samples.

    A run that was not validated on any keeps the numbers that its weights began with.
    """
    calibrator = getattr(workload, "calibrator", None)
    if calibrator is None:
        return dict(weights)
    if not num_validated:
        log.warning("training was not validated, so that the calibration stays that of its first weights")
        return dict(weights)
    model = new_model(workload, getattr(dataset, "state", {}), rate=recipe.tuning.band_rate)
    model.load_state_dict(dict(weights))
    is_network = next(model.parameters(), None) is not None
    device = torch.device("cuda" if is_network and torch.cuda.is_available() else "cpu")
    model.to(device).eval()
    column = workload.table.label.column
    number = min(MOST_SAMPLES, num_validated)
    samples = np.linspace(len(dataset) - num_validated, len(dataset) - 1, number).round().astype(np.int64)
    chances, labels = [], []
    for start in range(0, number, AT_ONCE):
        batch = read(dataset, samples[start : start + AT_ONCE])
        labels.append(batch[column].numpy())
        with torch.inference_mode():
            made = workload.predict(model, to(batch, device))
        made = made if isinstance(made, Mapping) else {"prediction": made}
        if calibrator.prediction not in made:
            raise ParamsError(
                f"calibrator is of {calibrator.prediction!r}, and {type(workload).__name__}.predict returns "
                f"{', '.join(made)}; name one of these in its `prediction`"
            )
        chances.append(made[calibrator.prediction].float().cpu().numpy())
    fitted = calibrator.fit(np.concatenate(chances), np.concatenate(labels))
    log.info("calibrated by %d samples that were not trained on", number)
    return {**weights, CALIBRATION: fitted}
