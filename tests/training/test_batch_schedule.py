"""When a batch grows or shrinks, and how far AdaScale has come."""

import json
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract.record_parts import Size
from daybreak.training.batch_schedule import LEAST_LOOKS, BatchSchedule
from daybreak.training.loss_watch import BLOCK, ENOUGH

positive = st.floats(1e-3, 1e6)


def pace(*, rule="by_optimizer", batch_size=64, num_samples=10_000, offered=()) -> BatchSchedule:
    return BatchSchedule(
        batch_size=batch_size,
        base_size=64,
        base_samples=num_samples,
        num_samples=num_samples,
        rule=rule,
        sizes=offered,
    )


def after_updates(made: BatchSchedule, *, scale: float, times: int = LEAST_LOOKS) -> BatchSchedule:
    """The pace after so many updates that show this noise scale."""
    for _ in range(times):
        made.step(64, loss=1.0, noise=(1.0, scale))
    return made


def sizes(*, fixed_s: float, per_sample_s: float) -> tuple[Size, ...]:
    return tuple(
        Size(batch_size=size, micro_batch_size=size, update_s=fixed_s + per_sample_s * size)
        for size in (64, 128, 256)
    )


@given(
    times=st.lists(st.floats(1e-3, 10), min_size=1, max_size=5),
    begins=st.integers(0, 4),
    scale=st.floats(1e-3, 1e6),
    most=st.integers(64, 2000),
)
def test_from_any_size_it_comes_to_one_that_none_beats_by_five_percent(times, begins, scale, most):
    """Whatever the times, it rests within the sizes of the machine and the limit of the rule."""
    offered = [
        Size(batch_size=64 << n, micro_batch_size=64, update_s=seconds) for n, seconds in enumerate(times)
    ]
    goodput = {
        each.batch_size: each.batch_size / each.update_s * (scale + 64) / (scale + each.batch_size)
        for each in offered
        if each.batch_size <= most
    }
    made = after_updates(pace(offered=offered), scale=scale)
    made.resize(64 << begins, start=0)  # as on another machine, which may have had more sizes
    taken = [64 << begins]
    while size := made.next_size(seen=0, most=most):
        made.resize(size, start=0)
        taken.append(size)
    rests = taken[-1]
    assert rests in goodput
    assert goodput[rests] * 1.05 >= max(goodput.values()) * (1 - 1e-9)
    ups = [after for before, after in pairwise(taken) if after > before]
    assert all(after == 2 * before for before, after in pairwise(taken) if after > before)
    assert len(taken) - 1 - len(ups) <= 1  # it shrinks once, to the best at once
    if goodput.get(taken[0], 0) * 1.05 >= max(goodput.values()):
        assert len(taken) == 1  # a difference that is hardly one changes nothing


def test_where_an_update_takes_as_long_whatever_its_size_noise_decides():
    free = sizes(fixed_s=1.0, per_sample_s=0.0)
    assert after_updates(pace(offered=free), scale=1000.0).next_size(seen=0, most=1e9) == 128
    assert after_updates(pace(offered=free), scale=0.1).next_size(seen=0, most=1e9) == 0


def test_where_time_is_by_the_sample_no_batch_grows():
    by_sample = pace(offered=sizes(fixed_s=0.0, per_sample_s=1.0))
    assert after_updates(by_sample, scale=1e6).next_size(seen=0, most=1e9) == 0


def test_few_looks_the_end_of_a_rule_or_a_size_not_yet_taken_leave_it_as_it_is():
    free = sizes(fixed_s=1.0, per_sample_s=0.0)
    few = after_updates(pace(offered=free), scale=1000.0, times=LEAST_LOOKS - 1)
    assert few.next_size(seen=0, most=1e9) == 0
    made = after_updates(pace(offered=free), scale=1000.0)
    assert made.next_size(seen=0, most=127) == 0
    made.resize(128, start=640)
    assert made.next_size(seen=600, most=1e9) == 0
    assert made.next_size(seen=640, most=1e9) == 256
    assert (made.size(639), made.size(640)) == (64, 128)


