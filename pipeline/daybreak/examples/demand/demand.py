"""Predicts quantiles of each meter's reading in each hour, from the readings one, two and seven days ago."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from daybreak import (
    Batch,
    Float,
    Id,
    Label,
    Past,
    Pinball,
    State,
    Table,
    TableModel,
    TableWorkload,
    Time,
    days,
)

if TYPE_CHECKING:
    import ibis.expr.types as ir

QUANTILES = (0.1, 0.5, 0.9)
LAGS = (1, 2, 7)  # days


class Demand(TableWorkload):
    """Three quantiles of each reading, from the clock, the temperature and the meter's past."""

    table = Table(
        time="time",
        unit="meter",
        key=("meter", "time"),
        columns={"meter": Id(), "time": Time(), "kwh": Float(min=0), "temperature": Float()},
        label=Label("kwh"),
    )
    metrics = (Pinball(quantiles=QUANTILES),)
    looks_back = days(8)

    def fit(self, rows: "ir.Table") -> State:
        """Returns the quantiles of the columns, and the mean reading."""
        return {**super().fit(rows), "mean": np.array(rows["kwh"].mean().to_pyarrow().as_py())}

    def features(self, rows: pa.Table, state: State, past: Past) -> Mapping[str, NDArray[Any]]:
        """Returns the columns by type, and `lags` and `known`, [b, 3]: readings of the same hour before."""
        values = lags(rows, past.rows(self.looks_back))
        known = np.isfinite(values)
        return {**super().features(rows, state, past), "lags": np.where(known, values, 0), "known": known}

    def model(self, state: State) -> nn.Module:
        """Returns the network."""
        return Network(state)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns the pinball loss of each reading, as a share of the mean reading."""
        mean: Any = model.mean
        over = (batch["kwh"].float()[:, None] - model(batch)) / mean
        share = torch.tensor(QUANTILES, device=over.device)
        return torch.maximum(share * over, (share - 1) * over).mean(dim=1)

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Returns the quantiles, rising, kWh, shape [b, 3]."""
        return {"prediction": model(batch).sort(dim=1).values}


def lags(rows: pa.Table, before: pa.Table) -> NDArray[np.float32]:
    """Returns what the meter of each row read in the same hour LAGS days before; NaN: nothing. [b, 3]."""
    meters = pc.unique(before["meter"])
    of_before, of_rows = (
        pc.fill_null(pc.index_in(part["meter"], value_set=meters), -1).to_numpy() for part in (before, rows)
    )
    then, now = (part["time"].to_numpy().astype("datetime64[h]").astype(np.int64) for part in (before, rows))
    first = min(then.min(initial=0), now.min(initial=0) - 24 * max(LAGS)) if len(then) else 0
    wanted = now[:, None] - 24 * np.array(LAGS) - first
    if not len(then):
        return np.full(wanted.shape, np.nan, dtype=np.float32)
    readings = np.full((len(meters) + 1, max(then.max() - first, wanted.max()) + 1), np.nan, dtype=np.float32)
    readings[of_before, then - first] = before["kwh"].to_numpy()
    return np.asarray(readings[of_rows[:, None], wanted])


class Network(nn.Module):
    """Corrects the mean of the known lags, by a share of it that depends on the row and the lags."""

    mean: Tensor

    def __init__(self, state: State) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(float(state["mean"])), persistent=False)
        self.row = TableModel(state, num_outputs=32, hidden=64)
        self.head = nn.Sequential(nn.Linear(32 + 2 * len(LAGS), 64), nn.ReLU(), nn.Linear(64, len(QUANTILES)))

    def forward(self, batch: Batch) -> Tensor:
        """Returns the quantiles, kWh, shape [b, 3]."""
        lags, known = batch["lags"].float(), batch["known"].float()
        usual = lags.sum(dim=1) / known.sum(dim=1).clamp(min=1)
        scale = torch.where(known.any(dim=1), usual.clamp(min=1e-3), self.mean)[:, None]
        inputs = torch.cat([self.row(batch), lags / scale, known], dim=1)
        out: Tensor = scale * (1 + self.head(inputs))
        return out
