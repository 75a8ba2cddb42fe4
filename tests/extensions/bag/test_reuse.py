"""A machine is kept as the bathtub says, and a run costs what lives drawn from its formula cost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from daybreak.extensions.bag.reuse import Runs, mean_s, paid_s, reuse
from daybreak.extensions.spot.survival import PUBLISHED, Exponential, draw_s
from tests.extensions.bag.lives import drawn, machine_time, published_share_gone

HOUR_S = 3600.0
HOURLY = Runs(run_s=HOUR_S, boot_s=150.0)


def test_a_machine_that_has_outlived_its_first_hours_is_kept_until_the_end_is_near() -> None:
    rule = reuse(PUBLISHED, HOURLY, num_runs=1000)
    assert 20 * HOUR_S < rule.replace_at_s < 24 * HOUR_S


def test_a_machine_whose_age_does_not_matter_is_never_replaced() -> None:
    assert reuse(Exponential(mean_s=10 * HOUR_S), HOURLY, num_runs=1000).replace_at_s == float("inf")


@settings(max_examples=30)
@given(st.floats(0.1, 6.0), st.floats(0.0, 900.0))
def test_the_rule_costs_hardly_more_than_the_best_number_of_runs_on_a_machine(
    hours: float, boot_s: float
) -> None:
    runs = Runs(run_s=hours * HOUR_S, boot_s=boot_s)
    best_s = min(paid_s(PUBLISHED, runs, num_runs=number) for number in range(1, int(26 / hours) + 2))
    assert best_s <= mean_s(PUBLISHED, runs, num_runs=1000) <= 1.02 * best_s


@pytest.mark.parametrize("hours", [0.5, 2.0, 5.0])
def test_a_run_takes_the_machine_time_that_lives_drawn_from_the_published_formula_take(hours: float) -> None:
    runs = Runs(run_s=hours * HOUR_S, boot_s=300.0)
    rule = reuse(PUBLISHED, runs, num_runs=1000)
    took_s = machine_time(drawn(2000, seed=3), runs, replace_at_s=rule.replace_at_s)
    assert paid_s(PUBLISHED, runs, num_runs=rule.num_runs) == pytest.approx(took_s, rel=0.03)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_lives_that_are_drawn_are_as_the_hazard_says_and_others_for_each_seed(seed: int) -> None:
    chances = 1 - np.random.default_rng(seed).random(1000)
    lives_s = draw_s(PUBLISHED, chances, longest_s=1000 * HOUR_S)
    assert kstest(lives_s / HOUR_S, published_share_gone).pvalue > 0.01
    assert kstest(drawn(1000, seed=seed) / HOUR_S, published_share_gone).pvalue > 0.01
    assert not set(drawn(1000, seed=seed)) & set(drawn(1000, seed=seed + 1))


def test_a_command_that_saves_does_so_when_the_paper_says_and_rarely_on_an_old_machine() -> None:
    rule = reuse(PUBLISHED, Runs(run_s=5 * HOUR_S, save_s=60.0, boot_s=60.0), num_runs=100)
    assert [round(each / 60) for each in rule.intervals_s(0.0)] == [16, 18, 21, 25, 33, 50, 137]
    assert rule.intervals_s(6 * HOUR_S) == (5 * HOUR_S,)


def test_long_runs_on_machines_that_die_young_take_half_the_time_if_they_save() -> None:
    runs = Runs(run_s=5 * HOUR_S, boot_s=60.0)
    saving_s = mean_s(Exponential(mean_s=2 * HOUR_S), replace(runs, save_s=30.0), num_runs=10)
    assert saving_s < 0.5 * mean_s(Exponential(mean_s=2 * HOUR_S), runs, num_runs=10)