def losses_at(made: BatchSchedule, loss: float, *, blocks: int = ENOUGH) -> BatchSchedule:
    """The pace after updates in its size that have this loss, more or less."""
    draw = random.Random(0)
    for _ in range(BLOCK * blocks):
        made.step(made.size(0), loss=loss + draw.gauss(0, 0.02), noise=(1.0, 1000.0))
    return made


def grown(made: BatchSchedule, *, to: int) -> BatchSchedule:
    """The pace after it has grown at once to this size, as the noise wants."""
    while (size := made.next_size(seen=0, most=to)) > 0:
        made.resize(size, start=0)
    assert made.size(0) == to
    return made


def test_a_growth_after_which_the_loss_rises_is_undone_and_not_tried_again():
    made = losses_at(pace(offered=sizes(fixed_s=1.0, per_sample_s=0.0)), 1.0)
    losses_at(grown(made, to=128), 1.0)
    losses_at(grown(made, to=256), 1.3, blocks=ENOUGH - 1)
    assert made.next_size(seen=0, most=1e9) == 0  # not enough has been seen
    losses_at(made, 1.3)
    assert made.next_size(seen=0, most=1e9) == 128
    made.resize(128, start=0)
    losses_at(made, 1.0)
    assert made.next_size(seen=0, most=1e9) == 0


def test_growths_in_quick_succession_are_undone_as_one():
    made = losses_at(pace(offered=sizes(fixed_s=1.0, per_sample_s=0.0)), 1.0)
    losses_at(grown(made, to=256), 1.3)
    assert made.next_size(seen=0, most=1e9) == 64


@pytest.mark.parametrize("after", [0.7, 1.0, 1.04])
def test_a_growth_after_which_the_loss_falls_or_hardly_rises_is_kept(after):
    made = losses_at(pace(offered=sizes(fixed_s=1.0, per_sample_s=0.0)), 1.0)
    losses_at(grown(made, to=256), after, blocks=5 * ENOUGH)
    assert made.next_size(seen=0, most=1e9) == 0


@given(st.lists(st.tuples(st.floats(-1, 10), st.floats(-10, 1e4)), max_size=40))
def test_what_was_saved_decides_the_same(estimates):
    free = sizes(fixed_s=1.0, per_sample_s=0.0)
    made, other = (pace(rule="adascale", batch_size=128, offered=free) for _ in range(2))
    for estimate in estimates:
        made.step(128, loss=1.0, noise=estimate)
    made.resize(256, start=1000)
    other.load(json.loads(json.dumps(made.save())), seen=900)
    assert other.save() == made.save()
    assert other.next_size(seen=2000, most=1e9) == made.next_size(seen=2000, most=1e9)
    assert (other.tau, other.noise_scale, other.size(1000)) == (made.tau, made.noise_scale, 256)


@given(positive, positive, st.integers(1, 8))
def test_tau_grows_by_the_gain_and_is_done_after_the_updates_it_stands_for(square, variance, times):
    made = pace(rule="adascale", batch_size=64 * times, num_samples=6400)
    made.step(64 * times, loss=1.0, noise=(square, variance))
    assert made.tau == pytest.approx(1)  # nothing was known of the noise
    gain = made.gain(64 * times)
    assert gain == pytest.approx((square + variance / 64) / (square + variance / 64 / times))
    updates = 1
    while not made.done:
        made.step(64 * times, loss=1.0, noise=None)
        updates += 1
    assert updates == pytest.approx(1 + 99 / gain, abs=1)


def test_without_adascale_it_is_never_done_by_itself():
    made = after_updates(pace(), scale=10.0, times=1000)
    assert (made.tau, made.done, made.position) == (0, False, 0)
