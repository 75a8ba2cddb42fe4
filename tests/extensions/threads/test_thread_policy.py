"""The policy of threads: more only where they pay, fewer at once, harm undone."""

import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daybreak.extensions.threads.thread_policy import (
    ALONE,
    CHECKING,
    FORGOTTEN,
    LONGEST,
    MOST_RISEN,
    WAITING,
    CostLine,
    Costs,
    ThreadPolicy,
    ThreadSetting,
    ThreadTiming,
    momentum_left,
)

BATCH = 64
COSTS = Costs(pass_s=1e-6, sample_s=1e-4, apply_s=1e-5)
DEAR = Costs(pass_s=1e-2, sample_s=1e-6, apply_s=1e-6)  # a part costs as much as the whole batch
settings = st.builds(
    lambda n, parts: ThreadSetting(num_workers=n, num_parts=parts or n, is_asynchronous=bool(parts)),
    st.integers(2, 16),
    st.integers(0, 16),
) | st.just(ALONE)
policies = st.builds(
    lambda setting, late: ThreadPolicy(batch_size=BATCH, setting=setting, accepted=setting, most_late=late),
    settings,
    st.floats(0.5, 16),
)
windows = st.builds(
    lambda losses, seconds: ThreadTiming(
        first=1, num_samples=32 * BATCH, elapsed_s=seconds, losses=tuple(losses)
    ),
    st.lists(st.floats(-10, 10), min_size=8, max_size=8) | st.just([math.nan] * 8),
    st.floats(1e-3, 100),
)
costs = st.builds(
    lambda *seconds: Costs(pass_s=seconds[0], sample_s=seconds[1], apply_s=seconds[2]),
    *[st.floats(1e-7, 1e-1)] * 3,
)


def together(n: int) -> ThreadSetting:
    return ThreadSetting(num_workers=n, num_parts=n)


def apart(n: int, parts: int) -> ThreadSetting:
    return ThreadSetting(num_workers=n, num_parts=parts, is_asynchronous=True)


def window(loss: float, *, fall: float = 0.0, speed: float = 1e4, first: int = 1) -> ThreadTiming:
    """32 batches, whose losses alternate about a line that falls by so much from each to the next."""
    losses = tuple(loss - fall * n + 0.01 * (-1) ** n for n in range(32))
    return ThreadTiming(first=first, num_samples=32 * BATCH, elapsed_s=32 * BATCH / speed, losses=losses)


def judged(policy, seen, *, free=16.0, costs=COSTS, may_undo=True):
    return policy.judge(seen, free_cores=free, costs=costs, may_undo=may_undo)


def paired(late: ThreadTiming, reference: ThreadTiming) -> ThreadPolicy:
    """Eight workers have trained together; then lateness was tried, and its batches trained on as before."""
    policy = ThreadPolicy(batch_size=BATCH, setting=together(8), accepted=together(8), num_windows=5)
    policy, _ = judged(policy, window(1.0), free=8.0, costs=DEAR)
    assert policy.setting == apart(8, 1)
    policy, undone = judged(policy, late, free=8.0, costs=DEAR)
    assert undone
    assert policy.setting == together(8)
    return judged(policy, reference, free=8.0, costs=DEAR, may_undo=False)[0]


@given(policies, st.lists(st.tuples(windows, st.floats(0.1, 20)), max_size=12), costs)
def test_never_are_there_more_workers_than_cores_and_one_always(policy, course, costs):
    for seen, free in course:
        policy = policy.give_up(free)
        assert 1 <= policy.setting.num_workers <= max(1, math.floor(free + 0.5))
        policy, undone = judged(policy, seen, free=free, costs=costs)
        assert undone or not math.isnan(seen.loss)
        assert 1 <= policy.setting.num_workers <= max(1, math.floor(free + 0.5))
        assert 8 <= policy.window <= LONGEST


@given(policies, windows, costs, st.floats(1, 16))
def test_a_change_is_a_trial_and_is_predicted_to_gain(policy, seen, costs, free):
    before = policy.give_up(free)
    after, undone = judged(before, seen, free=free, costs=costs)
    if after.setting != before.setting and not undone:
        assert after.on_trial
        goodputs = [after.goodput(each, costs=costs) for each in (after.setting, after.accepted)]
        assert goodputs[0] > 1.05 * goodputs[1]


