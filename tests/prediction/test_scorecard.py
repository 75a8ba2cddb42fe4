"""Intervals that did not hold are widened by as much as would have helped, and it is said."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract.formats import percent
from daybreak.contract.record_parts import JobForecast, JobSpan, PlanReasons, Rental
from daybreak.contract.record_types import Plan, Training
from daybreak.prediction.scorecard import (
    NIGHTS,
    Z90,
    PredictionOutcome,
    outcome,
    scorecard,
    within_interval,
)
from tests.minimal_records import minimal_training


def night(
    z: float, *, number: int = 0, spread: float = 0.1, widened: float = 1.0, **changes
) -> PredictionOutcome:
    """A night that took `z` plain deviations longer than predicted."""
    wide = math.exp(Z90 * spread * widened)
    plain = PredictionOutcome(
        night=str(number),
        predicted_s=100,
        low_s=100 / wide,
        high_s=100 * wide,
        actual_s=100 * math.exp(z * spread),
        widened=widened,
    )
    return replace(plain, **changes)


def nights(scale: float, *, count: int = 60, widened: float = 1.0, seed: int = 0) -> list[PredictionOutcome]:
    drawn = scale * np.random.default_rng(seed).normal(size=count)
    return [night(float(z), number=k, widened=widened) for k, z in enumerate(drawn)]


def test_intervals_that_hold_stay_as_they_are():
    card = scorecard(nights(1.0))
    assert 0.85 <= card.coverage <= 0.95
    assert (card.widen, card.warning) == (1.0, "")


def test_intervals_too_narrow_are_widened_by_what_would_have_held():
    card = scorecard(nights(3.0))
    assert card.coverage < 0.7
    assert card.widen == pytest.approx(3, rel=0.25)
    assert f"held on {percent(card.coverage)} of the last 60 nights, fewer than 85 %" in card.warning
    assert "times as wide from now on" in card.warning


def test_intervals_that_were_widened_stay_so_while_the_plain_ones_would_not_hold():
    once = scorecard(nights(3.0)).widen
    later = scorecard(nights(3.0, widened=once))
    assert later.coverage >= 0.85
    assert later.widen == pytest.approx(once)
    assert later.warning == ""


def test_intervals_too_wide_are_said_and_left():
    card = scorecard(nights(0.3))
    assert card.coverage > 0.95
    assert card.widen == 1
    assert card.warning == ""
    assert "held on 100 % of the last 60 nights, so it is wider than it has to be" in card.note


def test_a_few_nights_say_nothing():
    card = scorecard(nights(5.0, count=9))
    assert (card.widen, card.warning) == (1.0, "")


def test_only_the_last_nights_count():
    card = scorecard([*nights(9.0, count=40), *nights(1.0)])
    assert card.num_nights == NIGHTS
    assert card.warning == ""


def test_a_night_that_was_stopped_did_not_keep_to_its_interval():
    stopped = night(-1.0, finished=False)
    assert not stopped.held
    assert stopped.apart >= Z90


def test_no_nights_have_no_card():
    assert scorecard([]) is None


@given(st.lists(st.floats(-8, 8), min_size=1, max_size=80), st.floats(1, 4))
def test_the_factor_is_never_below_one_and_covers_nine_of_ten(drawn, widened):
    card = scorecard([night(z, number=k, widened=widened) for k, z in enumerate(drawn)])
    assert card.widen >= 1
    last = [abs(z) for z in drawn[-NIGHTS:]]
    if card.widen > 1:
        assert sum(z <= card.widen * Z90 * (1 + 1e-9) for z in last) >= 0.9 * len(last) - 1e-9


def planned(rental: Rental, *, num_samples: int, expected_s: float, interval: tuple[float, float]) -> Plan:
    return Plan(
        rental=rental,
        batch_size=8,
        micro_batch_size=8,
        num_samples=num_samples,
        checkpoint_every_s=9,
        fallbacks=(),
        forecast=JobForecast(expected_s=expected_s, expected_usd=2, interval=interval),
        reasons=PlanReasons(runner_up=""),
    )


def test_an_outcome_is_read_from_the_records_of_a_night():
    plan = planned(Rental(machine="local"), num_samples=80, expected_s=100, interval=(80, 125))
    training = minimal_training(num_samples=80, num_updates=10, elapsed_s=110, cost_usd=2.2)
    slower = outcome("2011-09-01", plan, training)
    assert slower.held
    assert slower.apart == pytest.approx(math.log(1.1) / (math.log(1.25) / Z90))
    assert not outcome("n", plan, replace(training, stopped_by="deadline")).held
    assert outcome("n", replace(plan, forecast=replace(plan.forecast, expected_s=0.0)), training) is None
    assert outcome("n", plan, replace(training, stopped_by="validation")) is None  # the rest was never run
    assert outcome("n", plan, replace(training, num_samples=plan.num_samples - 1)) is None  # no tree helped


FAST, CHEAP = (Rental(machine=name, region="us-east4") for name in ("g2-standard-8", "g2-standard-4"))
OPENED = datetime(2025, 3, 1, 3, tzinfo=UTC)
HOURS = planned(FAST, num_samples=800, expected_s=10_000, interval=(9_000, 11_000))


def moved(*rentals: Rental, first_s: float, after_h: float = 1.0, **changes) -> Training:
    """A night that was ahead on the first machines and went on to others, where it took longer."""
    at = [OPENED + timedelta(hours=after_h * number) for number in range(len(rentals) + 1)]
    spans = zip(rentals, at, at[1:], strict=False)
    return replace(
        minimal_training(
            num_samples=800,
            num_updates=100,
            num_restarts=len(rentals) - 1,
            start_s=60.0,
            elapsed_s=(at[-1] - OPENED).total_seconds() - 60.0,
            ended_at=at[-1],
            before_restart=(first_s, 30),
            attempts=tuple(
                JobSpan(rental=rental, asked_at=asked, ran_at=asked, ended_at=ended, end="moved")
                for rental, asked, ended in spans
            ),
        ),
        **changes,
    )


def test_nights_that_went_on_to_cheaper_machines_are_compared_by_their_rate_before():
    ahead = moved(FAST, CHEAP, first_s=3_003.0, after_h=6.0)
    compared = outcome("n", HOURS, ahead)
    assert compared.actual_s == pytest.approx(60 + 3 + 3_000 * 100 / 30)
    assert compared.held
    assert scorecard([compared] * 20).widen == 1.0
    assert within_interval(HOURS, ahead) is None
    slow = outcome("n", HOURS, moved(FAST, CHEAP, first_s=6_003.0, stopped_by="deadline"))
    assert not slow.held
    assert scorecard([slow] * 20).widen > 1.0


def test_a_night_that_was_late_and_saved_by_faster_machines_is_a_forecast_that_failed():
    rescued = moved(FAST, CHEAP, first_s=6_003.0, first_device="NVIDIA L4", device="4 x NVIDIA L4")
    compared = outcome("n", HOURS, rescued)
    assert compared
    assert not compared.held


def test_a_first_run_without_all_of_its_machines_is_compared_with_nothing():
    four = replace(FAST, num_machines=4)
    plan = replace(HOURS, rental=four)
    few, all_of_them = (
        moved(four, CHEAP, first_s=3_003.0, first_device=device) for device in ("NVIDIA L4", "4 x NVIDIA L4")
    )
    assert outcome("n", plan, few) is None
    assert outcome("n", plan, all_of_them)


def test_a_rate_that_nobody_saw_is_compared_with_nothing():
    assert outcome("n", HOURS, moved(FAST, CHEAP, first_s=90.0)) is None
    assert outcome("n", HOURS, moved(FAST, CHEAP, first_s=900.0, before_restart=None)) is None
    assert outcome("n", HOURS, moved(CHEAP, FAST, first_s=3_000.0)) is None


def test_the_same_machines_elsewhere_or_a_restart_take_the_time_that_was_forecast():
    again = moved(FAST, replace(FAST, region="europe-west4", strategy="spot"), first_s=3_000.0)
    compared = outcome("n", HOURS, again)
    assert compared.actual_s == again.took_s
    assert within_interval(HOURS, again) is False


def test_what_was_needed_is_the_deviation_that_would_have_held():
    card = scorecard(nights(3.0))
    assert card.needed == pytest.approx(0.3, rel=0.25)  # three times the 0.1 of the plain intervals


def test_a_few_nights_in_a_row_inside_are_no_sign_that_it_is_too_wide():
    inside = nights(0.3, count=12)
    assert all(each.held for each in inside)
    assert (scorecard(inside).warning, scorecard(inside).note) == ("", "")
