"""Reads and writes `data/run/scores.npy`: the score of each model on each held-out sample.

The file is a structured array of shape [n], one field a column:

    challenger, champion                 the score
    metric/NAME, champion/NAME           the workload's other metrics, of either model
    anchor, predecessor, candidate       the score of earlier versions, and anchor/NAME and so on
    baseline/NAME                        the score of a simple rule
    slice/NAME                           bool: is the sample in the slice?
    prediction/NAME                      what the challenger predicts, shape [n, ...], where it has metrics
                                         or serves rows
    (unit)                               int64: samples of one number belong together
"""

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daybreak.contract import records
from daybreak.contract.errors import DataError
from daybreak.contract.record_types import Evaluation

SCORES = records.RUN / "scores.npy"
Columns = dict[str, NDArray[Any]]


def read_scores(path: Path = SCORES) -> Columns | None:
    """Returns the columns of scores.npy by name, None where the file is missing; never reads a pickle."""
    try:
        table = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        return None
    except (ValueError, EOFError) as error:
        raise DataError(f"{path} is not a valid score file: {error}; run evaluate again") from None
    return {name: table[name] for name in table.dtype.names or ()}


def write_scores(columns: Mapping[str, NDArray[Any]], num_samples: int, path: Path = SCORES) -> None:
    """Writes the columns, shape [num_samples, ...] each, as one structured array, whole or not at all."""
    kind = [(name, values.dtype, values.shape[1:]) for name, values in columns.items()]
    table = np.zeros(num_samples, dtype=kind)
    for name, values in columns.items():
        table[name] = values
    records.replace_file(path, lambda file: np.save(file, table, allow_pickle=False))


def of_days_after(
    seen: date | None, columns: Columns, evaluation: Evaluation
) -> tuple[tuple[date, ...], Columns]:
    """Returns the held-out days after `seen`, and the columns of their samples.

    Where the workload does not tell which samples are of which day, all days count or none.
    """
    days = tuple(day for day in evaluation.days if seen is None or day > seen)
    if days == evaluation.days:
        return days, columns
    if not evaluation.num_by_day:
        return (), {}
    is_new = np.repeat([day in days for day in evaluation.days], evaluation.num_by_day)
    return days, {name: values[is_new] for name, values in columns.items()}


def with_prefix(columns: Mapping[str, NDArray[Any]], prefix: str) -> Columns:
    """Returns the columns `prefix/NAME` by NAME."""
    return {
        name.removeprefix(f"{prefix}/"): values
        for name, values in columns.items()
        if name.startswith(f"{prefix}/")
    }
