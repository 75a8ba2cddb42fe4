"""Payments of accounts, some of which are frauds: workloads of a table."""

import time
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from daybreak import (
    AUC,
    Category,
    Float,
    Id,
    Int,
    Label,
    LogLoss,
    Past,
    Table,
    TableModel,
    TableWorkload,
    Time,
    days,
)


class Payments(TableWorkload):
    """Tells how likely a payment is a fraud, by the default features."""

    table = Table(
        time="ts",
        unit="account",
        columns={
            "ts": Time(),
            "account": Id(),
            "amount": Float(min=0),
            "mcc": Category(),
            "country": Category(nullable=True),
            "retries": Int(min=0, nullable=True),
            "is_fraud": Int(min=0, max=1, nullable=True),
        },
        label=Label("is_fraud", ripe_after=days(2)),
        zone="Europe/Berlin",
    )
    metrics = (LogLoss(), AUC())

    def model(self, state: Any) -> nn.Module:
        return TableModel(state, hidden=32)

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return binary_cross_entropy_with_logits(
            model(batch)[:, 0], batch["is_fraud"].float(), reduction="none"
        )

    def predict(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        logits = model(batch)
        return {"prediction": logits[:, 0].sigmoid(), "parts": logits.repeat(1, 2)}


class PastPayments(Payments):
    """Knows an account's payments in the days before, and its frauds that are known by then.

    It fails on the code `fails`, and is late for the code `late`.
    """

    looks_back = days(3)

    def features(self, rows: pa.Table, state: Any, past: Past) -> Mapping[str, Any]:
        if "fails" in rows["mcc"].to_pylist():
            raise ValueError("mcc fails")
        if "late" in rows["mcc"].to_pylist():
            time.sleep(1)
        before = past.rows()
        known = before.group_by("account").aggregate([("amount", "sum"), ("is_fraud", "sum")])
        place = pc.fill_null(pc.index_in(rows["account"], value_set=known["account"].combine_chunks()), -1)
        at = place.to_numpy()
        sums = {}
        for name in ("amount_sum", "is_fraud_sum"):
            values = np.array([*known[name].to_pylist(), 0.0], dtype=float)
            sums[name] = np.nan_to_num(values)[at]
        return {**super().features(rows, state, past), "before": np.stack(list(sums.values()), axis=1)}


class NextPayments(PastPayments):
    """Predicts a payment of each account of the newest day for noon of the next one, in two tables."""

    def score_rows(self, day: date, past: Past) -> Iterator[pa.Table]:
        accounts = sorted(set(past.rows(days(1))["account"].to_pylist()))
        noon = datetime.combine(day, datetime.min.time()) + timedelta(days=1, hours=12)
        for some in (accounts[:2], accounts[2:]):
            num = len(some)
            yield pa.table(
                {"ts": [noon] * num, "account": some, "amount": [10.0] * num, "mcc": ["5411"] * num}
            )
