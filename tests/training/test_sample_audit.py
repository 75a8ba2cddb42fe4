"""The sample audit: whatever happens, it proves each sample once per epoch, and sees every fault."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.contract.errors import JobError
from daybreak.training.sample_audit import SampleAudit
from daybreak.training.sample_order import PART, indices, share
from daybreak.training.sampling import SampleOrder, Sampling

N = 97


class World:
    """A job on workers that come and go: its position, and the content of a checkpoint."""

    def __init__(self, *, num_samples: int, first_sample: int = 0, block: int = 1, seed: int = 5) -> None:
        self.seed, self.num_samples, self.first, self.block = seed, num_samples, first_sample, block
        sampling = Sampling(block=block)
        order = SampleOrder(seed=seed, num_samples=num_samples, first_sample=first_sample, sampling=sampling)
        self.saved = json.dumps(SampleAudit(order).save())
        self.saved_at = 0

    def samples(self, positions: range) -> Any:
        return self.first + indices(
            seed=self.seed,
            num_samples=self.num_samples,
            start=positions.start,
            stop=positions.stop,
            block=self.block,
        )

    def go(self, *, to: int, world_size: int, batch_size: int, save_every: int) -> None:
        """Train from the checkpoint on; what is not saved at the end is lost."""
        seen, since = self.saved_at, 0
        tallies = self.started(world_size)
        while seen < to:
            batch = range(seen, min(seen + batch_size, to))
            for rank, tally in enumerate(tallies):
                part = share(batch, rank=rank, world_size=world_size)
                tally.add(part.start, self.samples(part))
            seen, since = batch.stop, since + 1
            if since == save_every:
                self.save(tallies, seen)
                tallies, since = self.started(world_size), 0

    def started(self, world_size: int) -> list[SampleAudit]:
        return [SampleAudit.load(json.loads(self.saved)) for _ in range(world_size)]

    def save(self, tallies: list[SampleAudit], seen: int) -> None:
        totals: list[Any] = []
        for tally in reversed(tallies):
            tally.settle(seen=seen, total=lambda own: totals.append(own) or np.sum(totals, axis=0))
        tallies[0].prove()
        self.saved, self.saved_at = json.dumps(tallies[0].save()), seen


@pytest.mark.slow
@given(
    phases=st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 300), st.integers(1, 70), st.integers(1, 4)), max_size=7
    ),
    num_samples=st.integers(1, 200),
    first_sample=st.integers(0, 10**10),
    block=st.sampled_from([1, 3]),
)
@settings(max_examples=25, deadline=None)
def test_any_numbers_of_workers_and_any_kills_come_to_what_one_worker_comes_to(
    phases, num_samples, first_sample, block
):
    world = World(num_samples=num_samples, first_sample=first_sample, block=block)
    for world_size, further, batch_size, save_every in phases:
        world.go(
            to=world.saved_at + further, world_size=world_size, batch_size=batch_size, save_every=save_every
        )
    world.go(to=world.saved_at + 2 * num_samples + 1, world_size=3, batch_size=7, save_every=1)
    alone = World(num_samples=num_samples, first_sample=first_sample, block=block)
    alone.go(to=world.saved_at, world_size=1, batch_size=world.saved_at, save_every=1)
    proven = SampleAudit.load(json.loads(world.saved)).proven()
    assert proven == SampleAudit.load(json.loads(alone.saved)).proven()
    assert sum(epoch.num_samples for epoch in proven) == world.saved_at
    whole, rest = divmod(world.saved_at, num_samples)
    assert [epoch.whole for epoch in proven] == [True] * whole + [False] * (rest > 0)


def test_the_sequence_of_one_two_four_three_one_is_proven():
    world, sizes = World(num_samples=N), (1, 2, 4, 3, 1)
    for number, world_size in enumerate(sizes, start=1):
        world.go(to=number * 2 * N // (len(sizes) + 1), world_size=world_size, batch_size=8, save_every=2)
    world.go(to=2 * N, world_size=1, batch_size=8, save_every=1)
    epochs = SampleAudit.load(json.loads(world.saved)).proven()
    assert [(epoch.num_samples, epoch.whole) for epoch in epochs] == [(N, True), (N, True)]
    assert epochs[0].digest != epochs[1].digest


def settled(given: Any, *, at: int = 0, seen: int | None = None) -> SampleAudit:
    """The ledger of one worker that took a step on the samples `given`."""
    tally = SampleAudit(SampleOrder(seed=5, num_samples=N), begin=at)
    tally.add(at, given)
    tally.settle(seen=at + len(given) if seen is None else seen, total=lambda own: own)
    return tally


@given(place=st.integers(0, N - 1), other=st.integers(0, N - 1), stop=st.sampled_from([N, N - 20]))
@settings(deadline=None)
def test_one_sample_in_place_of_another_is_seen_in_whole_and_in_part(place, other, stop):
    right = indices(seed=5, num_samples=N, start=0, stop=stop)
    wrong = right.copy()
    wrong[place % stop] = other
    if wrong[place % stop] == right[place % stop]:
        assert settled(wrong).proven()
        return
    with pytest.raises(JobError, match="epoch 1 was trained on other samples than are due"):
        settled(wrong).proven()


@pytest.mark.parametrize("harm", ["left out", "twice"])
def test_a_sample_too_few_or_too_many_is_seen_and_told_with_its_numbers(harm):
    right = indices(seed=5, num_samples=N, start=0, stop=N)
    tally = SampleAudit(SampleOrder(seed=5, num_samples=N))
    tally.add(0, right[:-1] if harm == "left out" else right)
    if harm == "twice":
        tally.add(3, right[3:4])
    tally.settle(seen=N, total=lambda own: own)
    count = N - 1 if harm == "left out" else N + 1
    reason = rf"due: {count} with digest \w{{16}}, due {N} with \w{{16}}; some came twice or not at all"
    with pytest.raises(JobError, match=reason):
        tally.prove()


def test_an_order_that_forgets_a_sample_is_seen_though_it_was_followed():
    """A whole epoch is held against the number of samples, not against the order that gave them."""
    twice = np.concatenate([np.arange(N - 1), [0]])
    with pytest.raises(JobError):
        settled(twice).prove()
    settled(np.arange(N)).prove()


def test_the_sum_of_many_workers_does_not_overflow():
    tallies = [settled(indices(seed=5, num_samples=N, start=0, stop=N)) for _ in range(2)]
    many = SampleAudit(SampleOrder(seed=5, num_samples=N))
    many.settle(seen=N, total=lambda own: np.full_like(own, 2**32 - 1) * 1000)
    assert many.save()["totals"] == [[0, (2**32 - 1) * 1000, (1000 * (2**64 - 1)) % 2**64]]
    assert tallies[0].proven() == tallies[1].proven()


@pytest.mark.slow
def test_a_batch_of_several_epochs_and_parts_is_taken_apart():
    stop = 3 * N + 11
    (*whole, part) = settled(indices(seed=5, num_samples=N, start=0, stop=stop)).proven()
    assert [epoch.num_samples for epoch in (*whole, part)] == [N, N, N, 11]
    assert not part.whole
    assert len({epoch.digest for epoch in whole}) == 3
    one = SampleAudit(SampleOrder(seed=5, num_samples=1))
    one.add(0, np.zeros(3000, dtype=np.int64))
    one.settle(seen=3000, total=lambda own: own)
    assert len(one.proven()) == 3000


def test_more_samples_than_are_hashed_together_come_to_the_same():
    n = 3 * PART + 5
    world = World(num_samples=n)
    world.go(to=n, world_size=2, batch_size=1000, save_every=10**6)
    tallies = world.started(2)
    for start in range(0, n, 1000):
        batch = range(start, min(start + 1000, n))
        for rank, tally in enumerate(tallies):
            part = share(batch, rank=rank, world_size=2)
            tally.add(part.start, world.samples(part))
    world.save(tallies, n)
    (epoch,) = SampleAudit.load(json.loads(world.saved)).proven()
    assert (epoch.num_samples, epoch.whole) == (n, True)


def test_the_samples_that_are_due_are_proven_in_part_and_from_any_position_on():
    """With a block of one sample, where nothing else is said."""
    for at, stop in ((0, N - 20), (30, N), (30, 50)):
        due = indices(seed=5, num_samples=N, start=at, stop=stop, block=1)
        (epoch,) = settled(due, at=at).proven()
        assert (epoch.num_samples, epoch.whole) == (stop - at, False)


def test_a_part_of_an_epoch_of_more_samples_than_are_hashed_together_is_proven():
    n = 2 * PART + 5
    tally = SampleAudit(SampleOrder(seed=5, num_samples=n))
    tally.add(0, indices(seed=5, num_samples=n, start=0, stop=PART + 7))
    tally.settle(seen=PART + 7, total=lambda own: own)
    (epoch,) = tally.proven()
    assert (epoch.num_samples, epoch.whole) == (PART + 7, False)


def test_a_ledger_that_goes_on_after_a_checkpoint_counts_what_came_before_it_once():
    tally = SampleAudit(SampleOrder(seed=5, num_samples=N))
    for start, stop in ((0, 40), (40, N)):
        tally.add(start, indices(seed=5, num_samples=N, start=start, stop=stop))
        tally.settle(seen=stop, total=lambda own: own)
    (epoch,) = tally.proven()
    assert (epoch.num_samples, epoch.whole) == (N, True)


def test_an_epoch_is_proven_once_and_a_checkpoint_says_which_are():
    tally = settled(indices(seed=5, num_samples=N, start=0, stop=N + 3))
    assert tally.save()["proven"] == 0
    tally.prove()
    assert tally.save()["proven"] == 1


def test_a_ledger_of_nothing_proves_nothing():
    assert SampleAudit(SampleOrder(seed=5, num_samples=N)).proven() == ()


def test_what_is_wrong_in_a_part_is_told_with_the_number_that_was_due_in_it():
    wrong = indices(seed=5, num_samples=N, start=10, stop=N)[::-1].copy()
    wrong[0] = wrong[1]
    with pytest.raises(JobError, match=f"due: {N - 10} with digest .*, due {N - 10} with"):
        settled(wrong, at=10).proven()


def test_each_checkpoint_proves_only_what_came_since_the_one_before(monkeypatch):
    sampling = Sampling(lengths=np.arange(1, N + 1))
    order = SampleOrder(seed=3, num_samples=N, sampling=sampling, batch_size=8)
    audit, asked, samples = SampleAudit(order), [], order.samples
    monkeypatch.setattr(
        order, "samples", lambda start, stop: asked.append((start, stop)) or samples(start, stop)
    )
    for start in range(0, 2 * N - 10, 10):
        audit.add(start, samples(start, start + 10))
        audit.settle(seen=start + 10, total=lambda own: own)
        audit.prove()
        audit = SampleAudit.load(json.loads(json.dumps(audit.save())), order)
    stops = range(10, 2 * N, 10)
    assert asked == [(max(stop - 10, stop // N * N), stop) for stop in stops]  # whole epochs go by slots