@given(policies, costs, st.integers(1, 15))
def test_goodput_never_falls_with_another_core_to_choose_from(policy, costs, cores):
    fewer, more = (policy.goodput(policy.best(each, costs=costs), costs=costs) for each in (cores, cores + 1))
    assert more >= 0.97 * fewer


@given(policies, st.floats(0.1, 16))
def test_gradients_are_no_later_when_cores_are_taken_away(policy, free):
    assert policy.give_up(free).setting.lateness <= max(1.0, policy.setting.lateness)


@given(st.floats(0, 0.99), st.integers(1, 64))
def test_momentum_and_that_of_asynchrony_add_up_where_any_is_left(tuned, num_workers):
    left = momentum_left(tuned, num_workers=num_workers)
    assert 0 <= left <= tuned
    if left > 0.01:
        assert left + 1 - 1 / num_workers == pytest.approx(tuned)


def test_workers_together_come_before_late_gradients():
    policy, undone = judged(ThreadPolicy(batch_size=BATCH), window(1.0), free=8.0)
    assert policy.setting == together(8)
    assert not undone


def test_lateness_that_makes_no_difference_stays():
    policy = paired(window(1.0, fall=0.01, speed=4e4), window(1.0, fall=0.01, first=1))
    assert (policy.accepted, policy.checked_late) == (apart(8, 1), 8.0)


def test_lateness_that_is_tried_on_batches_with_a_higher_loss_than_those_before_is_no_harm():
    policy = paired(window(1.5, fall=0.01, speed=4e4), window(1.5, fall=0.01))
    assert (policy.accepted, policy.num_undone) == (apart(8, 1), 0)


def test_lateness_that_costs_more_than_the_time_gained_is_refused():
    """The loss falls a hundredth by each batch: 18 batches are gained, 7 come in the end, and 28 are lost."""
    policy = paired(window(1.28, fall=0.01, speed=4e4), window(1.0, fall=0.01))
    assert (policy.setting, policy.most_late, policy.checked_late) == (together(8), 4.0, 0.0)


def test_updates_that_are_still_to_come_as_a_late_loss_is_measured_are_no_harm():
    """Eight workers' losses are those of weights seven batches ago, and the time of 18 batches is gained."""
    policy = paired(window(1.22, fall=0.01, speed=4e4), window(1.0, fall=0.01))
    assert policy.accepted == apart(8, 1)


def test_lateness_is_tried_again_beside_what_it_replaced_within_a_share_of_the_time():
    policy = paired(window(1.0, fall=0.01, speed=4e4), window(1.0, fall=0.01))
    tried, first_s = 0, policy.checked_s
    for number in range(2000):
        policy, undone = judged(policy, window(0.9, speed=4e4, first=2 + number), free=8.0, costs=DEAR)
        tried += undone
    assert tried >= 4
    assert policy.checked_s - first_s <= CHECKING * policy.elapsed_s
    assert policy.num_undone == 0


def test_workers_that_cost_more_than_they_bring_are_not_taken():
    policy = replace(ThreadPolicy(batch_size=BATCH), most_late=0.0)
    policy, _ = judged(policy, window(1.0), free=8.0, costs=DEAR)
    assert policy.setting == ALONE


def asynchronous(**fields) -> ThreadPolicy:
    """Eight workers have trained asynchronously for ten seconds, at a loss of 1."""
    policy, _ = judged(ThreadPolicy(batch_size=BATCH), window(1.0), free=1.0)
    fields = {"elapsed_s": 10.0, "num_checks": 1, "check_s": 1.0, "checked_late": 8.0, "speed": 4e4} | fields
    return replace(policy, setting=apart(8, 1), accepted=apart(8, 1), **fields)


