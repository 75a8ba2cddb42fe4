"""A trigger holds only while its figure stays beyond its limit, and leads to one explained change."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from daybreak.contract.record_parts import Rental, Size
from daybreak.contract.trigger_lines import parse
from daybreak.jobs.decider import decide
from daybreak.jobs.heartbeats import Heartbeats
from daybreak.jobs.moves import MOST_TRIGGERED
from daybreak.jobs.observed_job import ObservedJob
from daybreak.jobs.triggers import Fired, fired
from tests.jobs.cloud import plan_of
from tests.jobs.test_escalation import running
from tests.jobs.test_moves import CHEAP, with_cheaper

IDLE = parse("device_use < 0.3 for 2 min: step down")
PLAN = with_cheaper(plan_of(share=0.5))


def beats(*uses: float, every_s: float = 10, **more: Any) -> Heartbeats:
    """Heartbeats from second 0 on, with these uses of the device."""
    return Heartbeats(
        [
            {
                "time": datetime.fromtimestamp(every_s * number, UTC).isoformat(),
                "seen": 32 * number,
                "num_updates": number,
                "loss": 1.0,
                "rate": 0.1,
                "samples_per_s": 3.2,
                "memory_bytes": 0,
                "device_use": use,
                **more,
            }
            for number, use in enumerate(uses)
        ]
    )


def backlog(beat: Mapping[str, Any]) -> float:
    return float(beat["seen"]) / 32


def broken(beat: Mapping[str, Any]) -> float:
    raise RuntimeError("no such column")


def holds(*uses: float, since: float = 0.0, now: float = 300, trigger: str = IDLE.text) -> bool:
    return bool(fired([parse(trigger)], beats(*uses), since=since, now=now))


def test_it_holds_when_every_heartbeat_of_its_minutes_is_beyond_the_limit() -> None:
    assert holds(*[0.2] * 30)
    assert holds(*[0.9] * 15, *[0.2] * 15)
    assert not holds(*[0.2] * 25, 0.31, *[0.2] * 4)  # one is enough: hysteresis
    assert not holds(*[0.2] * 30, since=200)  # it moved there since
    assert not holds(*[0.2] * 30, now=900)  # nothing was heard since
    assert not holds(*[0.2] * 3, now=20)


def test_it_says_what_was_measured() -> None:
    (one,) = fired([IDLE], beats(*[0.1] * 20, *[0.25] * 10), since=0, now=290)
    assert one.why == "device_use was 0.1 to 0.25 for 2 min (device_use < 0.3 for 2 min: step down)"


def test_a_team_measures_by_its_own_function_and_one_that_fails_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    line = f"{__name__}:backlog > 10 for 2 min: step up"
    assert holds(*[0.9] * 30, trigger=line)
    assert not holds(*[0.9] * 30, trigger=line.replace("> 10", "> 25"))
    assert not holds(*[0.9] * 30, trigger=line.replace("backlog", "broken"))
    assert "says nothing: RuntimeError: no such column" in caplog.text


def triggered(line: str, job: ObservedJob, **changed: Any) -> ObservedJob:
    return replace(job, fired=[Fired(trigger=parse(line), lowest=0.1, highest=0.2)], **changed)


def test_a_step_down_goes_to_the_cheapest_rest_that_is_in_time_and_costs_no_more() -> None:
    job = running(PLAN, hours=1, share=0.3)
    assert decide(job).placement == job.placement
    choice = decide(triggered(IDLE.text, job))
    assert (choice.name, choice.placement) == ("triggered move", PLAN.cheaper[0])
    assert choice.usd < 0
    assert choice.reason.startswith("to d, in us-central1, as device_use was 0.1 to 0.2 for 2 min")
    for stays in (
        {"refused": {CHEAP: job.now}},
        {"num_triggered": MOST_TRIGGERED},
        {"state": "queued"},
        {"rate": None},
        {"deadline": job.now + 3600},
    ):
        moved = decide(triggered(IDLE.text, job, **stays))
        assert moved.name != "triggered move", stays


def test_a_step_up_costs_at_most_what_it_may() -> None:
    job = running(PLAN, hours=1, share=0.3)
    line = "queue_length < 1 for 5 min: step up"
    choice = decide(triggered(line, job))
    assert choice.name == "triggered move"
    assert choice.placement
    assert choice.placement.expected_s < job.placement.expected_s
    assert choice.usd > 0
    assert decide(triggered(f"{line} for ${choice.usd / 2:.4f}", job)).placement == job.placement
    assert decide(triggered(f"{line} for ${choice.usd + 0.01:.4f}", job)).placement == choice.placement


def test_what_is_forced_comes_before_a_trigger_and_what_pays_does_not_undo_it() -> None:
    late = running(with_cheaper(plan_of(share=0.6)), hours=1.9, share=0.4, speed=0.55)
    assert decide(late).name == "scale up"
    assert decide(triggered(IDLE.text, late)).name == "scale up"
    ahead = running(PLAN, hours=1, share=0.62, speed=2.0, to_save=True)
    assert decide(ahead).name == "step down"
    assert decide(replace(ahead, is_triggered=True)).placement == ahead.placement


def test_another_batch_is_the_next_size_of_the_plan() -> None:
    sizes = tuple(Size(batch_size=n, micro_batch_size=32, update_s=1.0) for n in (32, 64, 128))
    job = running(PLAN, hours=1, share=0.3)
    job = replace(job, placement=replace(job.placement, sizes=sizes), batch_size=64)
    for action, size in (("larger", 128), ("smaller", 32)):
        choice = decide(triggered(f"memory_use > 0.9 for 5 min: {action} batch", job))
        assert (choice.name, choice.batch_size, choice.placement) == ("triggered batch", size, job.placement)
        assert choice.reason.startswith(f"batches of {size} in place of 64, as memory_use was 0.1 to 0.2")
    assert (
        decide(triggered("memory_use > 0.9 for 5 min: larger batch", replace(job, batch_size=128))).name == ""
    )


def test_first_trigger_that_can_be_followed_counts() -> None:
    job = running(PLAN, hours=1, share=0.3)
    lines = ["memory_use > 0.9 for 5 min: larger batch", IDLE.text]  # the plan has no sizes
    several = replace(job, fired=[Fired(trigger=parse(line), lowest=0, highest=1) for line in lines])
    assert decide(several).placement == PLAN.cheaper[0]
    assert isinstance(PLAN.cheaper[0].rental, Rental)
