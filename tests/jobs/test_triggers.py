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
from daybreak.jobs.remaining_work import forecast
from daybreak.jobs.triggers import Fired, faults, fired
from tests.jobs.cloud import Luck, plan_of, play
from tests.jobs.plans import make_params
from tests.jobs.test_escalation import running
from tests.jobs.test_moves import CHEAP, growing, with_cheaper

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
    assert (
        caplog.text.count("says nothing: RuntimeError: no such column") == 1
    )  # at a look, not at a heartbeat


def test_where_updates_are_slow_the_newest_heartbeats_tell() -> None:
    def slow(*uses: float, now: float) -> bool:
        return bool(fired([IDLE], beats(*uses, every_s=60), since=0, now=now))

    assert slow(*[0.2] * 6, now=310)
    assert not slow(*[0.2] * 2, 0.9, *[0.2] * 3, now=310)  # beyond its two minutes
    assert not slow(*[0.2] * 4, now=190)  # too few
    assert not slow(*[0.2] * 6, now=500)  # nothing was heard in its two minutes
    assert not fired([IDLE], beats(*[0.2] * 6, every_s=60), since=100, now=310)  # it moved there since


def test_a_function_that_is_not_there_is_said_once_before_the_night() -> None:
    names = ("backlog", "backlog", "no_such", "IDLE", "broken")
    lines = [f"{__name__}:{name} > 10 for 2 min: step up" for name in names]
    lines += ["no_such_package.signals:backlog > 1 for 2 min: step up", IDLE.text]
    found = list(faults([parse(line) for line in lines]))
    assert [text.partition(" of plan.triggers ")[0] for text in found] == [
        f"{__name__}:no_such",
        f"{__name__}:IDLE",
        "no_such_package.signals:backlog",
    ]
    assert found[0].partition(" of plan.triggers ")[2].startswith("cannot be imported: AttributeError: ")
    assert found[1].endswith("is no function; name one as module:function")
    assert "ModuleNotFoundError: No module named 'no_such_package'" in found[2]


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
    larger = triggered("memory_use < 0.9 for 5 min: larger batch", job)
    assert decide(replace(larger, batch_size=128)).name == ""
    assert decide(replace(larger, asked_size=128)).name == ""  # asked for, and not taken up
    assert decide(replace(larger, asked_size=64)).batch_size == 128  # asked for, and taken up


def with_sizes(job: ObservedJob, update_s: Mapping[int, float], size: int) -> ObservedJob:
    sizes = tuple(Size(batch_size=n, micro_batch_size=32, update_s=s) for n, s in update_s.items())
    return replace(job, placement=replace(job.placement, sizes=sizes), batch_size=size)


def test_another_batch_costs_what_its_updates_take_and_no_more_than_it_may() -> None:
    line = "memory_use > 0.9 for 5 min: smaller batch"
    job = running(PLAN, hours=1, share=0.3)
    rest_s = job.num_samples * 0.7 / job.rate.samples_per_s if job.rate else 0
    half = with_sizes(job, {32: 1.25, 64: 2.0}, 64)  # a quarter more a sample
    choice = decide(triggered(line, half))
    assert (choice.name, choice.batch_size) == ("triggered batch", 32)
    price = job.placement.usd_per_hour
    assert price
    assert choice.usd == pytest.approx(rest_s / 4 * price / 3600, rel=0.05)
    assert decide(triggered(f"{line} for ${choice.usd / 2:.4f}", half)).name == ""
    assert decide(triggered(f"{line} for ${choice.usd + 0.01:.4f}", half)).batch_size == 32
    assert decide(triggered(line, half, left_usd=rest_s * price / 3600)).name == ""
    saves = with_sizes(job, {32: 0.75, 64: 2.0}, 64)
    assert decide(triggered(f"{line} for $0", saves)).usd < 0


def test_a_batch_that_makes_the_night_late_is_not_taken() -> None:
    line = "memory_use > 0.9 for 5 min: smaller batch"
    job = with_sizes(running(PLAN, hours=1, share=0.3), {32: 2.0, 64: 2.0}, 64)  # takes twice as long
    assert decide(triggered(line, job, deadline=job.now + 100 * 3600)).batch_size == 32
    rest_s = forecast(job, job.placement).rest_s
    assert decide(triggered(line, job, deadline=job.now + 1.5 * rest_s)).name == ""


def always(beat: Mapping[str, Any]) -> float:
    return 1.0


@pytest.mark.slow
@pytest.mark.usefixtures("folder_in_memory")
def test_a_size_that_is_not_taken_up_is_asked_for_once_and_holds_up_no_other_move() -> None:
    """The worker of this cloud reads no size."""
    given = make_params(strategy="on-demand")
    line = f"{__name__}:always > 0 for 5 min: larger batch"
    given = given.model_copy(update={"plan": given.plan.model_copy(update={"triggers": (line,)})})
    cloud = play(growing(with_cheaper(plan_of(share=0.8))), Luck(factors={"a": 2.0}), params=given)
    assert cloud.fallbacks_taken == ["triggered batch", "step down"]


def test_first_trigger_that_can_be_followed_counts() -> None:
    job = running(PLAN, hours=1, share=0.3)
    lines = ["memory_use > 0.9 for 5 min: larger batch", IDLE.text]  # the plan has no sizes
    several = replace(job, fired=[Fired(trigger=parse(line), lowest=0, highest=1) for line in lines])
    assert decide(several).placement == PLAN.cheaper[0]
    assert isinstance(PLAN.cheaper[0].rental, Rental)
