"""The shop's cleaning rules against simple ones, on two engines, and its arrays against their contract."""

import json
import random
import sqlite3
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.contract import records
from pipeline.contract.errors import DataError, ParamsError
from pipeline.contract.params import Plug, PrepareParams, PrepareSections
from pipeline.contract.records import Dataset, Night, Report
from pipeline.contract.workload import EPOCH
from pipeline.data.prepare import ARRAYS, CLEAN, prepare
from pipeline.examples.shop import sold_lines as module
from pipeline.examples.shop.sold_lines import LINES, stable_key

ibis = pytest.importorskip("ibis")
pytestmark = pytest.mark.filterwarnings(  # of ibis 12, seen 2026-11
    "ignore:fetch_arrow_table:DeprecationWarning", "ignore:The 'future.infer_string' option"
)

SCHEMA = LINES.schema()
USE = "pipeline.examples.shop.regression:Regression"
DUCK = ibis.duckdb.connect()
FIRST = date(2025, 1, 6)
HELD_OUT = (FIRST - EPOCH).days + 3
Row = dict[str, Any]


def row(
    day: int, customer: str | None, item: str, quantity: int, *, minute: int = 0, price: float = 1.0
) -> Row:
    time = datetime(2025, 1, 6, 9) + timedelta(days=day, minutes=minute)
    number = f"{500000 + day * 1000 + minute}"
    return {
        "invoice": f"C{number}" if quantity < 0 else number, "item": item, "description": f"THE {item}",
        "quantity": quantity, "time": time, "price": price, "customer": customer, "country": "EIRE",
    }  # fmt: skip


def night(day: int) -> Night:
    now = datetime(2025, 2, 1, tzinfo=UTC)
    return Night(
        id="n", day=FIRST + timedelta(days=day), started_at=now, train_until=now, decide_until=now,
        budget_usd=1, trigger="test", code_commit="", previous="",
    )  # fmt: skip


def sections(*, leave_out_items: tuple[str, ...] = (), **params: Any) -> PrepareSections:
    use = "pipeline.examples.shop.recommender:Recommender" if leave_out_items else USE
    plug = Plug(use=use, **({"leave_out_items": leave_out_items} if leave_out_items else {}))
    return PrepareSections(workload=plug, prepare=PrepareParams(**params))


def run(rows: list[Row], *, day: int, **params: Any) -> Dataset:
    """Write the rows as clean partitions in the current folder and prepare them."""
    by_day: dict[date, list[Row]] = {}
    for line in rows:
        by_day.setdefault(line["time"].date(), []).append(line)
    for of, lines in by_day.items():
        folder = CLEAN / f"day={of}"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(lines, SCHEMA), folder / "part.parquet")
    report = Report(
        num_rows=len(rows), num_clean=len(rows), num_quarantined=0, expectations=(), drift=(),
        digest=records.digest(CLEAN),
    )  # fmt: skip
    return prepare(night(day), report, sections(**params))


def array(name: str) -> Any:
    return np.load(ARRAYS / f"{name}.npy", mmap_mode="r")


def codes(name: str) -> list[str]:
    return list(pq.read_table(ARRAYS / f"{name}.parquet")["code"].to_pylist())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def netted(rows: list[Row], path: Path) -> list[Row]:
    """What `netted` leaves, on DuckDB."""
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
    lines = DUCK.read_parquet(path)
    return list(module.netted(module.dated(lines), held_out=HELD_OUT).to_pyarrow().to_pylist())


def popped(rows: list[Row]) -> list[tuple[str, int]]:
    """The same with a list as the stack: invoice and pieces of each line that stays sold."""
    stacks: dict[Any, list[list[Any]]] = {}
    for line in sorted(rows, key=lambda line: line["time"]):
        day = (line["time"].date() - EPOCH).days
        stack = stacks.setdefault((line["customer"], line["item"], day if day >= HELD_OUT else 0), [])
        if line["quantity"] > 0:
            stack.append([line["invoice"], line["quantity"]])
            continue
        left = -line["quantity"] if line["customer"] else 0
        while left and stack:
            taken = min(left, stack[-1][1])
            left -= taken
            stack[-1][1] -= taken
            if not stack[-1][1]:
                stack.pop()
    return sorted((invoice, pieces) for stack in stacks.values() for invoice, pieces in stack)


