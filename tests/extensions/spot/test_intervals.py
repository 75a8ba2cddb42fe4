"""The program gives the published intervals, Young's without memory, and what a simulation takes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.extensions.spot.intervals import schedule
from daybreak.extensions.spot.survival import MEASURED, Bathtub, Exponential, draw_s
from daybreak.machines.losses import checkpoint_interval_s

HOUR_S = 3600.0
HPDC20 = Bathtub(share=0.4137, early_s=0.9 * HOUR_S, late_s=0.76 * HOUR_S, end_s=24 * HOUR_S)


def test_a_job_of_five_hours_saves_when_the_paper_says():
    plan = schedule(HPDC20, work_s=5 * HOUR_S, save_s=60, restart_s=60)
    assert [round(each / 60) for each in plan.intervals_s] == [16, 18, 21, 25, 33, 50, 137]
    assert plan.expected_s / (5 * HOUR_S) == pytest.approx(1.057, abs=0.0005)


@pytest.mark.slow
@settings(max_examples=8)
@given(st.floats(30, 300), st.floats(3, 40))
def test_without_memory_it_saves_as_often_as_young_says(save_s, mean_hours):
    mean_s = mean_hours * HOUR_S
    plan = schedule(Exponential(mean_s=mean_s), work_s=12 * HOUR_S, save_s=save_s, restart_s=300)
    young_s = checkpoint_interval_s(save_s=save_s, mean_time_to_preemption_s=mean_s)
    number = max(1, 12 * HOUR_S / young_s)
    assert abs(len(plan.intervals_s) - number) <= 1 + 0.1 * number


@pytest.mark.slow
@settings(max_examples=8)
@given(st.integers(1, 30), st.floats(0, 600), st.floats(0, 900), st.floats(0, 24))
def test_the_intervals_add_up_to_the_work_which_takes_longer_than_that(hours, save_s, restart_s, age_hours):
    plan = schedule(
        MEASURED, work_s=hours * HOUR_S, save_s=save_s, restart_s=restart_s, age_s=age_hours * HOUR_S
    )
    assert sum(plan.intervals_s) == pytest.approx(hours * HOUR_S)
    assert plan.expected_s >= hours * HOUR_S


def test_an_old_machine_saves_more_rarely_than_a_young_one():
    young, old = (
        schedule(MEASURED, work_s=4 * HOUR_S, save_s=60, restart_s=300, age_s=age)
        for age in (0.0, 6 * HOUR_S)
    )
    assert len(old.intervals_s) < len(young.intervals_s)
    assert old.expected_s < young.expected_s


@pytest.mark.slow
def test_the_expected_time_is_what_a_simulation_takes():
    save_s, restart_s, work_s = 60.0, 120.0, 2 * HOUR_S
    curve = Exponential(mean_s=2 * HOUR_S)
    plan = schedule(curve, work_s=work_s, save_s=save_s, restart_s=restart_s)
    every_s = work_s / len(plan.intervals_s)  # alike without memory, to a step of the grid
    rng = np.random.default_rng(0)
    times = []
    for _ in range(3000):
        done_s = time_s = 0.0
        left_s = draw_s(curve, rng.random(1), longest_s=1e6)[0]
        while done_s < work_s - 1:
            takes_s = min(every_s, work_s - done_s) + save_s
            if left_s < takes_s:
                time_s += left_s + restart_s
                left_s = draw_s(curve, rng.random(1), longest_s=1e6)[0]
                continue
            left_s, time_s, done_s = left_s - takes_s, time_s + takes_s, done_s + every_s
        times.append(time_s)
    assert np.mean(times) == pytest.approx(plan.expected_s, rel=0.02)
