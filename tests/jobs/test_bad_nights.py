"""Nights in a cloud where things go wrong: a decision in time, within the budget, by one job at a time."""

import logging
from datetime import UTC, datetime, timedelta
from math import inf

import pytest

from daybreak.contract.errors import JobError
from daybreak.contract.record_parts import Rental
from daybreak.contract.record_types import Training
from daybreak.jobs.heartbeats import Heartbeats
from daybreak.jobs.reconciler import ENDING_S, GRACE_S
from tests.jobs import plans
from tests.jobs.cloud import BEGUN, HOUR_S, TICK_S, Cloud, Luck, bad_night, night_of, plan_of, play

pytestmark = pytest.mark.usefixtures("folder_in_memory")


def ways(cloud: Cloud) -> list[tuple[str, str]]:
    return [(live.job.rental.machine, live.job.rental.strategy) for live in cloud.jobs]


@pytest.mark.slow
def test_an_undisturbed_night_costs_what_the_plan_says():
    cloud = play(plan_of(), Luck())
    training = cloud.decision
    assert isinstance(training, Training)
    assert (training.stopped_by, training.num_samples, training.fallbacks) == ("finished", 7680, ())
    assert cloud.billed_usd <= training.cost_usd <= cloud.billed_usd + 2 * TICK_S * 3 / HOUR_S
    (live,) = cloud.jobs
    assert live.job.rental == Rental(machine="a", region="us-central1")


@pytest.mark.slow
def test_spot_that_is_too_slow_is_left_while_it_runs_and_training_goes_on_from_there():
    cloud = play(plan_of(strategy="spot", share=0.5), Luck(factors={"a": 0.57}))
    assert ways(cloud) == [("a", "spot"), ("a", "on-demand")]
    assert [live.lost for live in cloud.jobs] == [inf, inf]
    assert cloud.most_live == 1
    training = cloud.decision
    assert isinstance(training, Training)
    assert cloud.fallbacks_taken == ["on-demand"]
    assert training.fallbacks[0].usd > 0
    assert training.fallbacks[0].reason.startswith(
        "another loss of spot, or a longer wait for it, could not be"
    )
    assert (training.stopped_by, training.num_samples, training.num_restarts) == ("finished", 7680, 1)


@pytest.mark.slow
def test_spot_that_is_lost_again_and_again_is_no_failure():
    cloud = play(plan_of(strategy="spot", share=0.25), Luck(life_s=0.2 * HOUR_S, seed=3))
    assert isinstance(cloud.decision, Training)
    assert len([live for live in cloud.jobs if live.state == "preempted"]) > 6
    assert cloud.decision.stopped_by == "finished"


@pytest.mark.slow
def test_training_that_is_half_as_fast_is_moved_to_a_faster_machine_before_it_would_end_early():
    cloud = play(plan_of(share=0.6), Luck(factors={"a": 0.5}))
    assert ways(cloud) == [("a", "on-demand"), ("b", "on-demand")]
    assert cloud.fallbacks_taken == ["scale up"]
    assert cloud.decision.stopped_by == "finished"


@pytest.mark.slow
def test_with_no_money_for_a_faster_machine_it_ends_early_with_the_rate_decayed():
    cloud = play(plan_of(share=0.6), Luck(factors={"a": 0.5}), budget_usd=13)
    assert ways(cloud) == [("a", "on-demand")]
    assert cloud.fallbacks_taken == ["finish early"]
    assert cloud.decision.stopped_by == "deadline"
    assert 0.6 * 7680 < cloud.decision.num_samples < 7680


def test_a_budget_that_ends_before_the_deadline_is_kept():
    cloud = play(plan_of(share=0.6), Luck(factors={"a": 0.5}), budget_usd=8)
    assert cloud.decision.stopped_by == "budget"
    assert cloud.fallbacks_taken == ["finish early"]
    assert 6 < cloud.billed_usd <= cloud.decision.cost_usd <= 8


