"""What the page says of the time of stages, and of why one took longer than planned."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from daybreak.contract.record_parts import JobSpan, Live, Portion, Rental, StageSpan, Taken
from daybreak.contract.record_types import LIVE_TEST, Spans, Training
from daybreak.report.page import page
from daybreak.report.stage_times import StageTime, stage_times
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry
from tests.report.nights import START, lay, sixty, whole
from tests.report.test_page import text_of

SPOT, ON_DEMAND = Rental(machine="n1-standard-8", strategy="spot"), Rental(machine="n1-standard-8")


def after(**time: float) -> timedelta:
    return timedelta(**time)


def preempted() -> Entry:
    """A night whose training waited an hour for spot machines, lost them, and moved; planned were 78 s."""
    night = whole()
    assert night.training and night.spans
    asked = START + after(hours=2, minutes=3)
    lost, moved = asked + after(hours=3), asked + after(hours=4)
    training = replace(
        night.training,
        num_restarts=1,
        start_s=3600.0,
        elapsed_s=4 * 3600.0,
        cost_usd=3.1,
        attempts=(
            JobSpan(
                rental=SPOT,
                asked_at=asked,
                ran_at=asked + after(hours=1),
                ended_at=lost,
                end="preempted",
                usd=0.9,
            ),
            JobSpan(rental=SPOT, asked_at=lost, ended_at=moved, end="moved"),
            JobSpan(
                rental=ON_DEMAND,
                asked_at=moved,
                ran_at=moved + after(minutes=2),
                ended_at=asked + after(hours=5),
                end="finished",
                usd=2.2,
            ),
        ),
        restarted_at=(moved + after(minutes=3),),
        fallbacks=(
            Taken(
                time=moved, name="on-demand", usd=1.4, reason="spot machines were not to be had for an hour"
            ),
        ),
    )
    spans = [
        replace(one, last_call_at=asked + after(hours=5), ended_at=asked + after(hours=5, seconds=20))
        if one.stage == "train"
        else replace(one, **{name: getattr(one, name) + after(hours=5) for name in TIMES})
        if one.began_at > asked
        else one
        for one in night.spans.stages
    ]
    return replace(night, training=training, spans=Spans(stages=tuple(spans)))


TIMES = ("began_at", "last_call_at", "ended_at")


def of(stage: str, times: list[StageTime]) -> StageTime:
    return next(one for one in times if one.name == stage)


def test_waiting_is_told_from_work() -> None:
    ingest = of("ingest", stage_times(whole(), []))
    assert [bar.kind for bar in ingest.bars] == ["wait", "work"]
    assert (ingest.took_s, ingest.waited_s) == (7212, 7200)


def test_training_that_took_longer_says_its_wait_losses_moves_and_their_money() -> None:
    times = stage_times(preempted(), [])
    train = of("train", times)
    assert train.why.startswith("Its machines ran 1 h after they were asked for.")
    assert "It lost its machines 1 time, " in train.why
    assert "On-demand, for $1.40 more: spot machines were not to be had for an hour." in train.why
    assert [mark.what for mark in train.marks] == ["restart", "on-demand"]
    assert [(one.end, one.usd) for one in times if one.of == "train"] == [
        ("preempted", 0.9),
        ("moved", 0.0),
        ("finished", 2.2),
    ]


def test_training_within_its_interval_needs_no_reason() -> None:
    night = whole()
    assert night.training
    in_time = replace(night, training=replace(night.training, elapsed_s=80.0))
    assert of("train", stage_times(in_time, [])).why == ""


def test_a_stage_without_a_plan_is_held_against_the_median_of_earlier_nights() -> None:
    night, before = whole(62), sixty()
    assert night.spans
    assert of("validate", stage_times(night, before)).expected == "41 s usually"
    slow = [
        replace(one, ended_at=one.ended_at + after(minutes=5)) if one.stage == "validate" else one
        for one in night.spans.stages
    ]
    late = of("validate", stage_times(replace(night, spans=Spans(stages=tuple(slow))), before))
    assert late.why == "No record says why; look at its log of 05:00:17 to 05:05:58 UTC."
    assert not of("validate", stage_times(replace(night, spans=Spans(stages=tuple(slow))), before[:2])).why


def test_a_stage_that_failed_before_says_so() -> None:
    night, before = whole(62), sixty()
    assert night.spans
    first = next(one for one in night.spans.stages if one.stage == "prepare")
    failed = replace(first, end="failed", why="the disk is full")
    again = replace(first, **{name: getattr(first, name) + after(hours=1) for name in TIMES})
    again = replace(again, ended_at=again.ended_at + after(minutes=2))
    spans = Spans(stages=tuple([*night.spans.stages, failed, again]))
    prepare = of("prepare", stage_times(replace(night, spans=spans), before))
    assert "It failed 1 time before: the disk is full." in prepare.why
    assert "failed" in [bar.kind for bar in prepare.bars]


def test_a_stage_that_failed_at_last_says_so_and_counts_every_failed_call_before() -> None:
    night, before = whole(62), sixty()
    assert night.spans
    first = next(one for one in night.spans.stages if one.stage == "prepare")
    often = replace(first, end="failed", why="the disk is full", num_calls=40, num_waits=3)
    last = replace(first, end="failed", why="no route", ended_at=first.ended_at + after(minutes=9))
    others = [one for one in night.spans.stages if one.stage != "prepare"]
    prepare = of("prepare", stage_times(replace(night, spans=Spans(stages=(*others, often, last))), before))
    assert prepare.why == "It failed 37 times before: the disk is full. It failed: no route."


@pytest.mark.parametrize(("end", "last"), [("failed", "failed"), ("waits", "work")])
def test_training_without_a_record_was_at_work_until_it_failed_or_is_looked_at(end: str, last: str) -> None:
    night = replace(whole(62), training=None)
    asked = START + after(hours=3)
    span = StageSpan(
        stage="train",
        began_at=asked,
        last_call_at=asked + after(hours=2),
        ended_at=asked + after(hours=2, seconds=9),
        num_calls=25,
        num_waits=24 if end == "failed" else 0,
        end=end,  # type: ignore[arg-type]
        why="out of memory",
    )
    train = of("train", stage_times(replace(night, spans=Spans(stages=(span,))), sixty()))
    assert ([bar.kind for bar in train.bars], train.waited_s) == (["work", last], 0)
    assert ("It failed: out of memory." in train.why) == (end == "failed")
    assert "It waited" not in train.why


def test_a_second_call_of_training_that_is_done_is_not_work_since_it_ended() -> None:
    night = preempted()
    assert night.spans and night.training
    trained = next(one for one in night.spans.stages if one.stage == "train")
    at = trained.ended_at + after(hours=6)
    second = StageSpan(
        stage="train", began_at=at, last_call_at=at, ended_at=at + after(seconds=2), end="done"
    )
    spans = Spans(stages=(*night.spans.stages, second))
    brought, called = of("train", stage_times(replace(night, spans=spans), [])).bars[-2:]
    assert brought.began_at == night.training.attempts[-1].ended_at
    assert brought.ended_at - brought.began_at == after(seconds=20)
    assert (called.began_at, called.ended_at) == (second.began_at, second.ended_at)


def test_slow_steps_are_told_from_a_long_queue_and_from_work_that_was_lost() -> None:
    night = whole()
    assert night.training and night.plan
    portions = [("queue", 600.0), ("start-up", 100.0), ("training", 90.0), ("all-reduce", 10.0)]
    forecast = replace(
        night.plan.forecast,
        expected_s=800.0,
        interval=(700.0, 900.0),
        portions=tuple(Portion(name=name, expected_s=s, expected_usd=0.0) for name, s in portions),
    )
    plan = replace(night.plan, forecast=forecast)

    def why(training: Training) -> str:
        return of("train", stage_times(replace(night, plan=plan, training=training), [])).why

    slow = replace(night.training, num_restarts=0, elapsed_s=303.0, start_s=650.0)
    assert "Its steps took 3 times as long for each sample as planned." in why(slow)
    assert "Its steps" not in why(replace(slow, elapsed_s=103.0, start_s=1000.0))  # the queue was long
    assert "Its steps" not in why(replace(slow, num_restarts=1))
    lost = preempted().training
    assert lost and "Its steps" not in why(replace(slow, attempts=lost.attempts))


def judged_by_users(night: Entry) -> Entry:
    """A night whose gate worked 4 s at last, 4 hours after its first call: users met the challenger."""
    assert night.spans and night.plan and night.verdict
    portion = Portion(name=LIVE_TEST, expected_s=4 * 3600.0, expected_usd=0.0)
    began_at = night.night.started_at
    live = Live(
        experiment="challenger",
        began_at=began_at,
        ends_at=began_at + after(hours=4),
        foretold="0.01 at 80 % power",
    )
    spans = [
        replace(one, began_at=one.began_at - after(hours=4), num_calls=2) if one.stage == "gate" else one
        for one in night.spans.stages
    ]
    return replace(
        night,
        plan=replace(night.plan, after=(portion,)),
        verdict=replace(night.verdict, live=live),
        spans=Spans(stages=tuple(spans)),
    )


def test_a_gate_with_a_live_test_is_expected_to_take_the_test_once() -> None:
    before = [judged_by_users(night) for night in sixty() if night.spans]
    gate = of("gate", stage_times(judged_by_users(whole(62)), before))
    assert gate.expected_s == 4 * 3600 + 4
    assert of("gate", stage_times(whole(62), before)).expected_s == 4


def test_the_page_shows_the_stages_and_marks_what_took_longer(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("source: a:B\nworkload: a:B\nbackend: a:B\n")
    html = page(Home.here(), lay(preempted(), tmp_path), [])
    assert 'aria-label="Stages in time: open 3 s; ingest 2 h;' in html.replace("\N{NO-BREAK SPACE}", " ")
    assert "longer than expected: train" in text_of(html)
    assert "↳ n1-standard-8" in text_of(html)
    assert "▸ a fallback of training, such as a move" in text_of(html)


@pytest.mark.parametrize("end", ["waits", "failed", "nothing to do", "done"])
def test_an_open_night_whose_last_call_ended_anyhow_is_drawn(tmp_path: Path, end: str) -> None:
    (tmp_path / "params.yaml").write_text("source: a:B\nworkload: a:B\nbackend: a:B\n")
    span = StageSpan(stage="ingest", began_at=START, last_call_at=START, ended_at=START, end=end)  # type: ignore[arg-type]
    night = Entry(commit="", subject="", rollback=False, night=whole().night, spans=Spans(stages=(span,)))
    assert "Stages in time: ingest" in page(Home.here(), lay(night, tmp_path), [])
