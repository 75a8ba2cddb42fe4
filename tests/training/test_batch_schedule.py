"""When a batch grows, and how far AdaScale has come."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.contract.records import Size
from pipeline.training.batch_schedule import LEAST_LOOKS, BatchSchedule

positive = st.floats(1e-3, 1e6)


def pace(*, rule="by_optimizer", batch_size=64, num_samples=10_000) -> BatchSchedule:
    return BatchSchedule(
        batch_size=batch_size, base_size=64, base_samples=num_samples, num_samples=num_samples, rule=rule
    )


def after_updates(made: BatchSchedule, *, scale: float, times: int = LEAST_LOOKS) -> BatchSchedule:
    """The pace after so many updates that show this noise scale."""
    for _ in range(times):
        made.step(64, noise=(1.0, scale))
    return made


def sizes(*, fixed_s: float, per_sample_s: float) -> tuple[Size, ...]:
    return tuple(
        Size(batch_size=size, micro_batch_size=size, update_s=fixed_s + per_sample_s * size)
        for size in (64, 128, 256)
    )


@given(positive, positive, st.floats(1e-3, 1e6))
def test_it_grows_exactly_where_goodput_gains_five_percent(fixed_s, per_sample_s, scale):
    offered = sizes(fixed_s=fixed_s, per_sample_s=per_sample_s)
    made = after_updates(pace(), scale=scale)

    def goodput(size: Size) -> float:
        return size.batch_size / size.update_s * (scale + 64) / (scale + size.batch_size)

    gain = goodput(offered[1]) / goodput(offered[0])
    if abs(gain - 1.05) > 1e-6:
        assert made.next_size(offered, seen=0, most=1e9) == (128 if gain > 1.05 else 0)


def test_where_an_update_takes_as_long_whatever_its_size_noise_decides():
    free = sizes(fixed_s=1.0, per_sample_s=0.0)
    assert after_updates(pace(), scale=1000.0).next_size(free, seen=0, most=1e9) == 128
    assert after_updates(pace(), scale=0.1).next_size(free, seen=0, most=1e9) == 0


def test_where_time_is_by_the_sample_no_batch_grows():
    assert (
        after_updates(pace(), scale=1e6).next_size(sizes(fixed_s=0.0, per_sample_s=1.0), seen=0, most=1e9)
        == 0
    )


def test_few_looks_the_end_of_a_rule_or_a_size_not_yet_taken_leave_it_as_it_is():
    free = sizes(fixed_s=1.0, per_sample_s=0.0)
    assert after_updates(pace(), scale=1000.0, times=LEAST_LOOKS - 1).next_size(free, seen=0, most=1e9) == 0
    made = after_updates(pace(), scale=1000.0)
    assert made.next_size(free, seen=0, most=127) == 0
    made.grow(128, start=640)
    assert made.next_size(free, seen=600, most=1e9) == 0
    assert made.next_size(free, seen=640, most=1e9) == 256
    assert (made.size(639), made.size(640)) == (64, 128)


@given(st.lists(st.tuples(st.floats(-1, 10), st.floats(-10, 1e4)), max_size=40))
def test_what_was_saved_decides_the_same(estimates):
    made, free = pace(rule="adascale", batch_size=128), sizes(fixed_s=1.0, per_sample_s=0.0)
    for estimate in estimates:
        made.step(128, noise=estimate)
    made.grow(256, start=1000)
    other = pace(rule="adascale", batch_size=128)
    other.load(json.loads(json.dumps(made.save())))
    assert other.save() == made.save()
    assert other.next_size(free, seen=2000, most=1e9) == made.next_size(free, seen=2000, most=1e9)
    assert (other.tau, other.noise_scale, other.size(1000)) == (made.tau, made.noise_scale, 256)


@given(positive, positive, st.integers(1, 8))
def test_tau_grows_by_the_gain_and_is_done_after_the_updates_it_stands_for(square, variance, times):
    made = pace(rule="adascale", batch_size=64 * times, num_samples=6400)
    made.step(64 * times, noise=(square, variance))
    assert made.tau == pytest.approx(1)  # nothing was known of the noise
    gain = made.gain(64 * times)
    assert gain == pytest.approx((square + variance / 64) / (square + variance / 64 / times))
    updates = 1
    while not made.done:
        made.step(64 * times, noise=None)
        updates += 1
    assert updates == pytest.approx(1 + 99 / gain, abs=1)


def test_without_adascale_it_is_never_done_by_itself():
    made = after_updates(pace(), scale=10.0, times=1000)
    assert (made.tau, made.done, made.position) == (0, False, 0)
