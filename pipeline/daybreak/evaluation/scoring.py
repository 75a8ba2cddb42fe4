"""Scores held-out samples with one or several models, batch by batch and side by side.

A workload scores its samples by itself (`score`), or names metrics (daybreak/workloads/metrics.py) of its
predictions. Metrics are computed for both models' predictions by the same code.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from daybreak.contract.errors import ParamsError
from daybreak.contract.record_parts import LiveMetric
from daybreak.contract.workload import UNIT
from daybreak.evaluation.scores import Columns
from daybreak.registry.weights import batch_of, placed
from daybreak.workloads.served_rows import predictions

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from daybreak.workloads.metrics import Metric

# What the record of an evaluation has beside a workload's metrics (daybreak/evaluation/evaluator.py).
TAKEN = re.compile(
    r"((champion|anchor|predecessor|candidate)_)?score|num_not_finite|champion_has_seen"
    r"|(baseline|champion|anchor|predecessor|candidate)/.*"
)
RANGE = (0.001, 0.999)  # quantiles; one odd sample would stretch the range of all


@dataclass(frozen=True, kw_only=True)
class ScoredModel:
    """A model, and the workload and samples to score it with."""

    name: str
    workload: Any
    model: "nn.Module"
    samples: Any


def score(arms: list[ScoredModel], num_samples: int, *, batch_size: int) -> Columns:
    """Returns scores, metrics, slice masks and units, shape [n] each.

    Arms with the same samples share batches.
    """
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
                kind = np.bool_ if name.startswith("slice/") else np.int64 if name == UNIT else np.float32
                column = columns.setdefault(name, np.zeros(num_samples, dtype=kind))
                column[where] = values.cpu().numpy()
    return columns


def _values(arm: ScoredModel, batch: Any) -> dict[str, "Tensor"]:
    """Returns the values of an arm for a batch, by column; slices and units by the challenger alone."""
    values = {arm.name: arm.workload.score(arm.model, batch)}
    if callable(getattr(arm.workload, "metrics", None)):
        metrics = arm.workload.metrics(arm.model, batch)
        _check_names(list(metrics), arm.workload)
        values |= {f"{_prefix(arm.name)}/{name}": value for name, value in metrics.items()}
    if arm.name == "challenger":
        if hasattr(arm.workload, "slices"):
            values |= {f"slice/{name}": mask for name, mask in arm.workload.slices(batch).items()}
        if UNIT in batch:
            values[UNIT] = batch[UNIT]
    return values


def declared(workload: Any) -> "tuple[Metric, ...]":
    """Returns the metrics that a workload names; none where it scores samples by itself.

    Raises ParamsError where one would replace another of its name, or a figure of ours.
    """
    metrics = getattr(workload, "metrics", ())
    if callable(metrics):
        return ()
    _check_names([metric.name for metric in metrics], workload)
    return tuple(metrics)


def _check_names(names: Iterable[str], workload: Any) -> None:
    counts = Counter(names)
    for name, count in counts.items():
        if count > 1 or TAKEN.fullmatch(name):
            has_it = "another metric" if count > 1 else "a figure of Daybreak's own"
            raise ParamsError(
                f"a metric of {type(workload).__qualname__} is called {name!r}, as {has_it} is; give its "
                f"class another `name`"
            )


def predict(arm: ScoredModel, *, batch_size: int) -> "dict[str, NDArray[Any]]":
    """Returns what the model predicts of all samples, shape [n, ...] each, by the workload's names.

    Raises ParamsError where that is not one prediction a sample.
    """
    num_samples = len(arm.samples)
    parts: dict[str, list[NDArray[Any]]] = {}
    for start in range(0, num_samples, batch_size):
        indices = range(start, min(start + batch_size, num_samples))
        batch = placed(batch_of(arm.samples, indices), arm.model)
        for name, values in predictions(arm.workload, arm.model, batch, size=len(indices)).items():
            parts.setdefault(name, []).append(values.cpu().numpy())
    return {name: np.concatenate(values) for name, values in parts.items()}


def judged(
    metrics: "Sequence[Metric]",
    predicted: "Mapping[str, Mapping[str, NDArray[Any]]]",
    label: "NDArray[Any]",
) -> Columns:
    """Returns the columns of these metrics, of each model in `predicted`; `label` is of shape [n].

    The score is the first metric, turned round where lower is better.
    """
    columns: Columns = {}
    for arm, named in predicted.items():
        for number, metric in enumerate(metrics):
            if metric.prediction not in named:
                raise ParamsError(
                    f"the metric {metric.name} is of {metric.prediction!r}, but `predict` of the {arm} "
                    f"returns {', '.join(sorted(named))}; name one of these in its `prediction`"
                )
            values = metric.values(named[metric.prediction], label).astype(np.float32)
            columns[f"{_prefix(arm)}/{metric.name}"] = values
            if not number:
                columns[arm] = values if metric.higher_is_better else -values
    return columns


def live_metrics(
    metrics: "Sequence[Metric]",
    predicted: "Mapping[str, NDArray[Any]]",
    label: "NDArray[Any]",
    *,
    has_label: bool,
    classes: tuple[str, ...] = (),
) -> tuple[LiveMetric, ...]:
    """Returns the metrics that have values of single samples, and what these are like held out."""
    usable = []
    for number, metric in enumerate(metrics):
        values = metric.sample_values(predicted[metric.prediction], label)
        if values is None or not values.size or not np.isfinite(values).all():
            continue
        low, high = np.quantile(values, RANGE).tolist()
        usable.append(
            LiveMetric(
                name=metric.name if metric.higher_is_better else f"-{metric.name}",
                use=f"{type(metric).__module__}:{type(metric).__qualname__}",
                arguments=dict(vars(metric)),
                is_first=not number,
                has_label=has_label,
                classes=classes,
                low=low,
                high=high,
                margin=metric.margin * abs(float(values.mean())),
            )
        )
    return tuple(usable)


def _prefix(arm: str) -> str:
    return "metric" if arm == "challenger" else arm


def check_shape(name: str, values: "Tensor", size: int, workload: Any) -> None:
    """Raises ParamsError unless `values` has one value per sample, shape [size]."""
    if tuple(values.shape) != (size,):
        raise ParamsError(
            f"{name} of {type(workload).__qualname__} has shape {list(values.shape)} for {size:,} samples; "
            f"return one value per sample, shape [{size}]"
        )
