"""Jobs that are far ahead go on where it costs less, and back where that did not pay; none oscillates."""

import random
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import groupby
from math import exp
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract.record_parts import Placement, Rental, Size
from daybreak.contract.record_types import Plan
from daybreak.jobs.decider import decide
from daybreak.jobs.heartbeats import Heartbeats
from daybreak.jobs.moves import MOST_MOVES
from daybreak.jobs.outlook import Rate
from daybreak.jobs.remaining_work import forecast
from daybreak.training.recipe import Progress
from tests.fakes import read_lines
from tests.jobs.cloud import BEGUN, HOUR_S, TICK_S, Luck, plan_of, play
from tests.jobs.test_escalation import UNTIL, observed, running

pytestmark = pytest.mark.usefixtures("folder_in_memory")
CHEAP = Rental(machine="d", region="us-central1")


def with_cheaper(plan: Plan, *, slower: float = 1.5, usd_per_hour: float = 1.0) -> Plan:
    """The plan, and a machine d that takes so many times as long as a, for a third of its price."""
    expected_s = 240 + (plan.forecast.expected_s - 240) * slower
    placement = Placement(
        rental=CHEAP,
        expected_s=expected_s,
        expected_usd=expected_s / HOUR_S * usd_per_hour,
        usd_per_hour=usd_per_hour,
        latest_start=UNTIL - timedelta(seconds=1.2 * expected_s),
    )
    return replace(plan, cheaper=(placement,))


PLAN = with_cheaper(plan_of(share=0.8))


def ahead(**changed):
    """An hour is gone, and twice as much is done as was planned."""
    return running(PLAN, hours=1, share=0.62, speed=2.0, to_save=True, **changed)


def test_a_job_far_ahead_goes_to_a_cheaper_machine_and_one_as_planned_stays():
    choice = decide(ahead())
    assert (choice.name, choice.placement) == ("step down", PLAN.cheaper[0])
    assert choice.usd < 0
    assert choice.reason.startswith("to d, in us-central1, as it is ahead: the rest takes ")
    as_planned = running(PLAN, hours=1, share=0.3, to_save=True)
    assert decide(as_planned).placement == as_planned.placement


def test_a_move_down_has_to_repay_its_restart_and_leave_time_to_come_back():
    def stays(job) -> bool:
        return decide(job).placement == job.placement

    assert stays(replace(ahead(), seen=round(0.97 * PLAN.num_samples)))  # too little is left to save
    assert stays(replace(ahead(), to_save=False))  # the plan was to be fast
    assert stays(replace(ahead(), refused={CHEAP: BEGUN.timestamp()}))
    assert stays(replace(ahead(), left=(CHEAP,)))
    assert stays(replace(ahead(), num_moves=MOST_MOVES))
    assert stays(replace(ahead(), rate=Rate(samples_per_s=1.5, error=0.2)))  # hardly measured
    near = replace(ahead(), deadline=ahead().now + 4500)
    assert stays(near)


def test_a_device_that_waits_for_samples_is_left_for_a_slower_one_though_the_job_is_not_ahead():
    """Samples come as fast on d, which the plan takes for three times as slow, as its device is."""
    plan = with_cheaper(plan_of(share=0.5), slower=3.0)
    as_planned = running(plan, hours=1, share=0.1, to_save=True)
    assert decide(as_planned).placement == as_planned.placement
    idle = replace(as_planned, device_use=0.1)
    choice = decide(idle)
    assert (choice.name, choice.placement) == ("step down", plan.cheaper[0])
    assert "as its device waits for samples 90% of the time: the rest takes " in choice.reason
    assert forecast(idle, plan.cheaper[0]).rest_s < 1.3 * forecast(idle, idle.placement).rest_s
    assert decide(replace(as_planned, device_use=0.6)).placement == as_planned.placement
    faster = plan.fallbacks[0]
    assert faster.expected_s < plan.forecast.expected_s
    assert forecast(idle, faster) == forecast(as_planned, faster)  # it may read faster, too


