"""No row is lost on the way: each is clean, or in quarantine with the rule that it failed."""

import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daybreak.contract.errors import DataError
from daybreak.data.bad_cells import with_delivered_texts
from daybreak.data.casts import conform
from daybreak.data.partitions import CLEAN, QUARANTINE, RAW, part_of, partitions
from daybreak.data.quarantine import REFUSED, clean_rows
from daybreak.data.source import write_partition
from daybreak.examples.shop.sold_lines import LINES
from tests.data.shop_weeks import TONIGHT, Change, change, judge, put, rows_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def undisturbed(shop_weeks: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, int]]:
    """Rows that tonight's own quarantine takes, and of those the ones of each rule."""
    folder = tmp_path_factory.mktemp("undisturbed") / "night"
    shutil.copytree(shop_weeks, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        report = judge(TONIGHT)
        caught = rows_of(QUARANTINE, TONIGHT).get("(rule)", pd.Series(dtype=str)).value_counts()
    return report.num_quarantined, caught.to_dict()


def block_twice(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame, frame.iloc[: round(0.03 * len(frame))]])


# One of each kind; that each rule fails the rows that it has to is in test_row_by_row.py.
QUARANTINED: dict[str, tuple[Change, str]] = {
    "no price": (put("price", None, 0.02), "price is there"),
    "a block twice": (block_twice, "a line comes once"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUARANTINED)
def test_a_corrupt_row_goes_to_quarantine_with_its_rule(
    name: str, in_shop_weeks: Path, undisturbed: tuple[int, dict[str, int]]
) -> None:
    corrupt, rule = QUARANTINED[name]
    num_quarantined, caught = undisturbed
    num_rows = len(rows_of(RAW, TONIGHT))
    change(corrupt)
    report = judge(TONIGHT, max_quarantined=0.1)
    assert report.num_clean + report.num_quarantined == report.num_rows == len(rows_of(RAW, TONIGHT))
    bad = rows_of(QUARANTINE, TONIGHT)
    assert (bad["(rule)"] == rule).sum() >= caught.get(rule, 0) + 0.008 * num_rows
    assert report.num_quarantined > num_quarantined


@pytest.mark.slow
def test_the_bad_rows_of_a_night_that_is_stopped_are_kept_until_it_passes(in_shop_weeks: Path) -> None:
    judge(TONIGHT)
    before = rows_of(QUARANTINE, TONIGHT)
    change(put("price", -1.0, 0.2))
    with pytest.raises(DataError, match=r"\(\d+\.\d+ %\) fail the rules, more than 0\.01 %"):
        judge(TONIGHT, max_quarantined=0.0001)
    bad = rows_of(REFUSED, TONIGHT)
    assert (bad["price"] == -1.0).sum() > 0.15 * len(rows_of(RAW, TONIGHT))
    assert set(bad["(rule)"]) >= {"price is in range"}
    pd.testing.assert_frame_equal(rows_of(QUARANTINE, TONIGHT), before)
    judge(TONIGHT, max_quarantined=1, max_drift=1, false_alarms_per_year=0)
    assert not REFUSED.exists()
    assert len(rows_of(QUARANTINE, TONIGHT)) == len(bad)


@pytest.mark.slow
def test_clean_and_quarantined_rows_are_the_rows_that_came_in(in_shop_weeks: Path) -> None:
    judge(TONIGHT)
    for day in partitions(RAW):
        raw, clean, bad = (rows_of(folder, day) for folder in (RAW, CLEAN, QUARANTINE))
        both = pd.concat([clean, bad.drop(columns="(rule)")]) if len(bad) else clean
        columns = list(LINES.columns)
        pd.testing.assert_frame_equal(
            both.sort_values(columns).reset_index(drop=True), raw.sort_values(columns).reset_index(drop=True)
        )


@pytest.mark.slow
def test_a_row_with_a_bad_cell_goes_to_quarantine_with_the_text_as_delivered(in_shop_weeks: Path) -> None:
    rows = pq.read_table(part_of(TONIGHT), partitioning=None)
    prices = ["free", *rows["price"].cast(pa.string()).to_pylist()[1:]]
    delivered = rows.set_column(rows.column_names.index("price"), "price", pa.array(prices))
    part_of(TONIGHT).unlink()
    write_partition(conform(delivered, LINES, origin="tonight"), part_of(TONIGHT).parent)
    report = judge(TONIGHT)
    assert (report.num_rows, report.num_clean + report.num_quarantined) == (len(rows), len(rows))
    bad = rows_of(QUARANTINE, TONIGHT)
    of_cell = bad[bad["(rule)"] == "price is a Float"]
    assert [with_delivered_texts(row)["price"] for row in of_cell.to_dict("records")] == ["free"]
    assert pq.read_schema(part_of(TONIGHT, CLEAN)).equals(LINES.schema())
    assert {one.rule: one.num_failed for one in report.expectations}["price is a Float"] == 1


def test_a_partition_is_replaced_and_never_written_into(in_shop_weeks: Path) -> None:
    digest = judge(TONIGHT).digest
    part = part_of(TONIGHT, CLEAN)
    (in_shop_weeks / "cache.parquet").hardlink_to(part)
    part.chmod(0o444)
    content = part.read_bytes()
    change(put("price", 0.0, 0.02))
    assert judge(TONIGHT).digest != digest
    assert (in_shop_weeks / "cache.parquet").read_bytes() == content


def test_a_partition_is_opened_once_for_all_its_columns(in_shop_weeks: Path) -> None:
    day = partitions(CLEAN)[0]
    values = clean_rows(day, {})
    part_of(day, CLEAN).unlink()
    assert len(values("price")) == len(values("quantity"))