@pytest.mark.slow
def test_a_job_that_hangs_is_ended_and_goes_on_from_its_checkpoint(caplog):
    cloud = play(plan_of(share=0.4), Luck(hangs_at=4000))
    assert cloud.decision.stopped_by == "finished"
    assert cloud.decision.num_restarts == 1
    assert "nothing was heard of it for " in caplog.text
    assert cloud.most_live == 1


@pytest.mark.parametrize("strategy", ["on-demand", "flex-start"])
def test_a_machine_that_never_comes_is_waited_for_until_the_last_that_would_be_in_time(strategy):
    cloud = play(plan_of(strategy=strategy, share=0.5), Luck(stocked_out={"a": inf}))
    assert cloud.decision.stopped_by == "finished"
    assert cloud.decision.num_samples == 7680
    assert {machine for machine, _ in ways(cloud)[1:]} <= {"a", "b", "c"}
    assert "next fallback" in cloud.fallbacks_taken
    assert cloud.most_live == 1


@pytest.mark.parametrize("strategy", ["on-demand", "flex-start", "spot"])
def test_a_machine_that_is_refused_is_left_for_the_next_fallback_at_once(strategy):
    cloud = play(plan_of(strategy=strategy, share=0.5), Luck(refused={"a": inf}))
    assert cloud.decision.stopped_by == "finished"
    assert "next fallback" in cloud.fallbacks_taken
    taken = next(fallback for fallback in cloud.decision.fallbacks if fallback.name == "next fallback")
    assert "cannot be had" in taken.reason
    assert strategy == "spot" or taken.time - BEGUN < timedelta(minutes=10)
    assert len(cloud.jobs) < 60  # nor asked for at every look


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["on-demand", "spot"])
def test_a_region_that_refuses_all_night_is_left_for_the_next_one(strategy):
    params = plans.make_params(strategy=strategy, machines="a")
    plan = plans.planned(night_of(budget_usd=100), params, share=0.5)
    assert plan.rental.region == plans.HOME
    cloud = play(plan, Luck(refused={plans.HOME: inf}), params=params)
    assert isinstance(cloud.decision, Training)
    assert cloud.decision.stopped_by == "finished"
    assert [live.job.rental.region for live in cloud.jobs] == [plans.HOME, plans.NEXT]
    assert cloud.jobs[1].job.rental.strategy == strategy
    assert cloud.jobs[1].asked - cloud.began <= 2 * TICK_S


@pytest.mark.slow
def test_places_that_are_all_refused_are_asked_in_turn_until_one_is_there():
    params = plans.make_params(strategy="on-demand", machines="a")
    plan = plans.planned(night_of(budget_usd=100), params, share=0.4)
    hours = {plans.HOME: 2.0, plans.NEXT: 1.0, plans.FAR: 2.0}
    cloud = play(plan, Luck(refused={r: h * HOUR_S for r, h in hours.items()}), params=params)
    assert isinstance(cloud.decision, Training)
    assert cloud.decision.stopped_by == "finished"
    assert [live.job.rental.region for live in cloud.jobs[:6]] == [plans.HOME, plans.NEXT, plans.FAR] * 2
    assert cloud.jobs[-1].job.rental.region == plans.NEXT
    assert cloud.jobs[-1].asked - cloud.began < 1.5 * HOUR_S
    # Nothing was paid for what was refused, and two looks at most for what ran.
    assert cloud.decision.cost_usd <= cloud.billed_usd + 2 * TICK_S * cloud.dearest


@pytest.mark.slow
def test_where_all_is_refused_the_champion_is_kept():
    cloud = play(plan_of(), Luck(refused=dict.fromkeys("abc", inf)))
    assert isinstance(cloud.decision, JobError)


def test_nothing_to_be_had_at_all_keeps_the_champion():
    cloud = play(plan_of(), Luck(stocked_out={"a": inf, "b": inf, "c": inf}))
    assert isinstance(cloud.decision, JobError)
    assert "the champion stays; allow more by night.train_hours" in str(cloud.decision)
    assert cloud.billed_usd == 0
    assert all(live.ended < inf for live in cloud.jobs)


