"""When the stages of a night were called stays a few lines, however often they are called."""

from datetime import UTC, datetime, timedelta
from typing import Literal

from daybreak.contract.record_parts import StageSpan
from daybreak.storage.spans import MANY, extended

AT = datetime(2011, 9, 1, 2, tzinfo=UTC)


def call(
    minutes: int, end: Literal["done", "failed", "waits"], why: str = "", *, stage: str = "predict"
) -> StageSpan:
    at = AT + timedelta(minutes=minutes)
    return StageSpan(stage=stage, began_at=at, last_call_at=at, ended_at=at, end=end, why=why)


def after(*calls: StageSpan) -> tuple[StageSpan, ...]:
    spans: tuple[StageSpan, ...] = ()
    for one in calls:
        spans = extended(spans, one)
    return spans


def test_calls_that_fail_for_the_same_reason_are_one_span_while_another_stage_waits() -> None:
    gate = [call(5 * n, "waits", f"{n} of 4,000", stage="gate") for n in range(1000)]
    predict = [call(5 * n + 1, "failed", "the disk is full") for n in range(1000)]
    waits, failed = after(*(one for pair in zip(gate, predict, strict=True) for one in pair))
    assert (waits.stage, waits.num_calls) == ("gate", 1000)
    assert (failed.num_calls, failed.num_waits, failed.why) == (1000, 0, "the disk is full")
    assert (failed.began_at, failed.last_call_at) == (predict[0].began_at, predict[-1].began_at)


def test_a_failure_for_another_reason_is_a_span_of_its_own() -> None:
    spans = after(call(0, "failed", "no room"), call(1, "failed", "no route"), call(2, "done"))
    assert [(one.end, one.why) for one in spans] == [
        ("failed", "no room"),
        ("failed", "no route"),
        ("done", ""),
    ]


def test_a_stage_that_waits_and_fails_in_turn_is_one_span_that_tells_its_failures() -> None:
    (span,) = after(*(call(n, "failed" if n % 3 == 2 else "waits", "no route") for n in range(9)))
    assert (span.end, span.num_calls, span.num_waits) == ("failed", 9, 6)


def test_failures_that_each_say_something_else_stay_few_spans() -> None:
    spans = after(*(call(n, "failed", f"no answer after {n} ms") for n in range(500)))
    assert len(spans) == MANY
    assert spans[-1].why == "no answer after 499 ms"
    assert sum(one.num_calls for one in spans) == 500


def test_a_second_opening_of_a_night_adds_no_hours_to_the_first() -> None:
    first = call(0, "done", stage="open")
    assert after(first, call(300, "done", stage="open")) == (first,)
