"""Fits the calibrator of a workload on the samples that a run was validated on (workloads/calibrators.py)."""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from daybreak.contract.errors import JobError, ParamsError, is_out_of_memory
from daybreak.contract.workload import CALIBRATION
from daybreak.training.recipe import Recipe
from daybreak.training.tuning import new_model, read, to

if TYPE_CHECKING:
    from numpy.typing import NDArray

log = logging.getLogger(__name__)

MOST_SAMPLES = 50_000  # spread over all that a run was validated on
AT_ONCE = 1024  # samples


def calibrated(
    weights: Mapping[str, Tensor],
    workload: Any,
    dataset: Any,
    recipe: Recipe,
    *,
    num_validated: int,
    alive: Callable[[], None] = lambda: None,
) -> dict[str, Tensor]:
    """Returns weights with the numbers of the workload's calibrator, fitted on the newest samples.

    A run that was not validated on any keeps the numbers that its weights began with. A pass has no more
    samples than one of training, and fewer where memory does not suffice; `alive` is called before each.
    Raises JobError where memory does not suffice for one.
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
    number = min(getattr(calibrator, "most_samples", MOST_SAMPLES), num_validated)
    samples = np.linspace(len(dataset) - num_validated, len(dataset) - 1, number).round().astype(np.int64)
    made: list[tuple[NDArray[Any], NDArray[Any]]] = []
    # Not what fitted last: a run that was killed ends with the same numbers.
    start, at_once = 0, min(AT_ONCE, recipe.micro_batch_size)
    while start < number:
        alive()
        try:
            batch = to(read(dataset, samples[start : start + at_once]), device)
            made.append(_chances(workload, model, batch))
            start += at_once
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if at_once == 1:
                raise JobError(
                    "memory does not suffice to calibrate by one sample; name a larger machine in "
                    "plan.machines"
                ) from error
            at_once = -(-at_once // 2)
    chances, labels = (np.concatenate(each) for each in zip(*made, strict=True))
    fitted = calibrator.fit(chances, labels)
    if hasattr(calibrator, "doubt") and (doubt := calibrator.doubt(fitted)):
        log.warning(doubt)
    log.info("calibrated by %d samples that were not trained on", number)
    return {**weights, CALIBRATION: fitted}


def try_calibrator(workload: Any, model: torch.nn.Module, batch: Any) -> None:
    """Fits the calibrator on one batch, so that chances of the wrong form are refused before training.

    `predictions` cannot show them, as its values are calibrated. Raises ParamsError.
    """
    calibrator = getattr(workload, "calibrator", None)
    if calibrator is None:
        return
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        calibrator.fit(*_chances(workload, model, batch))
    finally:
        for module, is_training in modes:  # a team may keep some of them in eval mode
            module.training = is_training


def _chances(workload: Any, model: torch.nn.Module, batch: Any) -> "tuple[NDArray[Any], NDArray[Any]]":
    """Returns the chances that a model predicts for a batch before they are calibrated, and its labels."""
    calibrator = workload.calibrator
    with torch.inference_mode():
        made = workload.predict(model, batch)
    made = made if isinstance(made, Mapping) else {"prediction": made}
    if calibrator.prediction not in made:
        raise ParamsError(
            f"calibrator is of {calibrator.prediction!r}, and {type(workload).__name__}.predict returns "
            f"{', '.join(made)}; name one of these in its `prediction`"
        )
    label = batch[workload.table.label.column].cpu().numpy()
    return made[calibrator.prediction].float().cpu().numpy(), label