lines = st.builds(
    row, st.integers(0, 5), st.sampled_from(["1", "2", "3", "4", "5", None]),
    st.sampled_from(["10002", "10003"]), st.integers(-6, 6).filter(bool), minute=st.integers(0, 400),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=12)
@given(rows=st.lists(lines, min_size=1, max_size=100, unique_by=lambda line: line["time"]))
def test_cancellations_pop_the_most_recent_purchases(rows: list[Row], tmp_path_factory: Any) -> None:
    left = netted(rows, tmp_path_factory.mktemp("lines") / "rows.parquet")
    assert sorted((line["invoice"], line["quantity"]) for line in left) == popped(rows)


@pytest.mark.slow
@settings(max_examples=6)
@given(rows=st.lists(lines, min_size=1, max_size=100))
def test_netting_never_adds_a_piece_and_takes_no_more_than_was_cancelled(
    rows: list[Row], tmp_path_factory: Any
) -> None:
    left = sum(line["quantity"] for line in netted(rows, tmp_path_factory.mktemp("lines") / "rows.parquet"))
    bought = sum(line["quantity"] for line in rows if line["quantity"] > 0)
    cancelled = -sum(line["quantity"] for line in rows if line["quantity"] < 0)
    assert bought - cancelled <= left <= bought


def test_a_cancellation_on_a_held_out_day_does_not_reach_back(tmp_path: Path) -> None:
    rows = [row(0, "1", "10002", 5), row(3, "1", "10002", 2), row(3, "1", "10002", -4, minute=9)]
    assert [line["quantity"] for line in netted(rows, tmp_path / "rows.parquet")] == [5]


@pytest.mark.slow
def test_what_is_no_product_is_left_out() -> None:
    rows = [row(d, "1", "10002", 1) for d in (0, 1)]
    other = ["POST", "m", "gift_0001_20", "TEST001", "BANK CHARGES", "22222"]
    rows += [row(0, "1", item, 1, minute=5) for item in other]
    run(rows, day=1, leave_out_items=("22222",))
    assert codes("items") == ["10002"]


def small_shop(seed: int = 3, *, days: int = 6) -> list[Row]:
    draw = random.Random(seed)
    return [
        row(draw.randrange(days), draw.choice(["1", "2", "3", "4", None]), f"1000{draw.randrange(7)}",
            draw.choice([1, 2, 6, 12, -2]), minute=minute, price=draw.choice([0.5, 2.95]))
        for minute in range(300)
    ]  # fmt: skip


@pytest.mark.slow
def test_arrays_are_as_training_expects_them() -> None:
    dataset = run(small_shop(), day=5, test_days=2)
    day, invoice, item, customer = (array(name) for name in ("day", "invoice", "item", "customer"))
    order = np.lexsort((item, invoice, day))
    assert (order == np.arange(len(day))).all()
    assert all(array(name).dtype == np.int32 for name in ("day", "invoice", "item", "customer", "country"))
    assert array("quantity").dtype == array("price").dtype == np.float32
    assert (array("quantity") > 0).all()
    start, mine = array("customer_start"), array("by_customer")
    assert len(start) == len(codes("customers")) + 1
    assert len(mine) == (customer >= 0).sum() < len(customer)
    for index in range(len(start) - 1):
        of = mine[start[index] : start[index + 1]]
        assert (customer[of] == index).all()
        assert (np.diff(of) > 0).all()
    pairs = set(zip(day[customer >= 0].tolist(), customer[customer >= 0].tolist(), strict=True))
    samples = zip(array("samples_day").tolist(), array("samples_customer").tolist(), strict=True)
    assert list(samples) == sorted(pairs)
    meta = json.loads((ARRAYS / "meta.json").read_text())
    assert meta["test_days"] == ["2025-01-10", "2025-01-11"]
    assert meta["last_day"] == "2025-01-09" == str(dataset.last_day)
    assert meta["num_samples_train"] == dataset.num_samples == sum(d < HELD_OUT + 1 for d, _ in pairs)
    assert meta["num_samples_train"] + meta["num_samples_test"] == len(pairs)
    assert meta["num_lines"] == len(day)


