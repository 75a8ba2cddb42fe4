"""A cell that does not fit its column costs a row, not the day, and its text is kept."""

import json
from datetime import datetime

import pyarrow as pa
import pytest

from daybreak.contract.errors import DataError
from daybreak.contract.table import Bool, Category, Float, Int, Table, Time
from daybreak.data.bad_cells import AS_DELIVERED, with_delivered_texts
from daybreak.data.casts import conform

AT = datetime(2025, 1, 30, 9)


def rows(column: Float | Int | Bool | Time | Category, values: list[object]) -> pa.Table:
    table = Table(time="at", columns={"at": Time(), "x": column})
    return conform(pa.table({"at": [AT] * len(values), "x": values}), table, origin="x")


@pytest.mark.parametrize(
    ("column", "values", "cast", "bad"),
    [
        (Float(), ["1", "free", None, "2.5"], [1.0, None, None, 2.5], "free"),
        (Float(), ["1", "inf", "1,5", "2"], [1.0, float("inf"), None, 2.0], "1,5"),
        (Int(), [1.0, 2.5, 3.0], [1, None, 3], "2.5"),
        (Int(), ["1", str(2**70), "3"], [1, None, 3], str(2**70)),
        (Bool(), ["true", "yes", "false"], [True, None, False], "yes"),
        (Bool(), [0, 7, 1], [False, None, True], "7"),
        (Time(), [str(AT), "2025-02-30 09:00:00", str(AT)], [AT, None, AT], "2025-02-30 09:00:00"),
        (Float(size=2), [[1.0, 2.0], [3.0, 4.0], [5.0]], None, "[5.0]"),
    ],
)
def test_a_cell_that_does_not_fit_is_empty_and_its_text_is_kept(
    column: Float, values: list[object], cast: list[object] | None, bad: str
) -> None:
    made = rows(column, values)
    if cast is not None:
        assert made["x"].to_pylist() == cast
    assert [with_delivered_texts(row)["x"] for row in made.to_pylist() if row[AS_DELIVERED]] == [bad]


def test_rows_without_a_bad_cell_have_no_further_column() -> None:
    assert rows(Float(), ["1", None, ""][:2]).column_names == ["at", "x"]


def test_a_column_that_half_of_its_values_do_not_fit_has_another_type() -> None:
    with pytest.raises(DataError, match="x has another schema: x is string, not double: row 2 is 'b'"):
        rows(Float(), ["1", "b", None])


def test_times_with_and_without_an_offset_stay_refused_beside_a_bad_one() -> None:
    texts = ["2025-01-30T09:00:00Z", "soon", "2025-01-30T09:00:00", "2025-01-30T10:00:00Z"]
    with pytest.raises(DataError, match="with an offset, and row"):
        rows(Time(), texts)


def test_a_text_that_came_for_a_number_is_the_value_once_the_column_is_text() -> None:
    before = rows(Int(), ["1", "A7", "3"])
    table = Table(time="at", columns={"at": Time(), "x": Category()})
    assert conform(before, table, origin="x")["x"].to_pylist() == ["1", "A7", "3"]


def test_a_row_that_is_cast_again_stays_bad() -> None:
    before = rows(Int(), ["1", "A7", "3"])
    table = Table(time="at", columns={"at": Time(), "x": Float()})
    texts = conform(before, table, origin="x")[AS_DELIVERED].to_pylist()
    assert texts == [None, json.dumps({"x": "A7"}), None]
