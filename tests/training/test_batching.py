"""Shares that end together: whatever the speeds, the noise and what happens on the way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.training.batching import KEEP_MOST, MAX_CHANGE, Batching, apportion, even


def times_of(sizes, speeds, *, fixed_s=0.0):
    """Seconds that workers of such speeds, in samples a second, take for their shares."""
    return fixed_s + np.array(sizes) / np.array(speeds)


def drive(batching, speeds, *, updates, noise=0.0, fixed_s=0.0, seed=0):
    """Updates on workers of such speeds; the shares of each."""
    random = np.random.default_rng(seed)
    taken = []
    for _ in range(updates):
        taken.append(batching.sizes)
        factors = random.lognormal(0, noise, len(speeds))
        times = times_of(batching.sizes, speeds, fixed_s=fixed_s) * factors
        batching.observe(times.tolist(), sizes=batching.sizes)
    return taken


def spread(sizes, speeds, *, fixed_s=0.0):
    times = times_of(sizes, speeds, fixed_s=fixed_s)
    return times.max() / times.min() - 1


@given(
    st.integers(1, 500),
    st.lists(st.tuples(st.floats(1e-3, 1e3), st.integers(0, 9), st.integers(0, 99)), min_size=1, max_size=9),
)
def test_shares_sum_to_the_batch_within_their_bounds_or_are_refused(batch_size, workers):
    weights = [weight for weight, _, _ in workers]
    least = [low for _, low, _ in workers]
    most = [low + room for _, low, room in workers]
    bounds = {"weights": weights, "least": least, "most": most}
    if not sum(least) <= batch_size <= sum(most):
        with pytest.raises(ValueError, match="do not add up to"):
            apportion(batch_size, **bounds)
        return
    sizes = apportion(batch_size, **bounds)
    assert sum(sizes) == batch_size
    assert all(low <= size <= high for low, size, high in zip(least, sizes, most, strict=True))


@given(st.integers(1, 500), st.lists(st.floats(0.1, 10), min_size=1, max_size=9))
def test_shares_without_bounds_are_within_one_of_their_proportion(batch_size, weights):
    free = {"least": [0] * len(weights), "most": [batch_size] * len(weights)}
    sizes = apportion(batch_size, weights=weights, **free)
    exact = batch_size * np.array(weights) / sum(weights)
    assert np.abs(np.array(sizes) - exact).max() < 1 + 1e-3


@given(
    times=st.lists(st.lists(st.floats(1e-6, 1e3), min_size=3, max_size=3), max_size=60),
    batch_size=st.integers(3, 300),
    other=st.integers(0, 300),
)
def test_whatever_the_times_the_sum_and_the_bounds_hold(times, batch_size, other):
    batching = Batching(batch_size=batch_size, world_size=3)
    for each in times:
        before = batching.sizes
        changed = batching.observe(each, sizes=before)
        assert changed == (batching.sizes != before)
        assert sum(batching.sizes) == batch_size
        assert min(batching.sizes) >= 1
        assert all(new <= MAX_CHANGE * old for old, new in zip(before, batching.sizes, strict=True))
        assert all(old <= MAX_CHANGE * new for old, new in zip(before, batching.sizes, strict=True))
        assert sum(batching.shares(other)) == other


@given(st.permutations([1, 2, 4]), st.integers(0, 2**32), st.floats(0, 0.02), st.integers(140, 2000))
def test_speeds_of_1_2_4_end_within_a_tenth_after_20_updates(speeds, seed, noise, batch_size):
    batching = Batching(batch_size=batch_size, world_size=3)
    drive(batching, speeds, updates=20, noise=noise, seed=seed)
    assert spread(batching.sizes, speeds) <= 0.1


def test_noise_is_not_mistaken_for_what_is_too_much_for_a_worker():
    """Throughputs before and after a raise are both noisy: none goes back to the share it had before."""
    apart = []
    for seed in range(300):
        batching = Batching(batch_size=700, world_size=3)
        drive(batching, [1, 4, 2], updates=20, noise=0.1, seed=seed)
        apart.append(spread(batching.sizes, [1, 4, 2]))
    assert max(apart) < 0.3


@given(st.floats(0, 0.2), st.integers(0, 2**32))
def test_a_fixed_cost_of_each_update_is_balanced_too(part, seed):
    speeds, fixed_s = [100, 200, 400], part * 256 / 700
    batching = Batching(batch_size=256, world_size=3)
    drive(batching, speeds, updates=40, noise=0.02, fixed_s=fixed_s, seed=seed)
    assert spread(batching.sizes, speeds, fixed_s=fixed_s) <= 0.1


@given(st.integers(2, 8), st.integers(2, 600), st.floats(0, 0.05), st.integers(0, 2**32))
def test_equal_workers_keep_equal_shares(world_size, batch_size, noise, seed):
    batching = Batching(batch_size=batch_size, world_size=world_size)
    taken = drive(batching, [1.0] * world_size, updates=60, noise=noise, seed=seed)
    assert set(taken) == {even(batch_size, world_size=world_size)}


def test_equal_workers_in_heavy_noise_lose_next_to_nothing():
    lost = []
    for seed in range(40):
        batching = Batching(batch_size=128, world_size=4)
        taken = drive(batching, [1.0] * 4, updates=200, noise=0.2, seed=seed)
        lost.append(np.mean([max(sizes) / 32 - 1 for sizes in taken]))
    assert np.mean(lost) < 0.01
    assert max(lost) < 0.1


def test_one_long_pause_moves_nothing():
    batching = Batching(batch_size=64, world_size=2)
    drive(batching, [1.0, 1.0], updates=12, noise=0.01)
    batching.observe([32.0, 3200.0], sizes=batching.sizes)
    drive(batching, [1.0, 1.0], updates=40, noise=0.01, seed=1)
    assert batching.sizes == (32, 32)


@pytest.mark.slow
@given(st.integers(0, 3), st.floats(0.1, 0.7), st.integers(0, 2**32), st.integers(10, 80))
def test_a_straggler_that_appears_is_absorbed_and_forgiven(rank, left, seed, before):
    speeds = np.ones(4)
    batching = Batching(batch_size=400, world_size=4)
    drive(batching, speeds, updates=before, noise=0.02, seed=seed)
    assert batching.sizes == (100,) * 4
    slowed = speeds.copy()
    slowed[rank] *= left
    drive(batching, slowed, updates=60, noise=0.02, seed=seed + 1)
    assert spread(batching.sizes, slowed) <= 0.1
    drive(batching, speeds, updates=60, noise=0.02, seed=seed + 2)
    assert spread(batching.sizes, speeds) <= 0.1


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_what_was_too_much_for_a_worker_is_not_tried_again_soon(noise):
    """Above 60 samples worker 1 runs out of cache, and is slower than it was with 50."""
    random = np.random.default_rng(0)

    def seconds(sizes):
        times = np.array([sizes[0] / 1.0, sizes[1] / (3.0 if sizes[1] <= 60 else 0.7)])
        return (times * random.lognormal(0, noise, 2)).tolist()

    batching, taken = Batching(batch_size=100, world_size=2), []
    for _ in range(KEEP_MOST):
        taken.append(batching.sizes[1])
        batching.observe(seconds(batching.sizes), sizes=batching.sizes)
    assert max(taken) > 60
    assert max(taken[40:]) <= 60
    assert batching.sizes[1] == 50


def test_times_of_shares_that_are_no_more_teach_nothing():
    batching = Batching(batch_size=30, world_size=2)
    drive(batching, [1.0, 4.0], updates=5)
    now = batching.sizes
    assert now != (15, 15)
    for _ in range(50):
        assert not batching.observe([15.0, 3.75], sizes=(15, 15))
        assert not batching.observe([0.0, 3.75], sizes=now)
    assert batching.sizes == now


@given(st.integers(0, 500), st.integers(1, 9))
def test_equal_shares_differ_by_one_at_most(batch_size, world_size):
    sizes = even(batch_size, world_size=world_size)
    assert sum(sizes) == batch_size
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(2, 500), st.integers(1, 9), st.integers(2, 4))
def test_no_share_but_an_empty_one_is_below_the_least(batch_size, world_size, least):
    sizes = even(batch_size, world_size=world_size, least=least)
    assert sum(sizes) == batch_size
    assert min(size for size in sizes if size) >= min(least, batch_size)
    if batch_size >= least * world_size:
        assert sizes == even(batch_size, world_size=world_size)