def test_an_error_of_the_user_is_told_at_once():
    cloud = play(plan_of(), Luck(user_error=True))
    assert "the loss has shape [32, 1]" in str(cloud.decision)
    assert cloud.decided_at - cloud.began < HOUR_S


@pytest.mark.slow
def test_a_launcher_that_is_killed_in_every_third_call_to_the_cloud_never_has_two_jobs():
    for seed in range(3):
        name = f"night{seed}"
        luck = Luck(seed=seed, kills=0.3, life_s=HOUR_S / 2, factors={"a": 0.8})
        cloud = play(plan_of(strategy="spot", share=0.5), luck, name=name)
        assert isinstance(cloud.decision, Training)
        assert cloud.most_live == 1


def test_a_job_of_which_nothing_is_heard_is_given_time_to_start_and_to_start_again():
    """600 s for a hang and 120 s for workers that are started in place; a first start may take longer."""
    heartbeats = Heartbeats([])
    times = {"asked_at": 0.0, "run_at": 100.0, "start_s": 1680.0, "hang_after_s": 120.0}
    assert not heartbeats.hang(1780.0, **times)
    assert "for 1,681 s" in heartbeats.hang(1781.0, **times)
    beats = [
        {
            "time": datetime.fromtimestamp(1000.0 + 40 * n, UTC).isoformat(),
            "seen": 32 * n,
            "num_updates": n,
            "loss": 1.0,
            "rate": 0.1,
            "samples_per_s": 0.8,
            "memory_bytes": 1,
        }
        for n in range(5)
    ]
    slow = Heartbeats(beats)
    assert not slow.hang(1160 + 120 + 800.0, **times)  # 20 updates of 40 s
    assert slow.hang(1160 + 120 + 801.0, **times)
    assert not slow.hang(3000.0, **{**times, "asked_at": 1500.0, "run_at": 1600.0})
    without_room = Heartbeats(beats, moved_at=2000.0)
    assert not without_room.hang(2000 + 120 + 800.0, **times)
    assert without_room.hang(2000 + 120 + 801.0, **times)


def test_the_rate_is_that_of_batches_as_large_as_they_are_now():
    """A job whose batch doubles trains on half as many samples a second more from then on."""
    beats, seen = [], 0
    for second in range(100):
        size = 32 if second < 80 else 64
        seen += 320 if second < 80 else 480
        beats.append(
            {
                "time": datetime.fromtimestamp(1000.0 + second, UTC).isoformat(),
                "seen": seen,
                "num_updates": second,
                "loss": 1.0,
                "rate": 0.1,
                "samples_per_s": 480.0,
                "memory_bytes": 1,
                "batch_size": size,
            }
        )
    assert Heartbeats(beats[:80]).rate(since=0).samples_per_s == pytest.approx(320)
    assert Heartbeats(beats).rate(since=0).samples_per_s == pytest.approx(480)
    assert Heartbeats(beats[:81]).rate(since=0) is None


@pytest.mark.slow
def test_some_of_the_bad_nights_of_the_benchmark(folder_in_memory):
    logging.getLogger("daybreak").setLevel(logging.ERROR)
    seeds = [*range(4), 42]  # in 42, the launcher decides while the job is told to end and has not yet
    nights = [bad_night(seed, folder_in_memory / str(seed)) for seed in seeds]
    logging.getLogger("daybreak").setLevel(logging.NOTSET)
    assert sum(isinstance(night.decision, Training) for night in nights) >= 4
    for night in nights:
        late_s = night.decided_at - night.night.train_until.timestamp()
        assert late_s <= GRACE_S + ENDING_S + TICK_S
        assert night.billed_usd <= night.night.budget_usd + night.dearest * TICK_S
        assert night.most_live <= 1
        if isinstance(night.decision, Training):
            assert night.decision.cost_usd >= night.billed_usd - 1e-6
