"""Slow drift that the night before found begins tonight's training cold, where a person asks for that."""

import os
from datetime import date, timedelta
from pathlib import Path

import pytest

from daybreak import runner
from daybreak.contract import records
from daybreak.contract.record_parts import Trend
from daybreak.contract.record_types import Night
from daybreak.storage import ledger
from daybreak.storage.home import Home
from tests.minimal_records import minimal_report, minimal_training

FIRST = date(2025, 1, 2)
FEWER = Trend(figure="rows", words="400 rows, 59 days before: 900", days=(), values=(), began=900, ended=400)

TRAINED = minimal_training(device="cpu")


def opened(home: Path, number: int, *, slow_drift: str) -> Night:
    os.chdir(home)
    day, setting = FIRST + timedelta(days=number), f"validate.slow_drift={slow_drift}"
    night = runner.run(Home.here(), "open", day=day, night=f"n{number}", set=[setting])
    assert isinstance(night, Night)
    return night


def closed(night: Night, *trends: Trend) -> None:
    report = minimal_report(num_rows=400, num_clean=400, trends=trends)
    records.write(report, records.RUN)
    if night.cold:
        records.write(TRAINED, records.RUN)
    ledger.commit_night(Home.here(), night, message="no data")


@pytest.mark.slow
def test_slow_drift_begins_the_next_night_cold_once(repository: Path) -> None:
    closed(opened(repository, 0, slow_drift="cold"), FEWER)
    night = opened(repository, 1, slow_drift="warn")
    assert night.cold == ""
    closed(night, FEWER)
    night = opened(repository, 2, slow_drift="cold")
    assert night.cold == f"the data drifts slowly: {FEWER.words}"
    closed(night, FEWER)
    assert opened(repository, 3, slow_drift="cold").cold == ""


@pytest.mark.slow
def test_a_night_whose_data_does_not_drift_leaves_the_next_one_warm(repository: Path) -> None:
    closed(opened(repository, 0, slow_drift="cold"), FEWER)
    closed(opened(repository, 1, slow_drift="warn"))
    assert opened(repository, 2, slow_drift="cold").cold == ""
