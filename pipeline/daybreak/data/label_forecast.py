"""Forecasts the label of each row of a day from its features, as they went together on the days before.

What a rate of labels is, a storm or a holiday may change; how it follows from the features changes less. So a
day's labels are held against this forecast: a part of the labels that is lost, or dealt out anew, moves them
away from it, however the day is. The forecast is a ridge regression on indicators: eighths of the values of
each number, the most frequent values of each category. It has no state, and is learned anew for
each day from the days before it alone. Pure.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Keys = NDArray[np.uint64]  # hashes of values, 0 for a null
    Numbers = NDArray[np.float64]

LEARNED_DAYS = 28
MOST_LEARNED = 1 << 13  # rows
LEAST_LABELS = 100
MOST_FEATURES = 30
PARTS, MOST_VALUES = 8, 16  # of a number, of a category
RIDGE = 3.0


def label_forecast(
    label: "Numbers",
    keys: "Mapping[str, Keys]",
    numbers: "Mapping[str, Numbers]",
    *,
    before: slice,
    day: slice,
) -> "Numbers | None":
    """Returns what is expected of the label of each row of `day`; None where too few are known before.

    Args:
        label: of each row of all days, NaN where it is not known.
        keys: hashes of the categories that it is forecast from.
        numbers: numbers that it is forecast from.
        before: rows that are learned from.
        day: rows to forecast.
    """
    known = before.start + np.flatnonzero(np.isfinite(label[before]))
    if len(known) < LEAST_LABELS:
        return None
    known = known[:: -(-len(known) // MOST_LEARNED)]
    target = label[known]
    if not np.isin(target, (0, 1)).all():  # so that no outlier leads
        target = np.clip(target, *np.quantile(target, (0.01, 0.99)))
    learned, wanted = [], []
    for codes in _codes(keys, numbers, known, day):
        for code in np.unique(codes[0]):
            learned.append(codes[0] == code)
            wanted.append(codes[1] == code)
    if not learned:
        return None
    indicators = np.stack(learned, axis=1).astype(np.float64)
    mean = indicators.mean(axis=0)
    indicators -= mean
    squares = indicators.T @ indicators + RIDGE * np.eye(len(mean))
    weights = np.linalg.solve(squares, indicators.T @ (target - target.mean()))
    return np.asarray((np.stack(wanted, axis=1) - mean) @ weights + target.mean(), dtype=np.float64)


def _codes(
    keys: "Mapping[str, Keys]", numbers: "Mapping[str, Numbers]", known: "NDArray[np.int64]", day: slice
) -> "Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]":
    """Yields the codes of a feature, of the rows that are learned from and of those of the day."""
    for values in [*numbers.values()][:MOST_FEATURES]:
        here = values[known]
        there = here[np.isfinite(here)]
        if len(there):
            edges = np.unique(np.quantile(there, np.linspace(0, 1, PARTS + 1)[1:-1]))
            yield tuple(  # type: ignore[misc]  # of two
                np.where(np.isfinite(part), np.searchsorted(edges, part, side="left"), -1)
                for part in (here, values[day])
            )
    for hashes in [*keys.values()][:MOST_FEATURES]:
        values, counts = np.unique(hashes[known], return_counts=True)
        frequent = np.sort(values[np.argsort(-counts, kind="stable")[:MOST_VALUES]])
        yield tuple(  # type: ignore[misc]  # of two
            np.where(np.isin(part, frequent), np.searchsorted(frequent, part), -1)
            for part in (hashes[known], hashes[day])
        )
