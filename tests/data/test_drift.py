"""Distances between a day and the same weekdays before it, by values that one can reckon by hand."""

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from daybreak.contract.record_parts import Drift
from daybreak.contract.table import Bool, Bytes, Category, Float, Id, Int, Label, Table, Text, Time, days
from daybreak.data import drift
from daybreak.examples.shop.sold_lines import LINES

PAYMENTS = Table(
    time="at",
    columns={
        "at": Time(),
        "id": Id(),
        "account": Id(nullable=True),
        "amount": Float(nullable=True),
        "online": Bool(),
        "mcc": Category(nullable=True, off=("null drift",)),
        "image": Bytes(),
        "embedding": Float(size=2),
        "note": Text(),
        "tries": Int(off=("drift",)),
        "fraud": Int(nullable=True),
    },
    label=Label("fraud", ripe_after=days(14)),
)


def rows(num: int = 4, **columns: Any) -> pa.Table:
    """A day of sales, all alike but for these columns; one value stands for all rows."""
    plain = {
        "invoice": "1",
        "item": "x",
        "description": "CUP",
        "quantity": 1,
        "price": 2.0,
        "time": datetime(2025, 1, 1, 9),
        "customer": "5",
        "country": "a",
    }
    return _table(LINES, plain | columns, num)


def payments(num: int = 4, **columns: Any) -> pa.Table:
    plain = {
        "at": datetime(2025, 1, 1, 9),
        "id": "1",
        "account": "a",
        "amount": 1.0,
        "online": True,
        "mcc": "m",
        "image": b"12",
        "note": "hi",
        "tries": 1,
        "fraud": None,
    }
    vectors = columns.pop("embedding", [[1.0, 2.0]] * num)
    return _table(PAYMENTS, {"embedding": vectors} | plain | columns, num)


def _table(table: Table, values: dict[str, Any], num: int) -> pa.Table:
    lists = {name: value if isinstance(value, list) else [value] * num for name, value in values.items()}
    schema = table.schema()
    return pa.table([pa.array(lists[field.name], field.type) for field in schema], schema=schema)


def distances(day: pa.Table, *before: pa.Table, **limits: Any) -> tuple[Drift, ...]:
    of = LINES if "invoice" in day.column_names else PAYMENTS
    return drift.distances(day.column, [other.column for other in before], of, limits=limits, limit=0.1)


def distance(column: str, day: pa.Table, *before: pa.Table) -> float:
    (value,) = (d.value for d in distances(day, *before) if d.column == column)
    return value


@pytest.mark.parametrize("column", ["quantity", "price"])
def test_numbers_are_as_far_apart_as_their_distribution_functions_at_most(column: str) -> None:
    day, before = rows(**{column: [1, 2, 3, 4]}), rows(**{column: [3, 4, 5, 6]})
    assert distance(column, day, before, before) == 0.5


def test_times_are_compared_by_the_minute_of_the_day() -> None:
    def at(*times: str) -> pa.Table:
        return rows(time=[datetime.fromisoformat(f"2025-01-0{n + 1} {time}") for n, time in enumerate(times)])

    day = at("09:30", "09:30", "10:00", "10:00")
    assert distance("time", day, *[at("09:45", "09:45", "09:45", "09:45")] * 2) == 0.5


@pytest.mark.parametrize("column", ["country", "item"])
def test_codes_are_compared_by_their_shares(column: str) -> None:
    """Of (1/2, 1/2) and (1, 0) the divergence is (0.2075 + 0.4150) / 2 bits, and the distance its root."""
    day, before = rows(**{column: ["a", "a", "b", "b"]}), rows(**{column: "a"})
    assert distance(column, day, before, before) == pytest.approx(0.5579, abs=1e-4)
    assert distance(column, before, day, day) == pytest.approx(0.5579, abs=1e-4)


@pytest.mark.parametrize("column", ["country", "item"])
def test_codes_that_have_nothing_in_common_are_one_apart(column: str) -> None:
    day, before = rows(**{column: ["a", "b", "c", "c"]}), rows(**{column: "d"})
    assert distance(column, day, before, before) == pytest.approx(1)


def test_an_id_is_compared_by_the_share_of_rows_without_one() -> None:
    half, quarter = rows(customer=["1", None, "1", None]), rows(customer=["1", "1", "1", None])
    assert distance("customer", half, quarter, quarter) == 0.25
    assert distance("customer", quarter, half, half) == 0.25


def test_rows_are_compared_with_the_mean_of_the_days_before() -> None:
    assert distance("(rows)", rows(4), rows(2), rows(4)) == 0.25
    assert distance("(rows)", rows(3), rows(2), rows(6)) == 0.25


