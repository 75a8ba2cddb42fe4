"""Training ends early enough for both deadlines, and what follows it is learned from the nights."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract.errors import PlanError
from daybreak.contract.record_types import BEFORE_TRAINING, Night
from daybreak.prediction.time_budget import TEST, TEST_SHARES, Decided, window, windows
from tests.planning.jobs import DATASET, night, profile


def time_budget(
    *decided: Decided, hours: float = 18, gap_hours: float = 6, step_s: float = 1e-3, refit_epochs: float = 0
):
    plain = night(hours=hours)
    tonight = replace(plain, decide_until=plain.train_until + timedelta(hours=gap_hours))
    return window(
        tonight,
        DATASET,
        profile(step_s=step_s),
        test_days=1,
        confidence=0.99,
        decided=decided,
        refit_epochs=refit_epochs,
    )


def took(evaluation_s: float, gate_s: float = 60.0) -> Decided:
    return Decided(evaluation_s=evaluation_s, gate_s=gate_s)


def test_a_decision_with_time_to_spare_leaves_training_its_own_deadline():
    assert time_budget().deadline_s == pytest.approx(18 * 3600 * (1 - BEFORE_TRAINING))


def test_without_nights_scoring_is_the_forward_third_of_a_step_for_two_models():
    evaluation = time_budget(step_s=0.3).after[0]
    assert evaluation.seconds == pytest.approx(10 + 2 * 1e6 / 243 * (0.1 + 1e-5), rel=0.01)


def test_a_refit_is_given_the_time_of_whole_steps_on_the_held_out_samples_or_what_nights_took():
    plain = time_budget(gap_hours=0.1)
    assert [part.name for part in plain.after] == ["evaluation", "register and gate"]
    prior = time_budget(step_s=0.3, refit_epochs=2).after[-1]
    assert prior.name == "refit"
    assert prior.seconds == pytest.approx(43 + 2 * 1e6 / 243 * (0.3 + 1e-5), rel=0.01)
    nights = [replace(took(100), refit_s=1000.0)] * 5
    assert time_budget(*nights, took(100), refit_epochs=2).after[-1].seconds == pytest.approx(1040)
    assert time_budget(*nights, refit_epochs=2, gap_hours=0.1).until_s < plain.until_s - 1000


def test_nights_that_tell_no_time_leave_what_was_taken_before_any():
    before, after = time_budget().after, time_budget(took(0.0, 0.0)).after
    assert [part.seconds for part in after] == [part.seconds for part in before]


def test_an_evaluation_that_was_slow_moves_the_end_of_training():
    slow = time_budget(*[took(7200)] * 5, gap_hours=1)
    assert slow.after[0].seconds == pytest.approx(7200)
    assert slow.until_s < 18 * 3600 - 3600 - 60
    assert slow.num_nights == 5


def test_what_follows_is_surer_with_every_night():
    spreads = [time_budget(*[took(100)] * count).after[0].spread for count in (0, 1, 5, 30)]
    assert spreads == sorted(spreads, reverse=True)


def test_one_night_that_went_on_a_day_later_does_not_matter():
    steady = [took(100)] * 9
    assert (
        time_budget(*steady, took(100, gate_s=86_400)).after_s < 3 * time_budget(*steady, took(100)).after_s
    )


def test_a_night_too_short_for_its_evaluation_is_told_with_the_key():
    with pytest.raises(PlanError, match=r"leaves 1 h for the whole night; raise night\.decide_hours"):
        time_budget(*[took(7200)] * 5, hours=0.9, gap_hours=0.1)


@given(st.floats(60, 1e5), st.floats(1, 3600))
def test_the_hours_that_help_leave_so_many_seconds(deadline_s, evaluation_s):
    plain = time_budget(*[took(evaluation_s)] * 3)
    train_hours, decide_hours = plain.hours(deadline_s)
    helped = replace(plain, train_s=train_hours * 3600, decide_s=decide_hours * 3600)
    assert helped.deadline_s >= deadline_s * (1 - 1e-9)


def test_training_ends_before_the_whole_live_test_and_only_then_before_less_of_it():
    tonight = replace(night(hours=18), test_hours=12.0)
    plain = window(tonight, DATASET, profile(), test_days=1, confidence=0.99)
    there = list(windows(tonight, plain))
    kept_h = [sum(part.seconds for part in each.after if part.name == TEST) / 3600 for each in there]
    assert kept_h == [share * 12 for share in TEST_SHARES]
    assert [each.until_s for each in there] == sorted(each.until_s for each in there)
    assert there[0].until_s == pytest.approx(whole_s(tonight) - plain.after_s - 12 * 3600)
    assert there[-1] == plain


def test_a_live_test_longer_than_the_night_leaves_training_what_less_of_it_leaves():
    tonight = replace(night(hours=18), test_hours=30.0)
    there = list(windows(tonight, window(tonight, DATASET, profile(), test_days=1, confidence=0.99)))
    assert 0 < len(there) < len(TEST_SHARES)
    assert all(each.until_s > 0 for each in there)


@pytest.mark.parametrize(("predict_hours", "until_hours"), [(12, 12), (40, 24)])
def test_training_ends_before_what_follows_it_and_then_the_predictions_that_are_due(
    predict_hours, until_hours
):
    plain = night(hours=18)
    tonight = replace(plain, predict_from=plain.started_at + timedelta(hours=predict_hours))
    there = window(tonight, DATASET, profile(), test_days=1, confidence=0.99, decided=[took(4 * 3600)] * 5)
    assert there.decide_s == until_hours * 3600
    assert there.until_s == pytest.approx(until_hours * 3600 - there.after_s)
    until = plain.started_at + timedelta(seconds=there.until_s)
    assert abs(there.latest_start(tonight, 3600) + timedelta(hours=1) - until) <= timedelta(seconds=1)


def whole_s(tonight: Night) -> float:
    return (tonight.decide_until - tonight.started_at).total_seconds()
