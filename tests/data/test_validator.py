"""Corruptions are caught, clean nights pass, and no row is lost on the way."""

import re
import shutil
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daybreak.contract import records
from daybreak.contract.errors import DataError
from daybreak.data import suite
from daybreak.data.casts import conform
from daybreak.data.data_docs import DOCS
from daybreak.data.partitions import CLEAN, QUARANTINE, RAW, part_of, partitions
from daybreak.data.source import write_partition
from daybreak.examples.shop.sold_lines import LINES
from tests.data.shop_weeks import SUITE, TONIGHT, Change, change, judge, put, some

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def times(column: str, factor: float, share: float = 1) -> Change:
    def corrupt(frame: pd.DataFrame) -> None:
        frame.loc[some(frame, share), column] *= factor

    return corrupt


def swap(one: str, other: str) -> Change:
    return lambda frame: frame.assign(**{one: frame[other], other: frame[one]})


REFUSED: dict[str, tuple[Change, str]] = {
    "a tenth without price": (put("price", None, 0.1), "worst columns: price"),
    "quantity as text": (lambda f: f.assign(quantity=f["quantity"].astype(str)), "quantity is .*string"),
    "a column dropped": (lambda f: f.drop(columns="country"), "country is absent"),
    "a column renamed": (lambda f: f.rename(columns={"price": "cost"}), "cost is new, price is absent"),
    "items and descriptions swapped": (swap("item", "description"), "worst columns: item"),
    "an unknown country floods in": (put("country", "Atlantis", 0.6), "country 0"),
    "all customers missing": (lambda f: f.assign(customer=None), "not nearly all are guests"),
    "the day is cut short": (lambda f: f.head(15), "a day has enough rows"),
    "prices in pence": (times("price", 100), "price"),
    "one item alone": (put("item", "10002", 1), "a day sells several items|item"),
    "all of it cancelled": (
        lambda f: f.assign(invoice="C" + f["invoice"].str[-6:], quantity=-f["quantity"].abs()),
        "not half is cancelled",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_a_corrupt_day_stops_the_night_and_changes_nothing(name: str, in_shop_weeks: Path) -> None:
    corrupt, reason = REFUSED[name]
    change(corrupt)
    before = records.digest(CLEAN), records.digest(QUARANTINE)
    with pytest.raises(DataError, match=reason):
        judge(TONIGHT)
    assert (records.digest(CLEAN), records.digest(QUARANTINE)) == before
    assert (DOCS / "index.html").exists()


def test_more_bad_cells_than_may_be_quarantined_stop_the_night(in_shop_weeks: Path) -> None:
    rows = pq.read_table(part_of(TONIGHT), partitioning=None)
    prices = [str(price) if n % 3 else "free" for n, price in enumerate(rows["price"].to_pylist())]
    delivered = rows.set_column(rows.column_names.index("price"), "price", pa.array(prices))
    part_of(TONIGHT).unlink()
    write_partition(conform(delivered, LINES, origin="tonight"), part_of(TONIGHT).parent)
    with pytest.raises(DataError, match=r"rows .* fail the rules, more than .*; worst columns: price"):
        judge(TONIGHT)


@pytest.mark.slow
def test_the_data_docs_show_our_names_of_the_rules_and_need_no_network(in_shop_weeks: Path) -> None:
    judge(TONIGHT)
    text = (DOCS / "rows.html").read_text()
    assert all(rule.name in text for rule in suite.rules_of(suite.load(SUITE), LINES))
    pages = list(DOCS.rglob("*.html"))
    assert sorted(one.name for one in pages) == ["days.html", "index.html", "rows.html", "schema.html"]
    for one in pages:
        linked = re.findall(r"(?:href|src)=['\"]?([^'\" >]+)", one.read_text())
        assert all((one.parent / link).exists() for link in linked if not link.startswith("#")), linked
        assert "<script" not in one.read_text()
        assert "url(" not in one.read_text()


@pytest.mark.slow
def test_validating_again_changes_no_byte_whatever_a_killed_call_left(in_shop_weeks: Path) -> None:
    digest = judge(TONIGHT).digest
    part_of(TONIGHT, CLEAN).with_name(".part.parquet").write_bytes(b"torn")
    assert judge(TONIGHT).digest == digest


@pytest.mark.slow
def test_without_earlier_weekdays_drift_is_skipped_and_said_so(in_shop_weeks: Path) -> None:
    shutil.rmtree(CLEAN)
    for day in partitions(RAW):
        if day < TONIGHT - timedelta(days=10):
            shutil.rmtree(part_of(day).parent)
    report = judge(TONIGHT)
    assert report.drift == ()
    assert "drift: skipped, 1 of 2 earlier Fridays to compare with" in {e.rule for e in report.expectations}
