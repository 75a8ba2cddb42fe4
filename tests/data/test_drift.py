"""Distances between a day and the same weekdays before it, by values that one can reckon by hand."""

from typing import Any

import pandas as pd
import pytest

from pipeline.data.drift import distances


def rows(num: int = 4, **columns: Any) -> pd.DataFrame:
    """A day of sales, all alike but for these columns."""
    plain = {"quantity": 1, "price": 2.0, "time": pd.Timestamp(2025, 1, 1, 9), "country": "a", "item": "x",
             "customer": "5"}  # fmt: skip
    return pd.DataFrame([plain] * num).assign(**columns)


def distance(column: str, day: pd.DataFrame, *before: pd.DataFrame) -> float:
    (value,) = (d.value for d in distances(day, before, limits={}, limit=0.1) if d.column == column)
    return value


@pytest.mark.parametrize("column", ["quantity", "price"])
def test_numbers_are_as_far_apart_as_their_distribution_functions_at_most(column: str) -> None:
    day, before = rows(**{column: [1, 2, 3, 4]}), rows(**{column: [3, 4, 5, 6]})
    assert distance(column, day, before, before) == 0.5


def test_times_are_compared_by_the_minute_of_the_day() -> None:
    def at(*times: str) -> pd.DataFrame:
        return rows(time=[pd.Timestamp(f"2025-01-{day + 1:02} {time}") for day, time in enumerate(times)])

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


def test_customers_are_compared_by_the_share_of_rows_without_one() -> None:
    half, quarter = rows(customer=["1", None, "1", None]), rows(customer=["1", "1", "1", None])
    assert distance("customer", half, quarter, quarter) == 0.25
    assert distance("customer", quarter, half, half) == 0.25


def test_rows_are_compared_with_the_mean_of_the_days_before() -> None:
    assert distance("rows", rows(4), rows(2), rows(4)) == 0.25
    assert distance("rows", rows(3), rows(2), rows(6)) == 0.25


def test_days_before_are_taken_together() -> None:
    assert distance("quantity", rows(quantity=[1, 1, 2, 2]), rows(quantity=1), rows(quantity=2)) == 0


def test_every_column_has_its_own_limit_or_the_common_one() -> None:
    drifts = distances(rows(), [rows(), rows()], limits={"price": 0.3}, limit=0.1)
    assert {drift.column: drift.limit for drift in drifts} == {
        "quantity": 0.1, "price": 0.3, "time": 0.1, "country": 0.1, "item": 0.1, "customer": 0.1, "rows": 0.1,
    }  # fmt: skip


def test_equal_days_are_nowhere_apart() -> None:
    assert [drift.value for drift in distances(rows(), [rows()] * 3, limits={}, limit=0.1)] == [0] * 7


@pytest.mark.parametrize(
    ("day", "before"),
    [(rows(), []), (rows(), [rows()]), (rows().head(0), [rows()] * 2), (rows(), [rows().head(0)] * 2)],
    ids=["no day", "one day", "no rows", "no rows before"],
)
def test_where_too_little_is_there_to_compare_there_is_no_distance(
    day: pd.DataFrame, before: list[pd.DataFrame]
) -> None:
    assert distances(day, before, limits={}, limit=0.1) == ()
