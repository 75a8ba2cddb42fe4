"""What cannot be is left out and said, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.prediction.measurements import SUPERLINEAR, Measurement, believable


def step(seconds: float, *, workers: tuple[int, ...] = (1,), micro: float = 32) -> Measurement:
    return Measurement(workers=workers, micro_batch_size=micro, step_s=seconds)


ALONE = [step(0.1), step(0.11), step(0.12)]


def test_a_step_150_times_too_fast_is_left_out_with_its_figures():
    kept, told = believable([*ALONE, step(0.1 / 150, workers=(4, 4)), step(0.13, workers=(4, 4))])
    assert [each.step_s for each in kept] == [0.1, 0.11, 0.12, 0.13]
    assert len(told) == 1
    assert "4+4 workers" in told[0]
    assert "165 times" in told[0]  # of the middle of the three, which takes 0.11 s


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_left_out(seconds):
    kept, told = believable([*ALONE, step(seconds)])
    assert kept == ALONE
    assert "is not a valid time" in told[0]


def test_no_device_is_faster_than_its_peak():
    kept, told = believable([step(0.1), step(0.01)], least_s_per_sample=1e-3)
    assert kept == [step(0.1)]
    assert "0.032 s at the device's peak rate" in told[0]


def test_one_absurd_step_on_one_device_does_not_set_the_rate():
    kept, told = believable([*ALONE, step(1e-4), step(0.13, workers=(2,))])
    assert step(1e-4) not in kept
    assert step(0.13, workers=(2,)) in kept
    assert len(told) == 1


def test_a_setting_without_workers_or_samples_is_left_out():
    assert believable([step(0.1, workers=(2, 0)), step(0.1, micro=0)])[0] == []


@given(st.lists(st.floats(0.0, 1.0), max_size=20), st.integers(1, 8))
def test_no_machine_that_scales_at_most_linearly_loses_a_measurement(lost, workers):
    slower = [step(0.12 * (1 + each), workers=(workers,)) for each in lost]
    kept, told = believable([*ALONE, *slower])
    assert kept == [*ALONE, *slower]
    assert not told


@given(st.lists(st.tuples(st.floats(1e-6, 1.0), st.integers(1, 16)), min_size=1, max_size=20))
def test_what_is_kept_is_never_far_above_linear(rows):
    kept, told = believable([*ALONE, *(step(seconds, workers=(k,)) for seconds, k in rows)])
    alone = sorted((each.samples_per_s for each in kept if each.num_workers == 1), reverse=True)
    assert len(kept) + len(told) == len(rows) + 3
    for each in kept:
        if each.num_workers > 1:
            assert each.samples_per_s <= alone[0] * SUPERLINEAR * each.num_workers
