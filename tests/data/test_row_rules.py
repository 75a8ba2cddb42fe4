"""Rules on rows become SQL, and a rule that cannot be one is refused in a sentence."""

import math
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract.errors import ParamsError
from daybreak.contract.table import Float, Table, Time
from daybreak.data.row_rules import failing, quoted
from daybreak.data.suite import Suite, rules_of


def fails(value: Any, type: str, *, vectors: tuple[str, ...] = (), **kwargs: Any) -> bool:
    """Whether a row with this value of `x` fails the rule."""
    predicate = failing("a rule", type=type, kwargs={"column": "x", **kwargs}, vectors=vectors)
    return bool(duckdb.execute(f'SELECT {predicate} FROM (SELECT ? AS "x")', [value]).fetchall()[0][0])


@pytest.mark.slow
@given(value=st.text(st.characters(exclude_characters="\0", codec="utf8"), max_size=8), data=st.data())
def test_text_is_quoted_whatever_is_in_it(value: str, data: st.DataObject) -> None:
    other = data.draw(st.text(st.characters(exclude_characters="\0", codec="utf8"), max_size=8))
    listed = fails(value, "expect_column_values_to_not_be_in_set", value_set=[other, "'", '"'])
    assert listed == (value in (other, "'", '"'))
    assert not fails(value, "expect_column_values_to_be_in_set", value_set=[value])


@pytest.mark.parametrize("name", ["plain", "Two Words", 'quo"ted', "select", "é"])
def test_any_name_of_a_column_can_be_used(name: str) -> None:
    predicate = failing("a rule", type="expect_column_values_to_not_be_null", kwargs={"column": name})
    assert duckdb.execute(f"SELECT {predicate} FROM (SELECT NULL AS {quoted(name)})").fetchall() == [(True,)]


@pytest.mark.parametrize(
    ("vector", "expected"), [([0.0, 1.0], False), ([-0.1, 0.5], True), ([0.5, 1.5], True), (None, False)]
)
def test_a_vector_is_in_range_where_all_its_numbers_are(vector: list[float] | None, expected: bool) -> None:
    between = {"min_value": 0, "max_value": 1}
    assert fails(vector, "expect_column_values_to_be_between", vectors=("x",), **between) is expected


@pytest.mark.parametrize(
    ("type", "kwargs", "reason"),
    [
        (
            "expect_wonders",
            {"column": "x"},
            "is of type expect_wonders, which is none of rows; use one of "
            "expect_column_values_to_not_be_null, .* or python: module:function",
        ),
        ("expect_column_values_to_be_in_set", {"column": "x"}, "refuses its arguments: value_set is missing"),
        ("expect_column_values_to_be_null", {"column": "x", "mostly": 1}, "mostly is unknown; fix its"),
        ("expect_column_values_to_be_between", {"column": "x"}, "min_value and max_value are both missing"),
        ("expect_column_values_to_be_between", {"column": "x", "min_value": [1]}, r"\[1\] is neither a num"),
    ],
)
def test_a_rule_that_cannot_be_sql_is_refused(type: str, kwargs: dict[str, Any], reason: str) -> None:
    with pytest.raises(ParamsError, match=f"^rule 'a rule' .*{reason}"):
        failing("a rule", type=type, kwargs=kwargs)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_of_a_vector_that_is_not_finite_fails_the_row(value: float) -> None:
    table = Table(time="at", columns={"at": Time(), "v": Float(size=2)})
    (rule,) = (each for each in rules_of(Suite(), table) if each.name == "v is finite")
    predicate = failing(rule.name, type=rule.type, kwargs=rule.kwargs, vectors=["v"])
    rows = pa.table({"v": pa.array([[1.0, 2.0], [1.0, value]], pa.list_(pa.float64(), 2))})
    assert duckdb.from_arrow(rows).project(predicate).fetchall() == [(False,), (True,)]
