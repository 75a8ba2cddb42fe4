"""Which served rows are unlike the days that a version was made of, and which are not, by many seeds."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from daybreak import Category, Float, Table, Time
from daybreak.contract.record_parts import ServedDay, ServedDrift
from daybreak.contract.sections import ValidateParams
from daybreak.data import drift
from daybreak.extensions.init.survey_days import drift_limits
from daybreak.gate.served_days import ServedComparison, compare
from daybreak.gate.served_notices import in_words

TABLE = Table(
    time="at",
    columns={
        "at": Time(),
        "amount": Float(nullable=True),
        "code": Category(),
        "place": Category(),
        "length": Float(),
    },
)
FIRST = date(2026, 1, 5)
NUM_ROWS = 400


def day(rng: np.random.Generator, number: int, *, num: int = NUM_ROWS, **fed: Any) -> pa.Table:
    """A day with a level, a share of a code and a share of nulls of its own, as real days have."""
    level, share = rng.normal(0, 0.1), np.clip(rng.normal(0.5, 0.03), 0, 1)
    amounts = np.exp(rng.normal(3 + level, 1, num))
    columns = {
        "at": [
            datetime.combine(FIRST, datetime.min.time()) + timedelta(days=number, minutes=int(minute))
            for minute in np.sort(rng.integers(0, 1440, num))
        ],
        "amount": np.where(rng.random(num) < 0.05, None, amounts).tolist(),
        "code": np.where(rng.random(num) < share, "a", "b").tolist(),
        "place": [f"p{one}" for one in rng.zipf(1.5, num) % 400],
        "length": rng.normal(10, 3, num).tolist(),
    }
    return pa.table({**columns, **fed}, schema=TABLE.schema())


def compared(
    served: pa.Table, before: list[pa.Table], limits: Mapping[str, Any], *, max_drift: float = 0.35
) -> ServedComparison:
    params = ValidateParams(max_drift=max_drift)
    return compare(served, before, TABLE, num_requests=len(served), limits=limits, params=params)


def unlike(comparison: ServedComparison) -> dict[str, str]:
    return {one.column: words for one, words in comparison.unlike}


@pytest.mark.slow
@pytest.mark.promise
def test_served_rows_of_days_like_training_are_called_unlike_at_the_stated_rate() -> None:
    """At 40 alarms a year, thousands of times what is stated, 0.1 are expected in these 300 days."""
    num_unlike, num_days = 0, 0
    for seed in range(15):
        rng = np.random.default_rng(seed)
        past = {FIRST + timedelta(days=number): day(rng, number) for number in range(56)}
        limits = {name: limit or "off" for name, limit in drift_limits(past, TABLE).items()}
        assert limits["amount"] != "off"
        for number in range(20):
            weekday = [one for other, one in past.items() if other.weekday() == number % 7]
            served = day(rng, 60 + number, num=120)
            num_unlike += bool(compared(served, weekday[-4:], limits).unlike)
            num_days += 1
    assert num_days == 300
    assert num_unlike <= 1


@pytest.mark.parametrize("num", [100, 1000])
def test_few_rows_of_the_same_distribution_are_not_unlike_where_the_limit_is_narrow(num: int) -> None:
    seen = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        whole = day(rng, 0, num=4 * NUM_ROWS)
        before = [whole.slice(part * NUM_ROWS, NUM_ROWS) for part in range(4)]
        served = whole.take(rng.integers(0, len(whole), num))
        found = compared(served, before, {}, max_drift=1e-9)
        assert set(found.columns) == {"at", "amount", "amount nulls", "code", "place", "length"}
        seen += bool(found.unlike)
    assert seen == 0


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("amount", lambda one: one and 1000 * one, r"has the median \d\d,\d{3}, not \d\d(\.\d+)?"),
        ("amount", lambda one: None, r"is missing in 100 % of the rows, not \d+\.?\d* %"),
        ("code", lambda one: "unknown", r"is unknown in 100 % of the rows, not 0 %"),
        ("length", lambda one: 14.0, r"has the median 14, not \d+(\.\d+)?"),
        ("at", lambda one: one.replace(hour=0), r"has the median 00:\d\d, not \d\d:\d\d"),
    ],
)
def test_a_column_that_is_fed_otherwise_is_told_with_both_values(column: str, value: Any, words: str) -> None:
    rng = np.random.default_rng(3)
    before, served = [day(rng, number) for number in range(4)], day(rng, 28, num=150)
    fed = [value(one) for one in served[column].to_pylist()]
    served = day(np.random.default_rng(4), 28, num=150, **{column: fed})
    found = unlike(compared(served, before, {}))
    name = f"{column} nulls" if "missing" in words else column
    assert [*found] == [name]
    assert re.fullmatch(words, found[name]), found


def test_a_column_whose_drift_is_off_is_not_compared() -> None:
    rng = np.random.default_rng(5)
    before, served = [day(rng, number) for number in range(4)], day(rng, 28, length=[0.0] * NUM_ROWS)
    assert [*unlike(compared(served, before, {}))] == ["length"]
    found = compared(served, before, {"length": "off"})
    assert not found.unlike and "length" not in found.columns


@pytest.mark.slow
def test_few_values_differ_by_chance_as_draws_do() -> None:
    """The bound holds at the stated chance for numbers, shares, and a category of many values."""
    rng = np.random.default_rng(6)
    rows = day(rng, 0, num=5000)
    for name, statistic in (
        ("length", drift.KOLMOGOROV_SMIRNOV),
        ("code", drift.JENSEN_SHANNON),
        ("place", drift.JENSEN_SHANNON),
    ):
        bound = drift.by_chance(statistic, rows[name], num=80, chance=0.05)
        beyond = 0
        for _ in range(200):
            some = rows.take(rng.integers(0, len(rows), 80))
            values = [rows.column, rows.column]
            found = drift.distances(some.column, values, TABLE, limits={}, limit=1)
            beyond += next(one.value for one in found if one.column == name) > bound
        assert beyond / 200 < 0.1


DAY = ServedDay(day=date(2026, 11, 28), num_requests=1204, compared=("amount", "code"))


def drifted(column: str, words: str, since: date | None) -> ServedDrift:
    return ServedDrift(
        column=column, statistic="Kolmogorov-Smirnov", value=0.98, limit=0.41, words=words, since=since
    )


def test_a_sentence_names_column_both_values_and_what_to_do() -> None:
    skewed = replace(DAY, drift=(drifted("amount", "amount has the median 49,800, not 49.8", None),))
    assert in_words(skewed, 3) == (
        "served rows of 2026-11-28 (1,204 requests) are unlike the Saturdays that version 3 was made of: "
        "amount has the median 49,800, not 49.8 (Kolmogorov-Smirnov 0.98, at most 0.41 expected); so on each "
        "served day: amount; have it sent as the training data has it, or raise its limit under drift in the "
        "suite"
    )
    moved = drifted("code", "code is a in 90 % of the rows, not 40 %", date(2026, 11, 20))
    since = replace(DAY, drift=(moved,))
    assert in_words(since, 3).endswith(
        "as in training until 2026-11-20: code; fix what sends it, or train on newer days by a night now"
    )
    assert in_words(DAY, 3) == (
        "served rows of 2026-11-28 (1,204 requests) are like the days that version 3 was made of"
    )
    assert in_words(replace(DAY, fault="37 requests are too few"), 3) == (
        "served rows of 2026-11-28 (1,204 requests): 37 requests are too few"
    )
