"""The shop's cleaning rules equal simple rules, and the shop's arrays keep to the contract."""

import json
import random
import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.contract import records
from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.record_types import Dataset, Night
from daybreak.contract.sections import Plug, PrepareParams
from daybreak.contract.workload import ARRAYS, EPOCH
from daybreak.data.corrections import PLACE, corrected, later_days
from daybreak.data.partitions import CLEAN
from daybreak.data.prepare import prepare
from daybreak.examples.shop.sold_lines import LINES, SoldLines, stable_key
from daybreak.storage.home import Home
from tests.minimal_records import minimal_night, minimal_report

pytestmark = pytest.mark.filterwarnings(  # of ibis 12, seen 2026-11
    "ignore:fetch_arrow_table:DeprecationWarning", "ignore:The 'future.infer_string' option"
)

SCHEMA = LINES.schema()
USE = "daybreak.examples.shop.regression:Regression"
FIRST = date(2025, 1, 6)
HELD_OUT = 3  # days after FIRST
Row = dict[str, Any]


def row(
    day: int, customer: str | None, item: str, quantity: int, *, minute: int = 0, price: float = 1.0
) -> Row:
    time = datetime(2025, 1, 6, 9) + timedelta(days=day, minutes=minute)
    number = f"{500000 + day * 1000 + minute}"
    return {
        "invoice": f"C{number}" if quantity < 0 else number,
        "item": item,
        "description": f"THE {item}",
        "quantity": quantity,
        "time": time,
        "price": price,
        "customer": customer,
        "country": "EIRE",
    }


def night(day: int) -> Night:
    now = datetime(2025, 2, 1, tzinfo=UTC)
    return minimal_night(now, day=FIRST + timedelta(days=day))


def sections(*, leave_out_items: tuple[str, ...] = (), **params: Any) -> dict[str, Any]:
    use = "daybreak.examples.shop.recommender:Recommender" if leave_out_items else USE
    plug = Plug(use=use, **({"leave_out_items": leave_out_items} if leave_out_items else {}))
    return {"plug": plug, "params": PrepareParams(**params)}


def run(rows: list[Row], *, day: int, **params: Any) -> Dataset:
    """Write the rows as clean partitions in the current folder and prepare them."""
    by_day: dict[date, list[Row]] = {}
    for line in rows:
        by_day.setdefault(line["time"].date(), []).append(line)
    for of, lines in by_day.items():
        folder = CLEAN / f"day={of}"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(lines, SCHEMA), folder / "part.parquet")
    report = minimal_report(num_rows=len(rows), num_clean=len(rows), digest=records.digest(CLEAN))
    return prepare(Home(Path.cwd()), night(day), report, **sections(**params))


def array(name: str) -> Any:
    return np.load(ARRAYS / f"{name}.npy", mmap_mode="r")


def codes(name: str) -> list[str]:
    return list(pq.read_table(ARRAYS / f"{name}.parquet")["code"].to_pylist())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sold(rows: list[Row], *, reach: int = 30) -> list[Row]:
    """What stays of the rows of some days, those from HELD_OUT on held out."""

    class Shop(SoldLines):
        reaches_back = timedelta(days=reach)

    by_day: dict[date, list[Row]] = {}
    for line in rows:
        by_day.setdefault(line["time"].date(), []).append(line)
    tables = {day: pa.Table.from_pylist(lines, SCHEMA) for day, lines in by_day.items()}
    last = FIRST + timedelta(days=HELD_OUT - 1)
    left: list[Row] = []
    for day, table in tables.items():
        later = [tables[other] for other in later_days(Shop(), day, tables, last=last)]
        left += corrected(Shop(), table, later).drop_columns(PLACE).to_pylist()
    return left


def popped(rows: list[Row], *, reach: int) -> list[tuple[str, int]]:
    """The same with one list as the stack of all days: invoice and pieces of each line that stays sold."""
    stacks: dict[Any, list[list[Any]]] = {}
    for line in sorted(rows, key=lambda line: line["time"]):
        day = (line["time"].date() - FIRST).days
        stack = stacks.setdefault((line["customer"], line["item"], max(day, HELD_OUT - 1)), [])
        if line["quantity"] > 0:
            stack.append([line["invoice"], line["quantity"], day])
            continue
        left = -line["quantity"] if line["customer"] else 0
        while left and stack and stack[-1][2] >= day - reach:
            taken = min(left, stack[-1][1])
            left -= taken
            stack[-1][1] -= taken
            if not stack[-1][1]:
                stack.pop()
    return sorted((invoice, pieces) for stack in stacks.values() for invoice, pieces, _ in stack)


