"""Which card payments are fraud? Labels are known two weeks later; an account's past week tells a lot."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from daybreak import (
    AUC,
    Batch,
    Bool,
    Calibration,
    Category,
    Float,
    Id,
    Int,
    Label,
    LogLoss,
    Past,
    State,
    Table,
    TableModel,
    TableWorkload,
    Time,
    days,
)


class Fraud(TableWorkload):
    """A score for each payment, from the payment and from what its account has paid before."""

    table = Table(
        time="time",
        unit="account",
        key=("payment",),
        columns={
            "payment": Id(),
            "account": Id(),
            "amount": Float(min=0),
            "shop": Category(nullable=True),
            "country": Category(),
            "online": Bool(),
            "time": Time(),
            "is_fraud": Int(min=0, max=1, nullable=True),
        },
        label=Label("is_fraud", ripe_after=days(14)),
    )
    metrics = (LogLoss(), AUC(), Calibration())
    looks_back = days(7)

    def features(self, rows: pa.Table, state: State, past: Past) -> Mapping[str, NDArray[Any]]:
        """Returns the columns by type, and `history`, float32 [b, 3]."""
        return {**super().features(rows, state, past), "history": history(rows, past.rows(self.looks_back))}

    def model(self, state: State) -> nn.Module:
        """Returns the network."""
        return Network(state)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns the cross entropy of each payment."""
        return binary_cross_entropy_with_logits(model(batch), batch["is_fraud"].float(), reduction="none")

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Returns the chance that each payment is fraud."""
        return {"prediction": model(batch).sigmoid()}


def history(rows: pa.Table, before: pa.Table) -> NDArray[np.float32]:
    """Returns for each payment how many its account has made before, and how its amount compares.

    Columns: log of 1 + that number, the mean log amount, and how far this log amount is above it; zeros for
    an account without a past. Shape [b, 3].
    """
    before = before.select(["account"]).append_column("size", pc.ln(pc.add(before["amount"], 1.0)))
    usual = before.group_by("account").aggregate([("size", "mean"), ("size", "count")])
    place = pc.index_in(rows["account"], value_set=usual["account"].combine_chunks())
    known = place.is_valid().to_numpy(zero_copy_only=False)
    mean = usual["size_mean"].take(place).fill_null(0).to_numpy()
    num = usual["size_count"].take(place).fill_null(0).to_numpy()
    above = known * (np.log1p(rows["amount"].to_numpy()) - mean)
    return np.stack([np.log1p(num), mean, above], axis=1).astype(np.float32)


class Network(nn.Module):
    """The default network for the payment itself; its history joins it before the last layers."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.payment = TableModel(state, num_outputs=32, hidden=128)
        self.head = nn.Sequential(nn.Linear(32 + 3, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch: Batch) -> Tensor:
        """Returns the logit of each payment, shape [b]."""
        out: Tensor = self.head(torch.cat([self.payment(batch), batch["history"]], dim=1))
        return out[:, 0]
