"""A forecast is exact where nothing is lost, follows the formula where much is, and widens with doubt."""

from dataclasses import replace

import pytest

from daybreak.contract.errors import ParamsError
from daybreak.extensions.bag.bag_forecast import BagScenario, forecast
from daybreak.extensions.bag.reuse import Reuse, Runs, paid_s, reuse
from daybreak.extensions.spot.survival import PUBLISHED, Exponential

HOUR_S = 3600.0
KEPT = Reuse(num_runs=1000, replace_at_s=float("inf"))
SAFE = BagScenario(
    num_runs=12,
    num_needed=12,
    num_machines=4,
    durations_s=(100.0,),
    boot_s=10.0,
    lifetime=Exponential(mean_s=1e12),
    reuse=KEPT,
)


def test_without_losses_the_runs_follow_each_other() -> None:
    played = forecast(SAFE)
    assert played.elapsed_s.low == pytest.approx(310.0) == played.elapsed_s.high
    assert played.machine_s.mean == pytest.approx(4 * 310.0)


def test_spare_seeds_cost_the_machines_that_are_at_work_on_them_at_the_end() -> None:
    spare = forecast(replace(SAFE, num_runs=14, num_needed=9))
    assert spare.elapsed_s.mean == pytest.approx(310.0)
    assert spare.machine_s.mean == pytest.approx(4 * 310.0)


def test_a_long_bag_takes_the_machine_time_of_the_formula() -> None:
    runs = Runs(run_s=HOUR_S, boot_s=300.0)
    rule = reuse(PUBLISHED, runs, num_runs=1000)
    setting = BagScenario(
        num_runs=1000,
        num_needed=1000,
        num_machines=2,
        durations_s=(HOUR_S,),
        boot_s=300.0,
        lifetime=PUBLISHED,
        reuse=rule,
    )
    formula_s = 1000 * paid_s(PUBLISHED, runs, num_runs=rule.num_runs)
    assert forecast(setting).machine_s.mean == pytest.approx(formula_s, rel=0.01)


def test_a_hazard_learned_from_few_losses_gives_a_wider_interval() -> None:
    known = replace(SAFE, lifetime=Exponential(mean_s=300.0), num_runs=60, num_needed=60)
    doubted = replace(known, num_losses=4.0)
    spans = [
        (each.high - each.low) / each.mean
        for each in (forecast(known).elapsed_s, forecast(doubted).elapsed_s)
    ]
    assert spans[1] > 1.3 * spans[0]


def test_a_command_that_saves_loses_less() -> None:
    short = replace(SAFE, lifetime=Exponential(mean_s=200.0))
    saving = replace(
        short, save_s=1.0, reuse=Reuse(num_runs=9, replace_at_s=float("inf"), saves=((0.0, (25.0,) * 4),))
    )
    assert forecast(saving).elapsed_s.mean < 0.9 * forecast(short).elapsed_s.mean


def test_a_run_that_no_machine_outlives_is_refused_unless_it_saves() -> None:
    """Two weeks on machines that live ten hours: draws of them did not end."""
    long = replace(
        SAFE,
        num_runs=1,
        num_needed=1,
        durations_s=(14 * 24 * HOUR_S,),
        lifetime=Exponential(mean_s=10 * HOUR_S),
    )
    with pytest.raises(ParamsError, match=r"run of 14 d hardly ever ends .* --save-s"):
        forecast(long)
    saves = Reuse(num_runs=1, replace_at_s=float("inf"), saves=((0.0, (HOUR_S,) * (14 * 24)),))
    assert forecast(replace(long, save_s=20.0, reuse=saves)).elapsed_s.mean > 14 * 24 * HOUR_S
