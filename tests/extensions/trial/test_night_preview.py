"""`try` names, before any night, the rows that a night would refuse and labels that judge nothing."""

from datetime import date

import numpy as np
import pyarrow as pa
import pytest

from daybreak.contract.table import Float, Id, Int, Label, Table, Time
from daybreak.data.suite import Suite
from daybreak.extensions.trial import night_preview

COLUMNS = {"t": Time(), "x": Float(), "u": Id(), "y": Int(min=0, max=1, nullable=True)}
TABLE = Table(time="t", columns=COLUMNS, label=Label("y"))  # type: ignore[arg-type]
BY_UNIT = Table(time="t", columns=COLUMNS, label=Label("y"), unit="u")  # type: ignore[arg-type]
DAYS = [date(2025, 3, 3), date(2025, 3, 10), date(2025, 3, 17)]


def rows(day: date, *, x: float = 0.0, ones: int = 20, unknown: int = 0, units: int = 99) -> pa.Table:
    labels = [1] * ones + [0] * (60 - ones - unknown) + [None] * unknown
    return pa.table(
        {
            "t": pa.array([np.datetime64(day, "us")] * 60),
            "x": np.random.default_rng(0).normal(x, 1, 60),
            "u": [f"{n % units}" for n in range(60)],
            "y": pa.array(labels, pa.int64()),
        }
    )


def test_rows_that_fail_rules_are_said_from_the_limit_on() -> None:
    failed = {"x is there": 4, "u is there": 2, "y is in range": 0}
    assert night_preview.refused_rows(num_bad=5, num_rows=100, failed=failed, limit=0.05) == []
    (said,) = night_preview.refused_rows(num_bad=6, num_rows=100, failed=failed, limit=0.05)
    assert said.startswith(
        "a night would stop, as 6 of 100 rows fail rules, more than validate.max_quarantined"
    )
    assert "'x is there' 4, 'u is there' 2" in said


def test_a_day_unlike_its_weekdays_is_said_with_its_limit() -> None:
    clean = {day: rows(day, x=9 * (day == DAYS[-1])) for day in DAYS}
    text, (said,) = night_preview.drift_of(DAYS[-1], clean, TABLE, Suite(), limit=0.35)
    assert text == "from 2 earlier Mondays: x 1.00 (limit 0.35)"
    assert said.startswith(
        "a night would stop, as 2025-03-17 is unlike the last 2 Mondays: x 1.00 (limit 0.35); "
    )
    assert night_preview.drift_of(DAYS[-1], clean, TABLE, Suite(drift={"x": "off"}), limit=0.35)[1] == []
    assert night_preview.drift_of(DAYS[-1], clean, TABLE, Suite(drift="off"), limit=0.35) == ("off", [])


def test_days_like_their_weekdays_and_too_few_of_them_raise_no_doubt() -> None:
    alike = {day: rows(day) for day in DAYS}
    assert night_preview.drift_of(DAYS[-1], alike, TABLE, Suite(), limit=0.35)[1] == []
    few = {day: rows(day) for day in DAYS[1:]}
    text, doubts = night_preview.drift_of(DAYS[-1], few, TABLE, Suite(), limit=0.35)
    assert (text, doubts) == ("1 of 2 earlier Mondays to compare with", [])


@pytest.mark.parametrize(
    ("table", "held_out", "expected"),
    [
        (TABLE, {"ones": 20}, None),
        (BY_UNIT, {"ones": 20, "units": 30}, None),
        (BY_UNIT, {"ones": 20, "units": 29}, "has 29 values of u, fewer than gate.min_samples (30)"),
        (TABLE, {"ones": 12, "unknown": 35}, "has 25 samples, fewer than gate.min_samples (30)"),
        (TABLE, {"ones": 0}, "has no row whose y is 1, too few to judge by; hold out more days"),
        (TABLE, {"ones": 60}, "has no row whose y is 0, too few to judge by"),
        (TABLE, {"ones": 9}, "has only 9 rows whose y is 1, too few to judge by"),
    ],
)
def test_what_the_gate_could_not_judge_by_is_said(
    table: Table, held_out: dict[str, int], expected: str | None
) -> None:
    text, doubts = night_preview.held_out({DAYS[0]: rows(DAYS[0], **held_out)}, table, min_samples=30)
    assert text.endswith(f"on 2025-03-03, {held_out['ones']} of them with y = 1")
    assert [expected in one for one in doubts if expected] == [True] * bool(expected) and len(doubts) <= 1


def test_more_days_are_advised_only_where_they_have_other_units() -> None:
    alike = {day: rows(day, units=5) for day in DAYS}
    (said,) = night_preview.held_out(alike, BY_UNIT, min_samples=30)[1]
    assert said.endswith("(30); leave the table's unit out (--unit of init), or lower it")
    others = alike | {DAYS[0]: rows(DAYS[0], units=9)}
    (said,) = night_preview.held_out(others, BY_UNIT, min_samples=30)[1]
    assert said.endswith("(--unit of init), hold out more days (prepare.test_days), or lower it")


def test_before_any_label_is_known_no_night_could_decide() -> None:
    table = Table(time="at", columns={"at": Time(), "y": Int(nullable=True)}, label=Label("y"))
    text, doubts = night_preview.held_out({}, table, min_samples=30)
    assert text == "no day whose labels are known"
    assert doubts[0].startswith("no night could decide, as the labels of no day up to this one are known yet")
