"""Tables that are no shop's are validated as well: card payments, readings of meters, lines of text."""

from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.record_types import Report
from daybreak.contract.table import Bool, Category, Float, Id, Int, Label, Table, Text, Time, days
from daybreak.data.casts import conform
from daybreak.data.partitions import CLEAN, QUARANTINE, part_of
from daybreak.data.source import write_partition
from tests.data import test_day_history

TONIGHT = date(2025, 3, 14)
NUM_ROWS = 240

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

PAYMENTS = Table(
    time="at",
    unit="account",
    key=("id",),
    label=Label("fraud", ripe_after=days(14)),
    columns={
        "id": Id(),
        "account": Id(),
        "amount": Float(min=0, max=10_000),
        "mcc": Category(values=("a", "b")),
        "at": Time(),
        "online": Bool(nullable=True),
        "embedding": Float(size=2, min=0, max=1),
        "fraud": Int(min=0, max=1),
    },
)
READINGS = Table(
    time="hour",
    unit="meter",
    key=("meter", "hour"),
    columns={"meter": Id(), "hour": Time(), "kwh": Float(min=0, nullable=True)},
)
WEATHER = Table(time="hour", columns={"hour": Time(), "celsius": Float(nullable=True)})
LINES_OF_TEXT = Table(time="said", columns={"said": Time(), "text": Text(), "length": Int(min=0)})

Make = Callable[..., pa.Table]


def times(day: date) -> list[datetime]:
    midnight = datetime.combine(day, datetime.min.time())
    return [midnight + timedelta(minutes=6 * n) for n in range(NUM_ROWS)]


def payments(day: date) -> dict[str, list[Any]]:
    n = range(NUM_ROWS)
    known = (TONIGHT - day).days > 14
    return {
        "id": [f"{day}-{i}" for i in n],
        "account": [f"a{i % 40}" for i in n],
        "amount": [float(i % 90) for i in n],
        "mcc": ["ab"[i % 2] for i in n],
        "at": times(day),
        "online": [None if i % 3 else True for i in n],
        "embedding": [[0.0, 1.0] for i in n],
        "fraud": [int(i % 50 == 0) if known else None for i in n],
    }


def readings(day: date) -> dict[str, list[Any]]:
    n = range(NUM_ROWS)
    return {"meter": [f"m{i}" for i in n], "hour": times(day), "kwh": [i / 10 for i in n]}


def weather(day: date) -> dict[str, list[Any]]:
    return {"hour": times(day), "celsius": [None if i % 7 else i - 120 for i in range(NUM_ROWS)]}


def lines(day: date) -> dict[str, list[Any]]:
    texts = [f"line {i % 17}" * (1 + i % 3) for i in range(NUM_ROWS)]
    return {"said": times(day), "text": texts, "length": [len(text) for text in texts]}


def write(table: Table, rows: dict[str, list[Any]], day: date) -> None:
    write_partition(conform(pa.table(rows), table, origin=str(day)), part_of(day).parent)


def judge(table: Table, *late: date, suite: str = "", **params: Any) -> Report:
    return test_day_history.judge(TONIGHT, *late, suite=suite, table=table, **params)


def rows_of(folder: Path) -> pa.Table:
    return pq.read_table(part_of(TONIGHT, folder), partitioning=None)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("table", "make", "measured"),
    [
        (PAYMENTS, payments, ["amount", "mcc", "at", "online", "online nulls", "embedding", "(rows)"]),
        (READINGS, readings, ["hour", "kwh", "kwh nulls", "(rows)"]),
        (LINES_OF_TEXT, lines, ["said", "text", "length", "(rows)"]),
    ],
    ids=["payments", "readings", "text"],
)
def test_clean_days_pass_with_no_suite_at_all(
    table: Table, make: Callable[[date], dict[str, list[Any]]], measured: list[str]
) -> None:
    weeks = [TONIGHT - timedelta(weeks=n) for n in range(4)]
    for day in weeks:
        write(table, make(day), day)
    report = judge(table, *weeks[1:])
    assert (report.num_rows, report.num_quarantined) == (4 * NUM_ROWS, 0)
    assert {drift.column: drift.value for drift in report.drift} == dict.fromkeys(measured, 0)
    assert rows_of(CLEAN).equals(rows_of(Path("data/raw")))


