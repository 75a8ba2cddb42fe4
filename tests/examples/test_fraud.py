"""Payments: deterministic, with labels that come late, and an account's past that tells of fraud."""

from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from daybreak.contract.errors import DataError, ParamsError
from daybreak.data.features import past_of
from daybreak.data.partitions import PART
from daybreak.examples.fraud.fraud import Fraud
from daybreak.examples.fraud.payments import RIPE_DAYS, Payments
from daybreak.workloads.metrics import AUC
from tests.examples.daily import learned, made, one_by_one, reader

TODAY = date(2025, 7, 1)
DAY = TODAY - timedelta(days=RIPE_DAYS + 1)  # the newest whose labels are known


def payments(**arguments: object) -> Payments:
    return Payments(**({"seed": 7, "today": TODAY, "rows_per_day": 800} | arguments))  # type: ignore[arg-type]


def test_labels_are_null_until_they_are_two_weeks_old(tmp_path: Path) -> None:
    for number in range(2):
        payments().fetch(DAY + timedelta(days=number), tmp_path / str(number))
    known, unknown = (pq.read_table(tmp_path / str(number) / PART)["is_fraud"] for number in range(2))
    assert known.null_count == 0 and unknown.null_count == len(unknown)


def test_about_one_in_a_hundred_payments_is_fraud_and_pays_more_than_the_account_does(tmp_path: Path) -> None:
    rows, _, samples = made(Fraud(), payments(rows_per_day=4000), DAY, tmp_path)
    assert rows.schema.equals(Fraud.table.schema())
    fraud = samples["is_fraud"]
    assert 0.005 < fraud.mean() < 0.02
    area = AUC()
    by_history = area.values(samples["history"][:, 2], fraud).mean()
    assert by_history > 0.8
    assert by_history > area.values(rows["amount"].to_numpy(), fraud).mean() + 0.05


def test_features_of_one_payment_are_those_it_has_among_others(tmp_path: Path) -> None:
    workload, source = Fraud(), payments(rows_per_day=300)
    rows, state, samples = made(workload, source, DAY, tmp_path)
    assert samples["history"].shape == (len(rows), 3) and samples["history"].any(axis=0).all()
    past = past_of(workload, DAY, source.days(), read=reader(tmp_path))
    assert one_by_one(workload, rows, state, past, number=20)


def test_an_account_without_a_past_has_zeros(tmp_path: Path) -> None:
    first = payments(start=DAY)
    _, _, samples = made(Fraud(), first, DAY, tmp_path)
    assert not samples["history"][:, :2].any() and np.isfinite(samples["history"]).all()


def test_a_few_updates_lower_the_loss(tmp_path: Path) -> None:
    workload = Fraud()
    _, state, samples = made(workload, payments(), DAY, tmp_path)
    before, after = learned(workload, state, samples, updates=20)
    assert after < before / 2


def test_a_day_that_is_not_there_and_a_source_of_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Payments has no rows of 2025-07-01; ask for a day of"):
        payments().fetch(TODAY, tmp_path)
    with pytest.raises(ParamsError, match="give it at least one"):
        payments(rows_per_day=0)
