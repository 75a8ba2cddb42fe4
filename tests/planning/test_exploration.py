"""Nights explore while that pays and is paid for, and then stay with the best."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.planning.exploration import Aim, Step, next_step, of_scales
from pipeline.prediction.quality import Run, Scale, TimeToQuality

SCALES = [Scale(batch_size=b, num_workers=k) for b in (256, 512, 1024) for k in (2, 4, 8)]
MODEL = TimeToQuality(SCALES)
AIM = Aim(usd_per_worker_hour=1.0)


def run(k: int, *, slope: float = 0.3, sync: float = 0.05) -> Run:
    scale = SCALES[k]
    hours = 40 * (scale.batch_size / 512) ** -slope * (4 / scale.num_workers + sync * scale.num_workers / 4)
    return Run(scale=scale, hours=hours)


def step_of(known: list[Run], aim: Aim, *, explore_usd: float) -> Step:
    return next_step(of_scales(MODEL, known, aim), objective=aim.objective, explore_usd=explore_usd)


def nights(first: int, aim: Aim, *, explore_usd: float, count: int = 12, **how) -> list[Run]:
    known = [run(first, **how)]
    for _ in range(count - 1):
        step = step_of(known, aim, explore_usd=explore_usd)
        known.append(run(step.taken, **how))
    return known


def best_after(known: list[Run], aim: Aim) -> Run:
    return run(step_of(known, aim, explore_usd=0).best)


def usd(one: Run) -> float:
    return one.hours * one.scale.num_workers


@settings(max_examples=15)
@given(st.integers(0, 8), st.floats(0.0, 0.6), st.floats(0.01, 0.3))
def test_the_search_ends_at_a_scale_as_cheap_as_any(first, slope, sync):
    found = nights(first, AIM, explore_usd=1e9, slope=slope, sync=sync)
    best = step_of(found, AIM, explore_usd=0.0).best
    least = min(usd(run(k, slope=slope, sync=sync)) for k in range(9))
    assert usd(run(best, slope=slope, sync=sync)) <= 1.1 * least


def test_the_fastest_has_the_most_workers():
    aim = Aim(objective="time", usd_per_worker_hour=1.0)
    assert best_after(nights(0, aim, explore_usd=1e9), aim).scale == Scale(batch_size=1024, num_workers=8)


def test_nothing_is_explored_without_dollars_for_it():
    known = [run(4)]
    step = step_of(known, AIM, explore_usd=0.0)
    assert step.explore_usd == 0
    assert step.taken == step.best
    assert "nothing promises more than it costs to try" in step.reason


@settings(max_examples=25)
@given(st.integers(0, 8), st.floats(0, 300), st.sampled_from(["cost", "time"]))
def test_what_exploring_is_expected_to_cost_is_within_what_is_left(first, explore_usd, objective):
    step = step_of([run(first)], Aim(objective=objective, usd_per_worker_hour=1.0), explore_usd=explore_usd)
    assert 0 <= step.explore_usd <= explore_usd


def test_a_deadline_leaves_out_what_is_cheap_and_late():
    hours = sorted(run(k).hours for k in range(9))
    aim = Aim(usd_per_worker_hour=1.0, deadline_hours=1.1 * hours[2])
    best = best_after(nights(8, aim, explore_usd=1e9), aim)
    assert best.hours <= aim.deadline_hours
    assert usd(best) <= 1.1 * min(usd(run(k)) for k in range(9) if run(k).hours <= aim.deadline_hours)


def test_where_nothing_is_in_time_the_fastest_is_best():
    step = step_of(
        [run(k) for k in range(9)], Aim(usd_per_worker_hour=1.0, deadline_hours=0.1), explore_usd=0.0
    )
    assert step.best == min(range(9), key=lambda k: run(k).hours)


def test_the_reason_has_what_it_may_save_and_what_it_costs_to_try():
    steps = [step_of([run(k)], AIM, explore_usd=1e9) for k in range(9)]
    exploring = [step for step in steps if step.taken != step.best]
    assert exploring
    assert all("may save $" in step.reason and "trying costs $" in step.reason for step in exploring)


def test_the_search_stops_by_itself():
    found = nights(0, AIM, explore_usd=1e9, count=20)
    assert len({one.scale for one in found[-8:]}) == 1


def test_without_a_night_there_is_nothing_to_go_on():
    with pytest.raises(ValueError, match="nothing was measured"):
        step_of([], AIM, explore_usd=1.0)


def test_a_run_that_is_known_well_is_not_explored_again():
    known = [run(k) for k in range(9) for _ in range(3)]
    step = step_of(known, AIM, explore_usd=1e9)
    costs = np.array([usd(run(k)) for k in range(9)])
    assert usd(run(step.taken)) <= 1.05 * costs.min()
