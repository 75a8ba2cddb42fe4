"""Saving as often as Young says loses least, and losses add up as a simulation of them does."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.machines.losses import MEAN_TIME_TO_PREEMPTION_S, checkpoint_interval_s, loss


@given(st.floats(0.1, 100), st.floats(600, 1e6), st.floats(0.2, 5))
def test_no_other_interval_loses_less(save_s, mean_s, factor):
    best_s = checkpoint_interval_s(save_s=save_s, mean_time_to_preemption_s=mean_s)

    def share(every_s: float) -> float:
        return loss(
            work_s=1, save_s=save_s, every_s=every_s, restart_s=60, mean_time_to_preemption_s=mean_s
        ).share

    assert share(best_s) <= share(best_s * factor) + 1e-12


def test_the_mean_time_is_that_of_the_measured_lifetimes():
    assert pytest.approx(16.9) == MEAN_TIME_TO_PREEMPTION_S / 3600


def test_the_loss_is_what_a_simulation_loses():
    rng = random.Random(0)
    work_s, every_s, restart_s, mean_s = 36_000.0, 600.0, 120.0, 7200.0
    expected = loss(
        work_s=work_s, save_s=0, every_s=every_s, restart_s=restart_s, mean_time_to_preemption_s=mean_s
    )
    lost = []
    for _ in range(4000):
        total, at = 0.0, rng.expovariate(1 / mean_s)
        while at < work_s:
            total += restart_s + at % every_s
            at += rng.expovariate(1 / mean_s)
        lost.append(total)
    mean = sum(lost) / len(lost)
    deviation = (sum((value - mean) ** 2 for value in lost) / len(lost)) ** 0.5
    assert mean == pytest.approx(expected.share * work_s, rel=0.03)
    assert deviation == pytest.approx(expected.deviation_s, rel=0.05)
