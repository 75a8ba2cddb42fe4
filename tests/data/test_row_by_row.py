"""Rules compiled to SQL fail the same rows as Great Expectations, which looks at one after the other."""

from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daybreak.data.partition_scan import PartitionScan
from daybreak.data.partitions import part_of
from daybreak.data.source import write_partition
from daybreak.data.suite import COPIES, HOUR, MIDNIGHT, OF_TYPE, Judge, Rule, load, rules_of
from daybreak.examples.shop.simulated_shop import Shop
from daybreak.examples.shop.sold_lines import LINES
from tests.data.shop_weeks import SUITE

DAY = date(2025, 3, 14)
MIDNIGHT_OF_DAY = datetime(2025, 3, 14)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

FAULTS: list[tuple[str, Any]] = [
    *((name, None) for name in LINES.columns),
    ("invoice", "C12"),
    ("invoice", "A500001"),
    ("invoice", "c500001"),
    ("invoice", "5000000000001"),
    ("item", "?? lost"),
    ("item", "BANK CHARGES"),
    ("item", ""),
    ("item", "22423é"),
    ("customer", "N/A"),
    ("customer", "-1"),
    ("country", "0"),
    ("country", "Saint-Barthélemy"),
    ("country", "Cocos (Keeling) Islands"),
    ("description", "CAFÃ© AU LAIT"),
    ("description", "A\x00B"),
    ("description", "5â€\x9d PLATE"),
    ("description", "\ufffd"),
    ("description", "naïve ☕"),
    ("quantity", 0),
    ("quantity", 10**9),
    ("quantity", -(10**5)),
    ("quantity", 100_001),
    ("price", 0.0),
    ("price", -1.0),
    ("price", 100_000.0),
    ("price", float("inf")),
    ("price", 1e-300),
    ("time", MIDNIGHT_OF_DAY),
    ("time", MIDNIGHT_OF_DAY + timedelta(days=1)),
    ("time", MIDNIGHT_OF_DAY - timedelta(microseconds=1)),
    ("time", datetime(2031, 1, 1)),
]

# One of each type that the shop's suite does not use, and arguments that it does not.
OTHERS = [
    ("expect_column_values_to_be_null", {"column": "customer"}),
    ("expect_column_values_to_be_in_set", {"column": "country", "value_set": ["EIRE", "Cote d'Or", None]}),
    ("expect_column_values_to_be_in_set", {"column": "quantity", "value_set": [1, 2, 12]}),
    ("expect_column_values_to_not_be_in_set", {"column": "item", "value_set": ["POST", "?? lost", '"']}),
    ("expect_column_values_to_be_between", {"column": "price", "max_value": 2.5, "strict_max": True}),
    ("expect_column_values_to_be_between", {"column": "hour", "min_value": 9.5}),
    ("expect_column_values_to_match_regex_list", {"column": "invoice", "regex_list": ["^C", "1$"]}),
    (
        "expect_column_values_to_match_regex_list",
        {"column": "invoice", "regex_list": ["^C", "1$"], "match_on": "all"},
    ),
    ("expect_column_value_lengths_to_be_between", {"column": "description", "min_value": 8, "max_value": 20}),
    (
        "expect_column_value_lengths_to_be_between",
        {"column": "description", "min_value": 7, "strict_min": True},
    ),
    ("expect_column_value_lengths_to_equal", {"column": "item", "value": 5}),
    ("expect_column_values_to_be_unique", {"column": "description"}),
    ("expect_compound_columns_to_be_unique", {"column_list": ["invoice", "item"]}),
    ("expect_compound_columns_to_be_unique", {"column_list": ["customer", "item"], "ignore_row_if": "never"}),
    (
        "expect_compound_columns_to_be_unique",
        {"column_list": ["customer", "item"], "ignore_row_if": "any_value_is_missing"},
    ),
    ("expect_column_pair_values_a_to_be_greater_than_b", {"column_A": "quantity", "column_B": "price"}),
    (
        "expect_column_pair_values_a_to_be_greater_than_b",
        {
            "column_A": "quantity",
            "column_B": "pieces",
            "or_equal": True,
            "ignore_row_if": "either_value_is_missing",
        },
    ),
    (
        "expect_column_pair_values_a_to_be_greater_than_b",
        {"column_A": "hour", "column_B": "price", "ignore_row_if": "neither"},
    ),
]