MAKERS = {id(PAYMENTS): payments, id(READINGS): readings, id(WEATHER): weather, id(LINES_OF_TEXT): lines}
FAULTS: dict[str, tuple[Table, str, Any, str]] = {
    "no amount": (PAYMENTS, "amount", None, "amount is there"),
    "a negative amount": (PAYMENTS, "amount", -0.01, "amount is in range"),
    "an infinite reading": (READINGS, "kwh", float("inf"), "kwh is in range"),
    "an infinite temperature": (WEATHER, "celsius", float("-inf"), "celsius is a finite number"),
    "a temperature beyond float32": (WEATHER, "celsius", 3.5e38, "celsius is a finite number"),
    "an unknown category": (PAYMENTS, "mcc", "c", "mcc is a known value"),
    "a vector out of range": (PAYMENTS, "embedding", [0.5, 1.5], "embedding is in range"),
    "a label that is none": (PAYMENTS, "fraud", 2, "fraud is in range"),
    "a payment of tomorrow": (PAYMENTS, "at", datetime(2025, 3, 15), "at is on the day of its partition"),
    "a key that comes twice": (PAYMENTS, "id", f"{TONIGHT}-7", "id comes once"),
    "a column that is called hour": (
        READINGS,
        "hour",
        datetime(2025, 3, 13, 23, 59),
        "hour is on the day of its partition",
    ),
    "a negative length": (LINES_OF_TEXT, "length", -1, "length is in range"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_row_goes_to_quarantine_by_what_the_table_says(name: str) -> None:
    table, column, value, rule = FAULTS[name]
    made = MAKERS[id(table)](TONIGHT)
    made[column][3] = value
    write(table, made, TONIGHT)
    report = judge(table)
    bad = rows_of(QUARANTINE)
    assert set(bad["(rule)"].to_pylist()) == {rule}
    assert len(bad) == report.num_quarantined == (2 if "twice" in name else 1)
    assert {e.rule: e.num_failed for e in report.expectations if not e.success} == {rule: len(bad)}


def test_columns_that_are_named_as_ours_are_judged_kept_and_quarantined_as_they_came() -> None:
    names = ("rule", "rows", "self", "r0", "f0", "given", "wide", "judged", "unit", "day", "copies")
    table = Table(time="hour", columns={"hour": Time(), **{name: Float(min=0) for name in names}})
    made = {"hour": times(TONIGHT), **{name: [float(i) for i in range(NUM_ROWS)] for name in names}}
    made["rule"][3], made["f0"][4] = -1.0, -2.0
    write(table, made, TONIGHT)
    suite = """
figures: {largest: max(f0), least: min(r0)}
days:
  - {name: f0 is 239, type: expect_column_values_to_be_in_set, kwargs: {column: largest, value_set: [239]}}
"""
    judge(table, suite=suite)
    assert rows_of(QUARANTINE).select(["rule", "f0", "(rule)"]).to_pylist() == [
        {"rule": -1.0, "f0": 3.0, "(rule)": "rule is in range"},
        {"rule": 4.0, "f0": -2.0, "(rule)": "f0 is in range"},
    ]
    assert rows_of(CLEAN).column_names == ["hour", *names]


def test_what_is_not_a_number_is_null_and_no_fault() -> None:
    made = weather(TONIGHT)
    made["celsius"][3] = float("nan")
    write(WEATHER, made, TONIGHT)
    assert judge(WEATHER).num_quarantined == 0


SUITE = """
columns: {doubled: 2 * amount}
figures: {mean_amount: avg(doubled), accounts: count(DISTINCT account)}
days:
  - {name: few accounts, type: expect_column_values_to_be_between, column: account,
     kwargs: {column: accounts, max_value: 100}}
rows:
  - {name: doubled is small, type: expect_column_values_to_be_between, column: amount,
     kwargs: {column: doubled, max_value: 170}}
  - {name: amount is whole, python: "tests.data.test_other_tables:whole"}
drift: off
"""


def whole(rows: pa.Table) -> pa.ChunkedArray:
    return pc.equal(rows["amount"], pc.floor(rows["amount"]))


def test_columns_figures_and_rules_of_ones_own() -> None:
    made = payments(TONIGHT)
    made["amount"][5:7] = [6.5, 99.5]  # the second fails both
    write(PAYMENTS, made, TONIGHT)
    report = judge(PAYMENTS, suite=SUITE)
    rules = [row["(rule)"] for row in rows_of(QUARANTINE).sort_by("amount").to_pylist()]
    assert rules == ["amount is whole", *["doubled is small"] * (report.num_quarantined - 1)]
    counts = {e.rule: e.num_failed for e in report.expectations}
    assert counts["amount is whole"] == 2
    assert report.drift == ()
    assert all(not e.rule.startswith("drift") for e in report.expectations)
    with pytest.raises(
        DataError, match=r"'few accounts' fails \(accounts 40 on 2025-03-14\); fix the source"
    ):
        judge(PAYMENTS, suite=SUITE.replace("max_value: 100}", "max_value: 39}"))


IN_IBIS = """
columns:
  earlier: {ibis: "tests.data.test_other_tables:earlier"}
  twice: 2 * earlier
figures: {latest: {ibis: "tests.data.test_other_tables:latest"}, accounts: count(DISTINCT account)}
days:
  - {name: nobody pays often, type: expect_column_values_to_be_between, column: account,
     kwargs: {column: latest, max_value: LIMIT}}
rows:
  - {name: an account pays five times, type: expect_column_values_to_be_between, column: account,
     kwargs: {column: twice, max_value: 8}}
drift: off
"""


def earlier(rows: ir.Table) -> ir.Column:
    return ibis.row_number().over(group_by="account", order_by="at")


def latest(rows: ir.Table) -> ir.Scalar:
    return rows.earlier.max()


def test_columns_and_figures_may_be_expressions_of_ibis() -> None:
    write(PAYMENTS, payments(TONIGHT), TONIGHT)
    report = judge(PAYMENTS, suite=IN_IBIS.replace("LIMIT", "5"), max_quarantined=0.2)
    assert report.num_quarantined == 40  # each of 40 accounts pays six times
    assert set(rows_of(QUARANTINE)["(rule)"].to_pylist()) == {"an account pays five times"}
    with pytest.raises(DataError, match=r"'nobody pays often' fails \(latest 5 on 2025-03-14\)"):
        judge(PAYMENTS, suite=IN_IBIS.replace("LIMIT", "4"), max_quarantined=0.2)


def numbers(rows: pa.Table) -> pa.ChunkedArray:
    return rows["amount"]


def short(rows: pa.Table) -> pa.Array:
    return pa.array([True])


@pytest.mark.parametrize(
    ("suite", "reason"),
    [
        ("columns: {twice: 2 * amounts}", "the column 'twice' cannot be judged: Binder.*amounts.*; fix it"),
        ("figures: {mean: avg(}", "the figure 'mean' cannot be judged: Parser Error.*; fix it"),
        ("figures: {first: min(account)}", "the figure 'first' is 'a0', not a number"),
        (
            "rows: [{name: r, type: expect_column_values_to_match_regex, "
            "kwargs: {column: id, regex: '(?=a)'}}]",
            r"rule 'r' cannot be judged: .*invalid perl operator: \(\?=; fix it in the suite",
        ),
        (
            "rows: [{name: r, type: expect_column_values_to_be_null, kwargs: {column: customer}}]",
            "rule 'r' cannot be judged: Binder Error.*customer",
        ),
        ("columns: {number: account::INT}", "cannot be computed on 2025-03-14: Conversion Error.*; fix"),
        ("rows: [{name: r, python: 'tests.data.nowhere:f'}]", "rule 'r': tests.data.nowhere:f cannot be im"),
        ("rows: [{name: r, python: 'tests.data.test_other_tables:numbers'}]", "returns float64 of shape"),
        ("rows: [{name: r, python: 'tests.data.test_other_tables:short'}]", r"bool of shape \[1\] for 240"),
        ("days: [{name: r, type: expect_wonders}]", "Great Expectations has no expect_wonders"),
        (
            "days: [{name: r, type: expect_column_values_to_be_between, kwargs: {column: c, max_value: 1}}]",
            "rule 'r' cannot be judged",
        ),
    ],
)
def test_a_suite_that_cannot_be_computed_is_refused_in_a_sentence(suite: str, reason: str) -> None:
    write(PAYMENTS, payments(TONIGHT), TONIGHT)
    if suite.startswith("columns: {number"):
        suite += "\nfigures: {most: max(number)}"
    with pytest.raises(ParamsError, match=reason):
        judge(PAYMENTS, suite=suite)
    assert not CLEAN.exists()


def test_a_table_that_has_changed_since_is_named_by_column_and_day() -> None:
    write(READINGS, readings(TONIGHT), TONIGHT)
    changed = Table(time="hour", columns=dict(READINGS.columns) | {"kwh": Int(), "site": Id(nullable=True)})
    with pytest.raises(
        DataError, match=r"kwh is double on 2025-03-14, site is absent on 2025-03-14; declare"
    ):
        judge(changed)
