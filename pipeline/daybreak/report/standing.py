"""Compares challenger, champion and simple rules, overall and slice by slice.

Means come from the records; where the per-sample scores are at hand they get 95 % intervals,
mean -+ 1.96 s / sqrt(n), and differences are paired. These intervals only illustrate: there are many slices,
and nothing is corrected for that. The gate decides by its own interval, which is corrected.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daybreak.contract.record_parts import Slice
from daybreak.contract.record_types import Evaluation

Z = 1.96  # standard deviations to either side that hold 95 % of a normal distribution
_FACTS = ("champion_has_seen", "num_not_finite")  # metrics that are not about a model
_OTHERS = ("baseline/", "anchor", "predecessor")  # of simple rules and of earlier versions


@dataclass(frozen=True, kw_only=True)
class MeanScore:
    """A mean with its interval; no interval where the spread is not known."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class SliceRow:
    """One slice of the held-out samples; None where the champion was not scored on it."""

    name: str
    num_samples: int
    challenger: MeanScore
    champion: MeanScore | None = None
    difference: MeanScore | None = None


@dataclass(frozen=True, kw_only=True)
class Standing:
    """All samples, their slices, the simple rules on all samples (best first), and other metrics."""

    overall: SliceRow | None
    slices: tuple[SliceRow, ...]
    baselines: dict[str, MeanScore]
    metrics: dict[str, tuple[float | None, float | None]]  # name -> challenger, champion
    champion_has_seen: bool
    num_not_finite: int

    @property
    def has_champion(self) -> bool:
        """Returns whether there is a score of the champion to compare with."""
        return any(row.champion for row in (self.overall, *self.slices) if row)


def standing(evaluation: Evaluation, columns: Mapping[str, NDArray[Any]] | None = None) -> Standing:
    """Returns the standing by the record, with intervals by the columns of scores.npy, shape [n] each."""
    columns = columns or {}
    metrics = evaluation.metrics
    overall = None
    if "score" in metrics:
        everything = Slice(
            name="All samples",
            num_samples=evaluation.num_samples,
            score=metrics["score"],
            champion_score=metrics.get("champion_score"),
        )
        overall = _row(everything, columns)
    slices = tuple(_row(part, _of_slice(part.name, columns)) for part in evaluation.slices)
    baselines = {
        name.removeprefix("baseline/"): _mean(value, columns.get(name))
        for name, value in sorted(metrics.items(), key=lambda item: -item[1])
        if name.startswith("baseline/")
    }
    names = [
        name.removeprefix("champion/")
        for name in metrics
        if name not in ("score", "champion_score", *_FACTS) and not name.startswith(_OTHERS)
    ]
    return Standing(
        overall=overall,
        slices=slices,
        baselines=baselines,
        metrics={name: (metrics.get(name), metrics.get(f"champion/{name}")) for name in dict.fromkeys(names)},
        champion_has_seen=bool(metrics.get("champion_has_seen")),
        num_not_finite=int(metrics.get("num_not_finite", 0)),
    )


def table(standing: Standing) -> dict[str, list[Any]]:
    """Returns all samples and each slice with their intervals, as pandas reads a table with orient=split."""
    rows = [row for row in (standing.overall, *standing.slices) if row]
    parts = ("challenger", "champion", "difference")
    columns = [f"{part}{end}" for part in parts for end in ("", "_low", "_high")]
    return {
        "columns": ["slice", "num_samples", *columns],
        "data": [
            [
                row.name,
                row.num_samples,
                *(
                    value
                    for score in (row.challenger, row.champion, row.difference)
                    for value in (_cells(score) if score else (None,) * 3)
                ),
            ]
            for row in rows
        ],
    }


def _cells(score: MeanScore) -> list[float | None]:
    """Returns a mean with its interval, None for what is not known or no finite number, as JSON has none.

    To six digits, as MLflow's table shows all that there are, and cuts them at the width of its columns.
    """
    values = (score.value, score.low, score.high)
    return [float(f"{value:.6g}") if value is not None and np.isfinite(value) else None for value in values]


def best_baseline(evaluation: Evaluation | None) -> float | None:
    """Returns the score of the best simple rule; None where there is none."""
    values = [
        v for name, v in (evaluation.metrics if evaluation else {}).items() if name.startswith("baseline/")
    ]
    return max(values, default=None)


def score(evaluation: Evaluation | None) -> float | None:
    """Returns the mean score of the challenger on the held-out samples; None where there is none."""
    return None if evaluation is None else evaluation.metrics.get("score")


def _of_slice(name: str, columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Returns the scores of both models on the samples of a slice; none where its mask is not known."""
    mask = columns.get(f"slice/{name}")
    if mask is None:
        return {}
    return {arm: columns[arm][mask.astype(bool)] for arm in ("challenger", "champion") if arm in columns}


def _row(part: Slice, columns: Mapping[str, NDArray[Any]]) -> SliceRow:
    ours, theirs = columns.get("challenger"), columns.get("champion")
    row = SliceRow(name=part.name, num_samples=part.num_samples, challenger=_mean(part.score, ours))
    if part.champion_score is None:
        return row
    paired = None if ours is None or theirs is None else ours.astype(np.float64) - theirs
    return replace(
        row,
        champion=_mean(part.champion_score, theirs),
        difference=_mean(part.score - part.champion_score, paired),
    )


def _mean(value: float, column: NDArray[Any] | None) -> MeanScore:
    """Returns the mean on record with the interval that the samples of the column give it."""
    if column is None or column.size < 2:
        return MeanScore(value=value)
    samples = column.astype(np.float64)
    if not np.isfinite(samples).all():
        return MeanScore(value=value)
    width = Z * float(samples.std(ddof=1)) / float(np.sqrt(samples.size))
    return MeanScore(value=value, low=value - width, high=value + width)