def test_an_asynchronous_window_whose_loss_rises_is_undone_and_tried_again_within_a_share_of_the_time():
    policy, undone = judged(asynchronous(elapsed_s=0.9), window(1.5), free=8.0, costs=DEAR)
    assert undone
    assert policy.setting == together(8)
    tried = []
    for _ in range(FORGOTTEN - 2):
        policy, undone = judged(policy, window(1.0), free=8.0, costs=DEAR)
        tried += [policy.setting.lateness] if policy.on_trial else []
        assert policy.checked_s <= max(CHECKING * policy.elapsed_s, window(1.0).elapsed_s)
    assert tried[0] == 4.0


def test_a_loss_that_rises_and_falls_again_is_waited_for():
    policy = asynchronous()
    for loss in (1.5, 1.3, 1.1):
        policy, undone = judged(policy, window(loss, speed=4e4), free=8.0, costs=DEAR)
        assert not undone
        assert policy.risen
    policy, undone = judged(policy, window(1.0, speed=4e4), free=8.0, costs=DEAR)
    assert (undone, policy.risen, policy.waited_s, policy.num_undone) == (False, None, 0.0, 0)
    assert policy.accepted == apart(8, 1)


def test_a_loss_that_rises_and_does_not_fall_is_undone_when_half_of_the_time_for_that_is_over():
    policy, undone, num_windows = asynchronous(), False, 0
    while not undone:
        policy, undone = judged(policy, window(1.5), free=8.0, costs=DEAR)
        num_windows += 1
    assert (policy.risen, policy.setting) == (None, together(8))
    assert policy.waited_s == pytest.approx(num_windows * window(1.5).elapsed_s)
    assert policy.waited_s == pytest.approx(WAITING / 2 * policy.elapsed_s, abs=window(1.5).elapsed_s)


def test_a_loss_is_not_waited_for_longer_than_one_step_may_train_again():
    policy, undone, num_windows = asynchronous(elapsed_s=1e6), False, 0
    while not undone:
        policy, undone = judged(policy, window(1.5), free=8.0, costs=DEAR)
        num_windows += 1
    assert num_windows == MOST_RISEN + 1


@example([2.0] * 13 + [1.25, 2.0])
@given(st.lists(st.floats(1.1, 3), min_size=1, max_size=40))
def test_no_more_than_a_share_of_the_time_is_waited_in_vain(losses):
    policy = asynchronous()
    for loss in losses:
        policy, undone = judged(policy, window(loss), free=8.0, costs=DEAR)
        if undone:
            assert policy.waited_s <= WAITING * policy.elapsed_s
            policy = replace(policy, setting=apart(8, 1), accepted=apart(8, 1), late=None)


def test_a_loss_that_explodes_is_harm_however_much_it_varies():
    policy, _ = judged(ThreadPolicy(batch_size=BATCH), window(1.0), free=1.0)
    losses = tuple(1e20 * (n % 2) for n in range(32))
    _, undone = judged(replace(policy, setting=apart(8, 8)), replace(window(1.0), losses=losses))
    assert undone


def test_a_trial_that_is_no_faster_is_taken_back_for_a_while():
    policy, _ = judged(ThreadPolicy(batch_size=BATCH, most_late=0.0), window(1.0, speed=5e3), free=2.0)
    assert policy.setting == together(2)
    settings = []
    for number in range(2 * FORGOTTEN):
        policy, _ = judged(policy, window(0.9 - 0.001 * number, speed=5e3), free=2.0)
        settings.append(policy.setting)
    assert settings[:FORGOTTEN].count(together(2)) <= 1
    assert together(2) in settings[FORGOTTEN - 2 :]


@given(st.floats(0, 1e-2), st.floats(0, 1e-4))
def test_the_cost_of_an_update_is_read_from_whole_and_halved_ones(pass_s, sample_s):
    line = CostLine()
    assert line.costs() is None
    for passes in (1, 1, 2, 1):
        line.add(
            num_passes=passes, num_samples=BATCH, gradient_s=pass_s * passes + sample_s * BATCH, apply_s=1e-5
        )
    costs = line.costs()
    assert costs.pass_s == pytest.approx(pass_s, abs=1e-9)
    assert costs.sample_s == pytest.approx(sample_s, abs=1e-9)
