"""A table of rows in memory, whose label an estimator can learn, for the tests of estimators."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from daybreak.contract.table import Category, Float, Int, Label, Table, Time
from daybreak.contract.workload import Split, State
from daybreak.workloads.columns import CATEGORIES, MISSING, NUMBERS
from daybreak.workloads.estimator_workload import EstimatorWorkload
from daybreak.workloads.metrics import LogLoss

NUM_SAMPLES = 600


def rows(*, num: int = NUM_SAMPLES, num_classes: int = 2, seed: int = 0) -> pa.Table:
    """Rows of one day: two numbers, of which some are null, a category, and what follows from them."""
    draw = np.random.default_rng(seed)
    x, kind = draw.normal(size=(num, 2)), draw.integers(0, 3, size=num)
    score = x[:, 0] + x[:, 0] * x[:, 1] + kind + draw.normal(size=num) / 2
    label = np.digitize(score, np.quantile(score, np.linspace(0, 1, num_classes + 1)[1:-1]))
    return pa.table(
        {
            "time": [datetime(2026, 1, 1) + timedelta(minutes=number) for number in range(num)],
            "a": pa.array(x[:, 0]),
            "b": pa.array(np.where(draw.random(num) < 0.1, None, x[:, 1]), pa.float64()),
            "kind": pa.array([f"k{number}" for number in kind]),
            "label": pa.array(label, pa.int64()),
        }
    )


class InMemory:
    """Samples as `prepare` makes them."""

    def __init__(self, workload: EstimatorWorkload, made: pa.Table) -> None:
        self.state: State = {"values_kind": np.array(["k0", "k1", "k2"])}
        features: Any = workload.features(made.drop_columns(["label"]), self.state, None)  # type: ignore[arg-type]
        self._columns = {name: torch.from_numpy(features[name]) for name in (NUMBERS, MISSING, CATEGORIES)}
        self._columns["label"] = torch.tensor(made["label"].to_pylist())

    def __len__(self) -> int:
        return len(self._columns["label"])

    def column(self, name: str) -> Any:
        return self._columns[name].numpy()

    def __getitems__(self, indices: Any) -> dict[str, Tensor]:
        return {name: values[np.asarray(indices)] for name, values in self._columns.items()}


class Trees(EstimatorWorkload):
    """A workload with the estimator that it is given."""

    metrics = (LogLoss(),)

    def __init__(self, estimator: Any, *, num_classes: int = 2, num: int = NUM_SAMPLES) -> None:
        self._estimator, self._rows = estimator, rows(num=num, num_classes=num_classes)
        self.table = Table(  # type: ignore[misc]
            time="time",
            columns={
                "time": Time(),
                "a": Float(),
                "b": Float(nullable=True),
                "kind": Category(),
                "label": Int(min=0, max=num_classes - 1),
            },
            label=Label("label"),
        )

    def estimator(self, state: State) -> Any:
        return self._estimator()

    def dataset(self, folder: Path, split: Split) -> Any:
        return InMemory(self, self._rows)
