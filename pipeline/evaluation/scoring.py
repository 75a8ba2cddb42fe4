"""Scores held-out samples with one or several models, batch by batch and side by side."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.contract.errors import ParamsError
from pipeline.evaluation.scores import Columns
from pipeline.registry.weights import batch_of, placed

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A model, and the workload and samples to score it with."""

    name: str
    workload: Any
    model: "nn.Module"
    samples: Any


def score(arms: list[Arm], num_samples: int, *, batch_size: int) -> Columns:
    """Returns scores, metrics and slice masks, shape [n] each; arms with the same samples share batches."""
    columns: Columns = {arm.name: np.zeros(num_samples, dtype=np.float32) for arm in arms}
    ours = arms[0].samples
    for start in range(0, num_samples, batch_size):
        where = slice(start, min(start + batch_size, num_samples))
        indices = range(where.start, where.stop)
        batch = placed(batch_of(ours, indices), arms[0].model)
        for arm in arms:
            own = batch if arm.samples is ours else placed(batch_of(arm.samples, indices), arm.model)
            for name, values in _values(arm, own).items():
                check_shape(name, values, len(indices), arm.workload)
                kind = np.bool_ if name.startswith("slice/") else np.float32
                column = columns.setdefault(name, np.zeros(num_samples, dtype=kind))
                column[where] = values.cpu().numpy()
    return columns


def _values(arm: Arm, batch: Any) -> dict[str, "Tensor"]:
    """Returns the values of an arm for a batch, by column; slices are those of the challenger alone."""
    values = {arm.name: arm.workload.score(arm.model, batch)}
    prefix = "metric" if arm.name == "challenger" else arm.name
    if hasattr(arm.workload, "metrics"):
        values |= {
            f"{prefix}/{name}": value for name, value in arm.workload.metrics(arm.model, batch).items()
        }
    if arm.name == "challenger" and hasattr(arm.workload, "slices"):
        values |= {f"slice/{name}": mask for name, mask in arm.workload.slices(batch).items()}
    return values


def check_shape(name: str, values: "Tensor", size: int, workload: Any) -> None:
    """Raises ParamsError unless `values` has one value per sample, shape [size]."""
    if tuple(values.shape) != (size,):
        raise ParamsError(
            f"{name} of {type(workload).__qualname__} has shape {list(values.shape)} for {size:,} samples; "
            f"return one value per sample, shape [{size}]"
        )