@given(use=st.floats(0.01, 0.49), slower=st.floats(1.0, 6.0), loaders=st.sampled_from([0, 4]))
def test_a_slower_device_is_expected_to_be_between_as_fast_as_here_and_as_slow_as_planned(
    use, slower, loaders
):
    plan = with_cheaper(plan_of(share=0.5), slower=slower)
    plan = replace(plan, tuning=replace(plan.tuning, num_loaders=loaders))
    as_planned = running(plan, hours=1, share=0.3, to_save=True)
    here, there, planned = (
        forecast(job, placement).rest_s
        for job, placement in (
            (as_planned, as_planned.placement),
            (replace(as_planned, device_use=use), plan.cheaper[0]),
            (as_planned, plan.cheaper[0]),
        )
    )
    assert here < there <= planned * (1 + 1e-9)


def after_the_move(*, speed: float, **changed):
    """On d for some minutes, at so many times the speed that was planned there."""
    at = ahead()
    (cheap,) = PLAN.cheaper
    planned = PLAN.num_samples / (cheap.expected_s - 240)
    return replace(
        at,
        placement=cheap,
        rate=Rate(samples_per_s=speed * planned, error=0.02),
        earlier={at.placement.rental: at.rate},
        before=at.placement,
        left=(at.placement.rental,),
        num_moves=1,
        **changed,
    )


def test_a_move_that_turns_out_to_cost_more_is_undone_and_one_that_pays_is_not():
    choice = decide(after_the_move(speed=0.3))
    assert (choice.name, choice.placement) == ("undo", ahead().placement)
    assert "as measured on both" in choice.reason
    pays = after_the_move(speed=1.0)
    assert decide(pays).placement == pays.placement


def test_a_move_after_which_the_loss_rose_is_undone():
    choice = decide(after_the_move(speed=1.0, loss_rose=True))
    assert (choice.name, choice.reason) == (
        "undo",
        "to a, in us-central1, as the loss has risen since it left there",
    )


def test_the_loss_has_risen_only_where_it_is_beyond_what_it_varies_by():
    def beats(after: float) -> Heartbeats:
        draw = random.Random(0)
        losses = [1 + draw.gauss(0, 0.02) for _ in range(20)] + [
            after + draw.gauss(0, 0.02) for _ in range(10)
        ]
        return Heartbeats(
            [
                {
                    "time": (BEGUN + timedelta(seconds=n)).isoformat(),
                    "seen": n,
                    "num_updates": n,
                    "loss": loss,
                    "rate": 0.1,
                    "samples_per_s": 1.0,
                    "memory_bytes": 0,
                }
                for n, loss in enumerate(losses)
            ]
        )

    begun = BEGUN.timestamp()
    assert beats(1.3).loss_rose(since=begun, at=begun + 20)
    assert not beats(1.02).loss_rose(since=begun, at=begun + 20)
    assert not beats(1.3).loss_rose(since=begun, at=begun + 28)  # two heartbeats tell nothing


def sizes(update_s: dict[int, float]) -> tuple[Size, ...]:
    return tuple(Size(batch_size=n, micro_batch_size=16, update_s=s) for n, s in update_s.items())


def growing(plan: Plan) -> Plan:
    """The plan, where samples come a fifth faster in batches of 32 than of 8 on a, and slower on d."""
    cheaper = replace(plan.cheaper[0], micro_batch_size=4, sizes=sizes({8: 1.0, 16: 2.2, 32: 4.8}))
    return replace(plan, batch_size=8, cheaper=(cheaper,), sizes=sizes({8: 1.0, 16: 1.8, 32: 3.3}))


@pytest.mark.slow
def test_a_simulated_night_undoes_a_step_down_to_what_is_slow_and_its_batch_follows_the_machine():
    cloud = play(growing(PLAN), Luck(factors={"a": 2.0, "d": 0.5}, noise=(1.0, 1e4)))
    assert cloud.fallbacks_taken == ["step down", "undo"]
    assert [live.job.rental.machine for live in cloud.jobs] == ["a", "d", "a"]
    assert cloud.decision.stopped_by == "finished"
    assert cloud.most_live == 1
    beats = [Progress(**line) for line in read_lines(Path(cloud.jobs[0].job.folder) / "progress.jsonl")]
    taken = [size for size, _ in groupby(beat.batch_size for beat in beats)]
    assert taken[:4] == [8, 16, 32, 8]
    assert taken[-1] == 32
    assert cloud.decision.epochs
    assert all(epoch.whole for epoch in cloud.decision.epochs[:-1])


