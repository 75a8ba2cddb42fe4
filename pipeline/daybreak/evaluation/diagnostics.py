"""Counts what people look at beside metrics: reliability, confusion, and metrics slice by slice.

No verdict rests on it. It goes to the ledger, so it is counts, or of groups of `LEAST` samples or more.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from daybreak.contract.record_parts import Confusion, Reliability, ReliabilityBin
from daybreak.contract.workload import UNIT
from daybreak.evaluation.scores import Columns, with_prefix
from daybreak.workloads.metrics import F1, Accuracy, ClassLogLoss, Metric

LEAST = 20  # samples of a group
BINS = 10
MOST_CLASSES = 12
MOST_METRICS, MOST_SLICES = 4, 6  # the first metrics, and the largest slices


def reliability(
    metrics: Sequence[Metric], predicted: Mapping[str, Mapping[str, NDArray[Any]]], label: NDArray[Any]
) -> Reliability | None:
    """Returns the reliability of the first prediction that is the chance of a label of 1.

    Args:
        metrics: of the workload, which say what its predictions are.
        predicted: predictions by model and name, shape [n, ...] each.
        label: shape [n].
    """
    name = next((one.prediction for one in metrics if one.of_chances and _is_flat(predicted, one)), None)
    if name is None:
        return None
    drawn = {arm: _bins(named[name], label) for arm, named in predicted.items() if name in named}
    if not drawn["challenger"]:
        return None
    return Reliability(challenger=drawn["challenger"], champion=drawn.get("champion", ()))


def _is_flat(predicted: Mapping[str, Mapping[str, NDArray[Any]]], metric: Metric) -> bool:
    values = predicted["challenger"].get(metric.prediction)
    return values is not None and values.size == len(values)


def _bins(chance: ArrayLike, label: ArrayLike) -> tuple[ReliabilityBin, ...]:
    """Returns bins of as many samples each, by rising chance; none of fewer than two bins."""
    chances, true = (np.asarray(each, dtype=np.float64).reshape(-1) for each in (chance, label))
    num_bins = min(BINS, len(chances) // LEAST)
    if num_bins < 2 or not np.isfinite(chances).all():
        return ()
    return tuple(
        ReliabilityBin(
            num_samples=len(part),
            predicted=_rounded(chances[part].mean()),
            observed=_rounded(true[part].mean()),
        )
        for part in np.array_split(np.argsort(chances, kind="stable"), num_bins)
    )


def confusion(
    metrics: Sequence[Metric],
    predicted: Mapping[str, Mapping[str, NDArray[Any]]],
    label: NDArray[Any],
    *,
    classes: Sequence[str],
) -> Confusion | None:
    """Returns the confusion of the first metric of classes; None of more than `MOST_CLASSES`.

    Args:
        metrics: of the workload; F1 has a threshold, the others take the most likely class.
        predicted: predictions by model and name, shape [n] for F1, else [n, classes].
        label: shape [n].
        classes: what the labels 0, 1, ... stand for; their numbers where it is empty.
    """
    metric = next((one for one in metrics if isinstance(one, F1 | Accuracy | ClassLogLoss)), None)
    if metric is None:
        return None
    said = {arm: _said(metric, named) for arm, named in predicted.items()}
    ours, true = said.get("challenger"), np.asarray(label).reshape(-1).astype(int)
    if ours is None or not len(true):
        return None
    num = max(
        len(classes), 1 + int(max(true.max(), *(each.max() for each in said.values() if each is not None)))
    )
    if num > MOST_CLASSES or true.min() < 0:
        return None
    counted = {arm: _counts(true, each, num) for arm, each in said.items() if each is not None}
    return Confusion(
        classes=tuple(classes[at] if at < len(classes) else str(at) for at in range(num)),
        challenger=counted["challenger"],
        champion=counted.get("champion", ()),
    )


def _said(metric: Metric, named: Mapping[str, NDArray[Any]]) -> NDArray[Any] | None:
    values = named.get(metric.prediction)
    if values is None:
        return None
    if isinstance(metric, F1):
        return (np.asarray(values).reshape(-1) > metric.threshold).astype(int)
    most_likely: NDArray[Any] = np.asarray(values).reshape(len(values), -1).argmax(axis=1)
    return most_likely


def _counts(true: NDArray[Any], said: NDArray[Any], num: int) -> tuple[tuple[int, ...], ...]:
    table = np.bincount(true * num + said, minlength=num * num).reshape(num, num)
    return tuple(tuple(row) for row in table.tolist())


def by_slice(
    columns: Columns, metrics: Sequence[Metric], *, without: Mapping[str, str]
) -> dict[str, dict[str, tuple[float, float]]]:
    """Returns the challenger's mean and standard error by metric and slice, "" for all samples.

    A metric of a set is left out: its values are influences on all samples' metric, whose mean over a slice
    is not the metric of that slice.

    Args:
        columns: those of scores.npy.
        metrics: of the workload; none where it scores samples by itself, whose score and metrics all are of
            single samples.
        without: metrics that are the mean of one slice.
    """
    own = [name for name in columns if name.startswith("metric/")]
    of_rows = [f"metric/{one.name}" for one in metrics if type(one).sample_values is Metric.sample_values]
    names = [
        name
        for name in (of_rows if metrics else ["challenger", *own])
        if name.removeprefix("metric/") not in without
    ]
    masks = with_prefix(columns, "slice")
    largest = sorted(masks, key=lambda name: (-int(masks[name].sum()), name))[:MOST_SLICES]
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for name in names[:MOST_METRICS]:
        values = columns[name].astype(np.float64)
        units = columns.get(UNIT, np.arange(len(values)))
        parts = {"": slice(None)} | {one: masks[one] for one in largest}
        known = {
            one: (_rounded(values[part].mean()), _rounded(error))
            for one, part in parts.items()
            if len(values[part]) >= LEAST
            and np.isfinite(values[part]).all()
            and (error := _error_of_mean(values[part], units[part])) is not None
        }
        if known:
            found["score" if name == "challenger" else name.removeprefix("metric/")] = known
    return found


def _error_of_mean(values: NDArray[Any], units: NDArray[Any]) -> float | None:
    """Returns the standard error of a mean whose samples are alike within a unit; None of a single unit.

    It is by the sums of each unit's deviations (Liang and Zeger 1986), and that of independent samples where
    each is a unit. Both arguments are of shape [n].
    """
    _, unit = np.unique(units, return_inverse=True)
    sums = np.bincount(unit.reshape(-1), weights=values - values.mean())
    if len(sums) < 2:
        return None
    return float(np.sqrt(len(sums) / (len(sums) - 1) * np.square(sums).sum()) / len(values))


def _rounded(value: Any) -> float:
    return float(f"{float(value):.6g}")
