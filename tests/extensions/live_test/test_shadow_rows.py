"""Rows that a challenger is asked in the shadow are held against the same hours of its training days."""

import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daybreak.contract import records
from daybreak.contract.record_types import Night
from daybreak.contract.sections import ValidateParams
from daybreak.data.partitions import CLEAN, part_of
from daybreak.extensions.live_test.shadow_rows import compared
from daybreak.storage.exposures import Exposure
from daybreak.storage.kept_rows import KeptRows
from daybreak.storage.traffic_log import Log, open_log
from daybreak.workloads.served_rows import as_records
from tests.minimal_records import minimal_night
from tests.toy.own.card_payments import Payments
from tests.workloads.payments import rows_of, write_clean

NIGHT_DAY = date(2025, 1, 12)
TODAY = NIGHT_DAY + timedelta(days=1)  # a Monday
PARAMS = ValidateParams(suite="suite.yaml")
Row = dict[str, Any]


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    """A night whose folder is the current one, with three weeks of clean rows."""
    monkeypatch.chdir(tmp_path)
    records.RUN.mkdir(parents=True)
    records.write(Payments.table, records.RUN)
    write_clean(NIGHT_DAY - timedelta(days=back) for back in range(21))
    return minimal_night(datetime(2025, 1, 12, 22, tzinfo=UTC), id=str(NIGHT_DAY), day=NIGHT_DAY)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log of serving."""
    return open_log(f"sqlite:///{tmp_path / 'serving.db'}")


def ask(
    log: Log,
    num: int,
    *,
    hours: range = range(24),
    day: date = TODAY,
    first: int = 0,
    **fed: Callable[[Row], Any],
) -> None:
    """Requests of a row each, that the champion answered while nobody met the challenger."""
    rows = as_records(rows_of(day, 24 * num).drop(["is_fraud"]))
    rows = [row for row in rows if datetime.fromisoformat(row["ts"]).hour in hours][:num]
    assert len(rows) == num
    log.exposures.write(
        [
            Exposure(
                id=f"{number:032x}",
                time=1e9 + number,
                experiment=str(NIGHT_DAY),
                unit=f"u{number}",
                arm="champion",
                version=1,
                share=0.0,
                propensity=1.0,
                items=(),
                latency_s=0.01,
                kept=KeptRows(
                    day=str(day),
                    rows=[{**row, **{name: of(row) for name, of in fed.items()}}],
                    predictions=json.dumps([{"prediction": 0.5}]),
                ),
            )
            for number, row in enumerate(rows, start=first)
        ],
        [],
    )


def said(log: Log, night: Night) -> str:
    check = compared(log, night, PARAMS)
    assert check and check.ok  # it stops nothing
    return check.text


def test_rows_of_a_few_hours_are_like_the_same_hours_of_training_days(log: Log, night: Night) -> None:
    ask(log, 150, hours=range(9, 13))
    assert said(log, night) == (
        "rows of 150 requests of 2025-01-13 are like the same hours of the Mondays that the challenger was "
        "made of"
    )


def test_a_column_that_clients_do_not_send_is_named_with_both_shares(log: Log, night: Night) -> None:
    ask(log, 150, hours=range(9, 13), country=lambda row: None)
    assert re.fullmatch(
        r"rows of 150 requests of 2025-01-13 are unlike the same hours of the Mondays that the challenger "
        r"was made of: country is missing in 100 % of the rows, not \d+\.?\d* % \(difference of missing "
        r"shares 0\.\d+, at most 0\.\d+ expected\); have them sent as the training data has them",
        said(log, night),
    )


def test_no_kept_rows_are_no_check_and_too_few_are_said(log: Log, night: Night) -> None:
    assert compared(log, night, PARAMS) is None
    ask(log, 20)
    assert said(log, night) == (
        "rows of 20 requests of 2025-01-13 are too few, 100 requests are compared; raise serving.keep_rows"
    )


def test_just_after_midnight_the_day_before_is_compared(log: Log, night: Night) -> None:
    ask(log, 150, hours=range(9, 13))
    ask(log, 10, hours=range(1), day=TODAY + timedelta(days=1), first=150)
    assert said(log, night) == (
        "rows of 150 requests of 2025-01-13 are like the same hours of the Mondays that the challenger was "
        "made of"
    )


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more"])
def test_a_file_of_a_training_day_that_is_torn_is_said_and_stops_nothing(
    log: Log, night: Night, content: bytes
) -> None:
    ask(log, 150, hours=range(9, 13))
    torn = part_of(TODAY - timedelta(days=7), CLEAN)
    torn.write_bytes(content)
    assert said(log, night).startswith(
        f"rows of 150 requests of 2025-01-13 are not compared: {torn} cannot be read: "
    )