def planted(rows: pa.Table) -> pa.Table:
    """The rows as if all were of one day, with each fault in some of them, and a block that came twice."""
    rng = np.random.default_rng(7)
    columns = {name: np.array(rows[name].to_pylist(), dtype=object) for name in rows.column_names}
    for column, value in FAULTS:
        columns[column][rng.choice(len(rows), 300, replace=False)] = value
    arrays = [pa.array(columns[field.name].tolist(), field.type) for field in rows.schema]
    made = pa.table(arrays, schema=rows.schema)
    return pa.concat_tables([made, made.slice(1000, 500), made.slice(1200, 100)])


def in_pandas(rows: pa.Table) -> pd.DataFrame:
    """The columns that the rules need, each computed in pandas."""
    frame = rows.to_pandas()
    frame[MIDNIGHT] = frame[HOUR] = (frame["time"] - pd.Timestamp(DAY)) / pd.Timedelta(hours=1)
    frame[COPIES] = frame.duplicated().astype("int64")
    cancels = frame["invoice"].str.startswith("C").fillna(False).astype(bool)
    frame["pieces"] = frame["quantity"].where(~cancels, -frame["quantity"])
    return frame


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    folder = tmp_path_factory.mktemp("shop")
    shop = Shop(seed=3, start="2025-02-20", today="2025-03-15", late_days={}, orders_per_day=1200)
    parts = []
    for day in shop.days():
        shop.fetch(day, folder)
        part = pq.read_table(folder / "part.parquet")
        moved = part["time"].cast(pa.int64()).to_numpy() + int((DAY - day) / timedelta(microseconds=1))
        parts.append(part.set_column(4, "time", pa.array(moved).cast(pa.timestamp("us"))))
    return planted(pa.concat_tables(parts))


def test_rules_in_sql_fail_the_rows_that_great_expectations_fails(
    rows: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(rows) >= 100_000
    suite = load(SUITE)
    others = [Rule(name=f"rule {n}", type=kind, kwargs=kwargs) for n, (kind, kwargs) in enumerate(OTHERS)]
    rules = (*(rule for rule in rules_of(suite, LINES) if rule.type != OF_TYPE), *others)
    write_partition(rows, part_of(DAY).parent)
    judged = PartitionScan(LINES, suite, rules).judge(DAY)
    findings = Judge().findings(rules, in_pandas(rows))
    for number, (rule, finding) in enumerate(zip(rules, findings, strict=True)):
        failed = judged.bad[judged.failed[:, number]]
        assert failed.tolist() == sorted(finding.rows), rule.name
        assert len(failed), f"no fault is planted for {rule.name}"
    assert judged.num_rows == len(rows)


def test_the_figures_of_a_day_are_those_of_pandas(
    rows: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    suite = load(SUITE)
    write_partition(rows, part_of(DAY).parent)
    figures = PartitionScan(LINES, suite, rules_of(suite, LINES)).judge(DAY).figures
    frame = in_pandas(rows)
    cancels = frame["invoice"].str.startswith("C").fillna(False).astype(bool)
    assert figures == pytest.approx(
        {
            "num_rows": len(frame),
            "num_invoices": frame["invoice"].nunique(),
            "num_items": frame["item"].nunique(),
            "guests": frame["customer"].isna().mean(),
            "cancelled": cancels.mean(),
            "median_price": frame[~cancels]["price"].median(),
            "median_quantity": frame[~cancels]["quantity"].median(),
        }
    )