def test_what_larger_batches_gain_is_not_taken_for_being_ahead():
    grown = {"hours": 1, "to_save": True, "batch_size": 32, "largest_batch_size": 32, "noise_scale": 1e4}
    twice = sizes({8: 1.0, 16: 1.4, 32: 2.0})  # as many samples a second
    plan = replace(growing(PLAN), sizes=twice)
    as_planned = running(plan, share=0.62, speed=2.0, **grown)
    assert decide(as_planned).placement == as_planned.placement
    assert decide(running(PLAN, share=0.62, speed=2.0, **grown)).name == "step down"  # no sizes
    both = replace(plan, cheaper=(replace(plan.cheaper[0], sizes=twice),))
    assert decide(replace(as_planned, plan=both)).name == "step down"


@given(
    noise=st.none() | st.floats(1.0, 1e6),
    size=st.sampled_from([32, 64, 128]),
    speed=st.floats(0.5, 2.0),
    here=st.lists(st.floats(0.5, 2.0), min_size=2, max_size=2),
    there=st.lists(st.floats(0.5, 2.0), min_size=2, max_size=2),
)
def test_a_placement_is_forecast_in_batches_that_the_trainer_would_take_there(
    noise, size, speed, here, there
):
    """By brute force over the sizes that the job has reached, for any times of an update."""

    def times(growth: list[float]) -> dict[int, float]:
        return {32: 1.0, 64: growth[0], 128: growth[0] * growth[1]}

    plan = PLAN
    placement = replace(plan.cheaper[0], sizes=sizes(times(there)))
    plan = replace(plan, cheaper=(placement,), sizes=sizes(times(here)))
    gains = {n: n / 32 / seconds for n, seconds in times(here).items()}  # in samples a second
    beside = running(
        plan,
        hours=1,
        share=0.3,
        speed=speed * gains[size],
        batch_size=size,
        largest_batch_size=size,
        noise_scale=noise,
    )
    plain = replace(PLAN, cheaper=(replace(placement, sizes=()),))
    without = running(plain, hours=1, share=0.3, speed=speed)
    work_s = forecast(beside, placement).rest_s - 240
    planned_s = forecast(without, plain.cheaper[0]).rest_s - 240
    allowed = {n: n / 32 / seconds for n, seconds in times(there).items() if n <= size}
    goodput = {n: gain / ((noise or 0.0) + n) for n, gain in allowed.items()}
    best = max(goodput, key=lambda n: goodput[n])
    if noise is None or goodput[best] <= 1.05 * goodput[size]:
        best = size
    assert planned_s / work_s == pytest.approx(allowed[best], rel=0.05)


@dataclass
class Night:
    """A night played by the decisions alone: machines start in four minutes, and are looked at every two."""

    done: bool = False
    usd: float = 0.0
    names: list[str] = field(default_factory=list)


def played(
    plan: Plan, speeds: dict[str, float], *, gone: bool, seed: int, device_use: float | None = None
) -> Night:
    """Plays a night on machines that are so many times as fast as planned; d may be `gone`.

    `device_use` is that of the device of a.
    """
    draw, night = random.Random(seed), Night()
    seen_now = observed(plan, to_save=True)
    seen, ready, earlier, refused = 0.0, seen_now.now + 240, {}, {}
    for tick in range(1, 121):
        now = BEGUN.timestamp() + tick * TICK_S
        waits = gone and seen_now.placement.rental == CHEAP
        ran_s = 0.0 if waits else max(0.0, now - ready)
        per_s = (
            speeds[seen_now.placement.rental.machine]
            * plan.num_samples
            / (seen_now.placement.expected_s - 240)
        )
        seen += per_s * min(ran_s, TICK_S)
        night.usd += 0.0 if waits else TICK_S / HOUR_S * seen_now.placement.usd_per_hour
        if seen >= plan.num_samples:
            night.done = now <= seen_now.deadline
            return night
        error = 0.12 * (120 / (120 + ran_s)) ** 0.5
        rate = Rate(samples_per_s=per_s * exp(draw.gauss(0, 0.03)), error=error) if ran_s else None
        seen_now = replace(
            seen_now,
            now=now,
            seen=round(seen),
            rate=rate,
            state="queued" if waits else "running",
            starting_s=max(0.0, ready - now),
            refused=refused,
            device_use=device_use if ran_s and seen_now.placement.rental.machine == "a" else None,
        )
        choice = decide(seen_now)
        if choice.placement is None or choice.placement.rental == seen_now.placement.rental:
            continue
        if waits:
            refused = {**refused, seen_now.placement.rental: now}
        elif rate:
            earlier = {**earlier, seen_now.placement.rental: rate}
        night.names.append(choice.name)
        ready = now + 240
        seen_now = replace(
            seen_now,
            placement=choice.placement,
            since=now,
            earlier=earlier,
            left=tuple(earlier),
            before=seen_now.placement if rate else seen_now.before,
            num_moves=sum(name in ("step down", "undo") for name in night.names),
        )
    return night