@pytest.mark.slow
@settings(max_examples=3)
@given(order=st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_change_a_byte(order: random.Random, tmp_path_factory: Any) -> None:
    rows = small_shop()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("night"))
        digest = run(rows, day=5).digest
        order.shuffle(rows)
        assert run(rows, day=5).digest == digest


@pytest.mark.slow
def test_a_key_is_the_same_on_every_night() -> None:
    assert stable_key("85123A") == 653010168509564521
    run(small_shop(), day=5)
    items = pq.read_table(ARRAYS / "items.parquet").to_pylist()
    assert [line["index"] for line in items] == list(range(len(items)))
    assert all(line["key"] == stable_key(line["code"]) for line in items)
    assert items[0]["description"] == f"THE {items[0]['code']}"


@pytest.mark.slow
def test_the_window_and_the_held_out_days_bound_what_is_read() -> None:
    dataset = run(small_shop(), day=4, window_days=3)
    assert (dataset.first_day, dataset.last_day) == (date(2025, 1, 8), date(2025, 1, 9))
    assert array("day").max() == (date(2025, 1, 10) - EPOCH).days


def test_a_day_without_partition_is_refused() -> None:
    with pytest.raises(DataError, match="no rows of 2025-01-13"):
        run(small_shop(), day=7)


def test_no_training_days_are_refused_naming_the_keys() -> None:
    with pytest.raises(DataError, match=r"prepare\.window_days"):
        run(small_shop(), day=5, test_days=6)


def test_a_day_of_guests_alone_is_refused() -> None:
    with pytest.raises(DataError, match="no sample on the held-out days"):
        run([row(0, "1", "10002", 1), row(1, None, "10002", 1)], day=1)


def test_an_engine_that_is_not_there_is_refused() -> None:
    with pytest.raises(ParamsError, match=r"prepare\.engine 'abacus'"):
        run(small_shop(), day=5, engine="abacus")


@pytest.mark.slow
def test_other_rows_than_those_validated_are_refused() -> None:
    run(small_shop(), day=5)
    report = Report(num_rows=0, num_clean=0, num_quarantined=0, expectations=(), drift=(), digest="x")
    with pytest.raises(DataError, match="run validate again"):
        prepare(night(5), report, sections())


@pytest.mark.slow
def test_a_second_engine_gives_the_same_tables(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(small_shop(), SCHEMA)
    pq.write_table(table, tmp_path / "rows.parquet")
    with sqlite3.connect(tmp_path / "rows.db") as file:
        table.to_pandas().to_sql("clean", file, index=False, dtype={"time": "TIMESTAMP"})
    file.close()
    duck = ibis.duckdb.connect().read_parquet(tmp_path / "rows.parquet")
    lite = ibis.sqlite.connect(tmp_path / "rows.db").table("clean")
    sold, others = module.tables(duck, held_out=HELD_OUT, leave_out=())
    sold_too, others_too = module.tables(lite, held_out=HELD_OUT, leave_out=())
    assert sold_too.equals(sold)
    assert len(sold) > 200
    assert others_too == others


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["bigquery", "databricks", "postgres"])  # Databricks SQL is Spark SQL
def test_the_same_expressions_compile_to(dialect: str) -> None:
    lines = ibis.table(ibis.Schema.from_pyarrow(SCHEMA), name="clean")
    sold = module.netted(module.dated(module.products(lines)), held_out=HELD_OUT)
    index = {name: module.coded(sold, name) for name in ("invoice", "customer", "item", "country")}
    for table in (module.numbered(sold, index), module.described(sold), index["item"]):
        assert "SELECT" in str(ibis.to_sql(table, dialect=dialect))