def test_days_before_are_taken_together() -> None:
    assert distance("quantity", rows(quantity=[1, 1, 2, 2]), rows(quantity=1), rows(quantity=2)) == 0


def test_every_column_has_its_own_limit_or_the_common_one() -> None:
    drifts = distances(rows(), rows(), rows(), price=0.3)
    assert {drift.column: drift.limit for drift in drifts} == {
        "item": 0.1,
        "quantity": 0.1,
        "time": 0.1,
        "price": 0.3,
        "customer": 0.1,
        "country": 0.1,
        "(rows)": 0.1,
    }


def test_equal_days_are_nowhere_apart() -> None:
    assert [drift.value for drift in distances(rows(), *[rows()] * 3)] == [0] * 7


def test_what_is_measured_follows_from_the_type_of_a_column() -> None:
    """No id, no label that comes late, nothing that is off; of nullable columns the shares of nulls too."""
    columns = [drift.column for drift in distances(payments(), payments(), payments())]
    assert columns == [
        "at",
        "account",
        "amount",
        "amount nulls",
        "online",
        "mcc",
        "image",
        "embedding",
        "note",
        "(rows)",
    ]
    fewer = distances(
        payments(), payments(), payments(), **{"amount nulls": "off", "mcc": "off", "(rows)": "off"}
    )
    assert [drift.column for drift in fewer] == [
        name for name in columns if name not in ("amount nulls", "mcc", "(rows)")
    ]


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("amount", [1.0, 1.0, 3.0, None], 1 / 3),
        ("amount nulls", [1.0, 1.0, 3.0, None], 1 / 4),
        ("online", [False] * 4, 1),
        ("mcc", ["m", None, None, None], 0),
        ("image", [b"12", b"12", b"123", b"1234"], 1 / 2),
        ("note", ["hi", "ho", "hé", "hello"], 1 / 4),
        ("embedding", [[1, 2], [2, 1], [0, 3], [5, 5]], 1 / 4),
    ],
)
def test_each_type_has_its_distance(column: str, values: list[Any], expected: float) -> None:
    day = payments(**{column.removesuffix(" nulls"): values})
    assert distance(column, day, payments(), payments()) == pytest.approx(expected)


def test_of_a_column_without_a_value_only_the_share_of_nulls_is_measured() -> None:
    drifts = {drift.column: drift.value for drift in distances(payments(amount=None), payments(), payments())}
    assert "amount" not in drifts
    assert drifts["amount nulls"] == 1


@pytest.mark.parametrize(
    ("day", "before"),
    [(rows(), []), (rows(), [rows()]), (rows(0), [rows()] * 2), (rows(), [rows(0)] * 2)],
    ids=["no day", "one day", "no rows", "no rows before"],
)
def test_where_too_little_is_there_to_compare_there_is_no_distance(
    day: pa.Table, before: list[pa.Table]
) -> None:
    assert distances(day, *before) == ()


def test_labels_that_come_late_do_not_drift() -> None:
    columns = {"at": Time(), "fraud": Int(), "refund": Float(nullable=True), "amount": Float()}
    table = Table(time="at", columns=columns, label=Label("fraud"), auxiliary=(Label("refund"),))
    at = datetime(2025, 1, 1)
    day = _table(table, {"at": at, "fraud": 1, "refund": None, "amount": 1.0}, 4)
    before = _table(table, {"at": at, "fraud": 1, "refund": 2.0, "amount": 1.0}, 4)
    found = drift.distances(day.column, [before.column] * 2, table, limits={}, limit=0.1)
    assert {each.column for each in found} == {"fraud", "amount", "at", drift.ROWS}


def test_nearly_equal_shares_of_millions_of_rows_have_a_distance() -> None:
    counts = (47_337, 5_784_361), (189_348, 23_137_440)  # by which the root of a negative number is drawn
    new, old = (pa.chunked_array([pa.array(np.arange(few + many) < few)]) for few, many in counts)
    assert 0 <= drift.distance(Bool(), new, old) < 1e-6


def test_a_vector_with_nan_is_as_far_as_can_be_and_hides_no_other() -> None:
    day = payments(4, embedding=[[9.0, 9.0]] * 3 + [[1.0, float("nan")]])
    assert distance("embedding", day, payments(), payments()) == 1
    one_of_four = payments(4, embedding=[[1.0, 2.0]] * 3 + [[1.0, float("nan")]])
    assert distance("embedding", one_of_four, payments(), payments()) == pytest.approx(1 / 4)