lines = st.builds(
    row,
    st.integers(0, 5),
    st.sampled_from(["1", "2", "3", "4", "5", None]),
    st.sampled_from(["10002", "10003"]),
    st.integers(-6, 6).filter(bool),
    minute=st.integers(0, 400),
)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(lines, min_size=1, max_size=100, unique_by=lambda line: line["time"]),
    reach=st.sampled_from([0, 1, 2, 30]),
)
def test_cancellations_pop_the_most_recent_purchases_within_their_reach(rows: list[Row], reach: int) -> None:
    left = sorted((line["invoice"], line["quantity"]) for line in sold(rows, reach=reach))
    assert left == popped(rows, reach=reach)


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(lines, min_size=1, max_size=100))
def test_netting_never_adds_a_piece_and_takes_no_more_than_was_cancelled(rows: list[Row]) -> None:
    left = sum(line["quantity"] for line in sold(rows))
    bought = sum(line["quantity"] for line in rows if line["quantity"] > 0)
    cancelled = -sum(line["quantity"] for line in rows if line["quantity"] < 0)
    assert bought - cancelled <= left <= bought


def test_a_cancellation_on_a_held_out_day_does_not_reach_back() -> None:
    rows = [row(0, "1", "10002", 5), row(3, "1", "10002", 2), row(3, "1", "10002", -4, minute=9)]
    assert [line["quantity"] for line in sold(rows)] == [5]


def test_a_cancellation_finds_its_purchase_however_the_item_was_typed() -> None:
    rows = [row(0, "1", "85123a ", 5), row(2, "1", "85123A", -2), row(2, None, "85123A", -2)]
    assert [(line["item"], line["quantity"]) for line in sold(rows)] == [("85123A", 3)]


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
        row(
            draw.randrange(days),
            draw.choice(["1", "2", "3", "4", None]),
            f"1000{draw.randrange(7)}",
            draw.choice([1, 2, 6, 12, -2]),
            minute=minute,
            price=draw.choice([0.5, 2.95]),
        )
        for minute in range(300)
    ]


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
    assert (
        meta["num_samples_train"]
        == dataset.num_samples
        == sum(d <= (dataset.last_day - EPOCH).days for d, _ in pairs)
    )
    assert meta["num_samples_train"] + meta["num_samples_test"] == len(pairs)
    assert meta["num_lines"] == len(day)


@pytest.mark.slow
def test_the_order_of_rows_does_not_change_a_byte() -> None:
    def bytes_of(rows: list[Row]) -> dict[str, bytes]:
        run(rows, day=5)
        files = [*ARRAYS.glob("*.npy"), *ARRAYS.glob("*.parquet"), ARRAYS / "meta.json"]
        return {path.name: path.read_bytes() for path in files}

    rows = small_shop()
    before = bytes_of(rows)
    random.Random(0).shuffle(rows)
    assert bytes_of(rows) == before
    assert len(before) > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_same_rows_give_the_same_bytes_whatever_nights_came_before(seed: int) -> None:
    draw = random.Random(seed)
    rows = small_shop(seed, days=12)
    options = {"window_days": 8, "test_days": 2}
    for day in sorted(draw.sample(range(4, 11), 4)):
        run([line for line in rows if line["time"].date() <= FIRST + timedelta(days=day)], day=day, **options)
        if draw.random() < 0.7:  # an earlier day comes again, with other pieces
            restated = FIRST + timedelta(days=draw.randrange(day))
            rows = [
                {**line, "quantity": draw.choice([1, 2, -2])} if line["time"].date() == restated else line
                for line in rows
            ]
    night_by_night = run(rows, day=11, **options).digest
    shutil.rmtree(ARRAYS)
    assert run(rows, day=11, **options).digest == night_by_night


@pytest.mark.slow
def test_what_other_code_left_behind_is_made_anew() -> None:
    rows = small_shop()
    digest = run(rows, day=5).digest
    (ARRAYS / "keys.json").unlink()
    shutil.rmtree(ARRAYS / f"day={FIRST}")
    assert run(rows, day=5).digest == digest
    run(rows, day=5, leave_out_items=("10001",))
    assert "10001" not in codes("items")
    assert run(rows, day=5).digest == digest


@pytest.mark.slow
def test_a_night_writes_again_only_the_days_that_it_corrects() -> None:
    def files() -> dict[str, int]:
        return {path.parent.name[4:]: path.stat().st_ino for path in ARRAYS.glob("day=*/rows.parquet")}

    rows = [row(day, "1", "10002", 5) for day in range(8)] + [row(day, "2", "10003", 1) for day in range(8)]
    rows.append(row(6, "1", "10002", -7, minute=9))  # day 6 itself, and 2 of day 5
    run([line for line in rows if line["time"].date() <= FIRST + timedelta(days=6)], day=6)
    before = files()
    run(rows, day=7)
    now = files()
    changed = {day for day in now if now[day] != before.get(day)}
    assert changed == {str(FIRST + timedelta(days=day)) for day in (5, 7)}
    quantity = array("quantity")[array("item") == codes("items").index("10002")]
    assert quantity.tolist() == [5, 5, 5, 5, 5, 3, 5]


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
    report = minimal_report(num_rows=0, num_clean=0, digest="x")
    with pytest.raises(DataError, match="run validate again"):
        prepare(Home(Path.cwd()), night(5), report, **sections())
