"""How the rate follows the schedule and the batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract.errors import ParamsError
from daybreak.training.learning_rate import Scaled, Schedule, end_of_decay, rate_at, scaled

SIZES = st.integers(1, 4096)


def by_rule(
    kind: str | None, *, batch_size: int, base_size: int = 64, betas=(0.9, 0.999), **changes
) -> Scaled:
    return scaled(
        kind,
        name="Optimizer",
        batch_size=batch_size,
        base_size=base_size,
        betas=betas,
        eps=1e-8,
        **{"rule": "by_optimizer", **changes},
    )


@given(SIZES, SIZES)
def test_sgd_keeps_its_noise_temperature_and_warms_up_where_steps_are_longer(batch_size, base_size):
    rescaled = by_rule("sgd", batch_size=batch_size, base_size=base_size)
    assert rescaled.rate / batch_size == pytest.approx(1 / base_size)
    assert (rescaled.warmup > 0) == (batch_size > base_size)


@given(st.integers(1, 512), st.floats(0.88, 0.999), st.floats(0.88, 0.9999))
def test_adam_averages_over_as_many_samples_as_before(batch_size, beta1, beta2):
    """What is forgotten per sample stays, and so does the square of the rate per sample."""
    times = batch_size / 64
    rescaled = by_rule("adam", batch_size=batch_size, betas=(beta1, beta2))
    assert rescaled.rate**2 == pytest.approx(times)
    assert rescaled.eps * rescaled.rate == pytest.approx(1e-8)
    for before, after in zip((beta1, beta2), rescaled.betas, strict=True):
        assert 0 <= after < 1
        assert (1 - after) / batch_size == pytest.approx((1 - before) / 64)


def test_one_after_the_other_is_as_both_at_once():
    once = by_rule("adam", batch_size=256)
    half = by_rule("adam", batch_size=128)
    again = scaled(
        "adam",
        name="Adam",
        rule="by_optimizer",
        batch_size=256,
        base_size=128,
        betas=half.betas,
        eps=half.eps,
    )
    assert again.rate * half.rate == pytest.approx(once.rate)
    assert again.betas == pytest.approx(once.betas)


@pytest.mark.parametrize("kind", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("rule", ["by_optimizer", "fixed"])
def test_the_same_size_changes_nothing(kind, rule):
    rescaled = by_rule(kind, batch_size=64, rule=rule)
    assert (rescaled.rate, rescaled.betas, rescaled.eps, rescaled.warmup) == (
        1,
        pytest.approx((0.9, 0.999)),
        1e-8,
        0,
    )


@given(st.integers(1, 1024), st.sampled_from([0.5, 0.8, 0.9, 0.95]))
def test_adam_refuses_from_where_nothing_is_averaged(batch_size, beta):
    if batch_size / 64 * (1 - beta) < 1 - 1e-6 or batch_size <= 64:
        assert by_rule("adam", batch_size=batch_size, betas=(beta, 0.999)).betas[0] >= 0
    else:
        with pytest.raises(
            ParamsError, match=r"ends before .* times; leave sizes from \d+ on out of plan\.b"
        ):
            by_rule("adam", batch_size=batch_size, betas=(beta, 0.999))


def test_ten_times_the_batch_is_refused_to_adam_by_numbers():
    reason = (
        r"^a batch of 640 is 10 times train.batch_size 64, and the rule for Optimizer with a beta of 0.9 ends"
    )
    with pytest.raises(ParamsError, match=reason):
        by_rule("adam", batch_size=640)


def test_without_a_rule_another_size_is_refused_and_the_same_is_not():
    with pytest.raises(
        ParamsError, match=r"no rule for Optimizer.*; set train.batch_size to 128 .* to fixed"
    ):
        by_rule(None, batch_size=128)
    assert by_rule(None, batch_size=64).rate == by_rule(None, batch_size=128, rule="fixed").rate == 1
    assert by_rule(None, batch_size=64).most_times == 1


def test_adascale_is_for_sgd():
    with pytest.raises(
        ParamsError, match=r"adascale has no rule for Optimizer.* train.scaling to by_optimizer"
    ):
        by_rule("adam", batch_size=128, rule="adascale")
    assert by_rule("sgd", batch_size=128, rule="adascale").rate == 1


SHARES = st.just(0.0) | st.floats(0.01, 0.95)


@given(st.floats(1.0, 999.0), SHARES, SHARES, st.sampled_from(["stable", "linear", "cosine", "constant"]))
def test_a_rate_that_begins_to_fall_anywhere_falls_without_a_jump_to_0(
    seen, warmup, decay, schedule: Schedule
):
    run = {"num_samples": 1000, "warmup": warmup, "decay": decay, "peak": 1.0, "schedule": schedule}
    given_end = {name: value for name, value in run.items() if name != "peak"}
    end = end_of_decay(seen, **given_end)
    assert seen <= end <= 1000
    before, after = rate_at(seen, end=1000, **run), rate_at(seen, end=end, **run)
    if end > seen:
        assert after == pytest.approx(before, abs=1e-6)
    if decay and end < 1000:
        assert rate_at(end, end=end, **run) == pytest.approx(0, abs=1e-6)


def test_progress_that_is_ahead_of_the_samples_moves_the_schedule_and_no_early_end():
    run = {"num_samples": 400, "warmup": 0.0, "decay": 0.5, "peak": 1.0}
    assert rate_at(45, end=60, progress=150, **run) == rate_at(45, end=60, **run) == 0.5
    assert rate_at(45, end=400, progress=300, **run) == 0.5
