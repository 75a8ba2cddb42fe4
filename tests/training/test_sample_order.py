"""The order of samples: a permutation per epoch, the same however it is cut."""

import hashlib
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.training.sample_order import PART, WINDOW, indices, share

seeds = st.integers(min_value=-(2**70), max_value=2**70)


@given(seed=seeds, num_samples=st.integers(1, 3000), epoch=st.integers(0, 10**6))
def test_each_sample_comes_once_per_epoch(seed, num_samples, epoch):
    start = epoch * num_samples
    order = indices(seed=seed, num_samples=num_samples, start=start, stop=start + num_samples)
    assert sorted(order.tolist()) == list(range(num_samples))


@pytest.mark.slow
@given(
    seed=seeds,
    num_samples=st.sampled_from([1, 2, 3, 17, 1000, PART - 1, PART, PART + 1, 3 * PART + 5]),
    cuts=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 5)), max_size=32),
    block=st.sampled_from([1, 5, 32]),
)
@settings(max_examples=50, deadline=None)
def test_any_cutting_and_any_change_of_workers_give_the_same_order(seed, num_samples, cuts, block):
    end = 2 * num_samples + 1
    edges = sorted({(0, 1), (end, 1), *((int(cut * end), world_size) for cut, world_size in cuts)})
    order = {"seed": seed, "num_samples": num_samples, "block": block}
    whole = indices(start=0, stop=end, **order)
    parts = [
        share(indices(start=start, stop=stop, **order), rank=rank, world_size=world_size)
        for (start, world_size), (stop, _) in pairwise(edges)
        for rank in range(world_size)
    ]
    assert np.array_equal(np.concatenate(parts), whole)


def test_seeds_and_epochs_give_other_orders():
    orders = {
        tuple(indices(seed=seed, num_samples=100, start=100 * epoch, stop=100 * epoch + 100).tolist())
        for seed in range(20)
        for epoch in range(20)
    }
    assert len(orders) == 400


@pytest.mark.slow
def test_every_place_is_as_likely_for_every_sample():
    n, rounds = 10, 2000
    counts = np.zeros((n, n))
    for seed in range(rounds):
        counts[np.arange(n), indices(seed=seed, num_samples=n, start=0, stop=n)] += 1
    chi_squared = float(((counts - rounds / n) ** 2 / (rounds / n)).sum())
    assert chi_squared < 130  # 81 degrees of freedom: 99.95 % quantile


@pytest.mark.parametrize(("block", "limit"), [(1, 0.02), (16, 0.05), (512, 0.05)])
def test_neighbours_are_not_alike(block, limit):
    order = indices(seed=3, num_samples=10**6, start=0, stop=10**6, block=block)
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < limit


def test_the_order_of_a_full_shuffle_never_changes():
    """Checkpoints of older code go on in it."""
    sizes = [(7, 1), (-3, 17), (2**70, PART), (11, 3 * PART + 5), (0, 10**7)]
    orders = [indices(seed=seed, num_samples=n, start=3 * n - 500, stop=3 * n + 500) for seed, n in sizes]
    digest = hashlib.sha256(np.concatenate(orders).tobytes()).hexdigest()
    assert digest == "174ac17db67fe4ca39e450abf2ffdeb20ee77f338a03531fc934a533071341d0"


def test_a_window_is_shuffled_and_of_whole_blocks_from_everywhere():
    block, size = 100, WINDOW * 100
    order = indices(seed=5, num_samples=10**6, start=10**6 + size, stop=10**6 + 2 * size, block=block)
    blocks, counts = np.unique(order // block, return_counts=True)
    assert len(blocks) == WINDOW
    assert set(counts.tolist()) == {block}
    assert np.ptp(blocks) > 5000
    quarters = np.split(order // block, 4)
    assert all(len(np.unique(quarter)) == WINDOW for quarter in quarters)
    assert not np.isin(np.diff(order), [1, -1]).mean() > 0.01


def test_epochs_and_windows_are_shuffled_unlike():
    def inside(epoch: int, window: int) -> list[int]:
        start = epoch * 100_000 + window * WINDOW * 10
        return (indices(seed=1, num_samples=100_000, start=start, stop=start + 50, block=10) % 10).tolist()

    assert len({tuple(inside(epoch, window)) for epoch in range(5) for window in range(5)}) == 25


@pytest.mark.parametrize("block", [1, 512])
def test_a_hundred_million_samples_take_no_memory(block):
    tracemalloc.start()
    order = indices(seed=0, num_samples=10**8, start=10**8 - 50, stop=10**8 + 50, block=block)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 16 * 2**20
    assert len(set(order[:50].tolist())) == 50
    assert order.max() < 10**8
