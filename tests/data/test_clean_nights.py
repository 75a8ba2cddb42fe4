"""Clean nights of the simulated shop pass, and real ones; bench_faults.py judges all real days."""

import os
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from daybreak.contract.record_types import Report
from daybreak.data.agenda import RULES
from daybreak.data.casts import conform
from daybreak.data.partitions import part_of
from daybreak.data.source import Files, write_partition
from daybreak.examples.shop.simulated_shop import Shop
from daybreak.examples.shop.sold_lines import LINES
from tests.data.shop_weeks import REPOSITORY, judge
from tests.data.test_source import THEIRS

DATA = Path(os.environ.get("DAYBREAK_DATA", REPOSITORY.parent / "shared" / "data"))
RETAIL = DATA / "online_retail/online_retail.parquet"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def bring_in(source: Any, day: date) -> None:
    """Writes a day as `ingest` does."""
    source.fetch(day, part_of(day).parent)
    rows = pq.read_table(part_of(day), partitioning=None)
    write_partition(conform(rows, LINES, origin=str(day)), part_of(day).parent)


def replay(source: Any, days: list[date], tonight: list[date]) -> list[Report]:
    """Nights in the current folder: the history with the first of them, then each day alone."""
    reports = []
    for day in days:
        bring_in(source, day) if day <= tonight[0] else None
    for day in tonight:
        first = day == tonight[0]
        if not first:
            bring_in(source, day)
        reports.append(judge(day, *(other for other in days if first and other < day)))
    return reports


def test_clean_nights_of_a_shop_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shop = Shop(seed=7, start=date(2025, 9, 1), today=date(2025, 11, 20), late_days={})
    days = shop.days()
    reports = replay(shop, days, days[-5:])
    assert all(report.drift for report in reports)
    assert max(report.num_quarantined / report.num_rows for report in reports) < 0.05


@pytest.mark.skipif(not RETAIL.exists(), reason="Online Retail is not here; set DAYBREAK_DATA")
def test_real_nights_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = Files(url=str(RETAIL), columns=THEIRS)
    days = sorted(source.days())
    first = next(n for n, day in enumerate(days) if day >= date(2011, 9, 1))
    reports = replay(source, days, days[first : first + 5])
    assert all(report.drift for report in reports)
    assert RULES.exists()
    assert 0 < max(report.num_quarantined / report.num_rows for report in reports[1:]) < 0.05
