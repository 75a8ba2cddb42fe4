"""What the page says of the time of stages, and of why one took longer than planned."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from daybreak.contract.record_parts import JobSpan, Rental, StageSpan, Taken
from daybreak.contract.record_types import Spans
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


def test_the_page_shows_the_stages_and_marks_what_took_longer(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("source: a:B\nworkload: a:B\nbackend: a:B\n")
    html = page(Home.here(), lay(preempted(), tmp_path), [])
    assert 'aria-label="Stages in time: open 3 s; ingest 2 h;' in html.replace("\N{NO-BREAK SPACE}", " ")
    assert "longer than expected: train" in text_of(html)
    assert "↳ n1-standard-8" in text_of(html)


@pytest.mark.parametrize("end", ["waits", "failed", "nothing to do", "done"])
def test_an_open_night_whose_last_call_ended_anyhow_is_drawn(tmp_path: Path, end: str) -> None:
    (tmp_path / "params.yaml").write_text("source: a:B\nworkload: a:B\nbackend: a:B\n")
    span = StageSpan(stage="ingest", began_at=START, last_call_at=START, ended_at=START, end=end)  # type: ignore[arg-type]
    night = Entry(commit="", subject="", rollback=False, night=whole().night, spans=Spans(stages=(span,)))
    assert "Stages in time: ingest" in page(Home.here(), lay(night, tmp_path), [])