def nights(lucky: float, spread: float) -> tuple[list[Night], list[Night]]:
    """Nights that stay, and the same that may move; d is about `2^lucky` times as fast as planned."""
    stayed, moved = [], []
    for seed in range(60):
        draw = random.Random(seed)
        plan = with_cheaper(plan_of(share=0.75), slower=draw.uniform(1.2, 2.5))
        speeds = {machine: 2 ** draw.uniform(-0.1, 1.5) for machine in "abc"}
        speeds["d"] = 2 ** draw.gauss(lucky, spread)
        gone = draw.random() < 0.2
        stayed.append(played(replace(plan, cheaper=()), speeds, gone=gone, seed=seed))
        moved.append(played(plan, speeds, gone=gone, seed=seed))
    return stayed, moved


@pytest.mark.slow
@pytest.mark.parametrize(("lucky", "spread", "most_usd"), [(0.35, 0.5, 0.95), (-0.75, 1.3, 1.02)])
def test_nights_that_may_move_are_all_in_time_for_less_and_none_oscillates(lucky, spread, most_usd):
    """Where the cheaper machine is half as much faster than planned as others, and where most are slower."""
    stayed, moved = nights(lucky, spread)
    assert all(night.done for night in stayed)
    assert all(night.done for night in moved)
    assert all(sum(name in ("step down", "undo") for name in night.names) <= MOST_MOVES for night in moved)
    assert max(len(night.names) for night in moved) <= 4  # forced ones among them
    assert sum("step down" in night.names for night in moved) > 10
    assert fmean(night.usd for night in moved) < most_usd * fmean(night.usd for night in stayed)
    if lucky < 0:
        assert sum("undo" in night.names for night in moved) > 2


@pytest.mark.slow
def test_nights_whose_device_waits_for_samples_cost_less_by_a_slower_one_and_are_all_in_time():
    """The plan takes d for up to four times as slow; in each third night d reads more slowly, too."""
    stayed, moved = [], []
    for seed in range(60):
        draw = random.Random(seed)
        use, slower = draw.uniform(0.05, 0.45), draw.uniform(1.5, 4.0)
        plan = with_cheaper(plan_of(share=0.5), slower=slower)
        reads = draw.uniform(0.3, 0.8) if seed % 3 == 0 else 1.0  # times as fast on d
        speed = 2 ** draw.gauss(0, 0.1)
        speeds = {
            "a": speed,
            "b": speed,
            "c": speed,
            "d": speed * slower / ((1 - use) / reads + use * slower),
        }
        played_nights = [
            played(each, speeds, gone=draw.random() < 0.2, seed=seed, device_use=use)
            for each in (replace(plan, cheaper=()), plan)
        ]
        stayed.append(played_nights[0])
        moved.append(played_nights[1])
    assert all(night.done for night in (*stayed, *moved))
    assert sum("step down" in night.names for night in moved) > 30
    assert max(len(night.names) for night in moved) <= 4
    saved = 1 - fmean(night.usd for night in moved) / fmean(night.usd for night in stayed)
    assert saved > 0.2, saved
