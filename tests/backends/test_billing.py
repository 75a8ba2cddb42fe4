"""What machines cost: every attempt that ran, none of the queue."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.backends.vertex.billing import Stretch, rate, usd
from pipeline.contract.errors import ParamsError
from pipeline.contract.records import Rental
from pipeline.machines.catalog import rented

START = datetime(2026, 1, 2, tzinfo=UTC)


def stretch(hours: float | None = 1.0, **told: object) -> Stretch:
    given_ = {"machine": "a2-highgpu-1g", "region": "us-central1", "strategy": "spot", **told}
    ended = None if hours is None else START + timedelta(hours=hours)
    return Stretch(rental=Rental(**given_), started=START, ended=ended)  # type: ignore[arg-type]


def cost(*stretches: Stretch, hours: float = 24.0) -> float:
    return usd(stretches, now=START + timedelta(hours=hours), known=rented())


def test_an_attempt_that_was_taken_away_is_paid_like_the_others():
    assert cost(stretch(0.5), stretch(2, num_machines=3)) == pytest.approx((0.5 + 6) * 1.928)


def test_each_strategy_has_its_own_price():
    assert cost(stretch(strategy="on-demand")) == pytest.approx(3.6734)
    assert cost(stretch(strategy="flex-start")) == pytest.approx(2.0204)


def test_the_queue_costs_nothing_and_what_still_runs_is_paid_until_now():
    assert cost(replace(stretch(), started=None)) == 0
    assert cost(stretch(None), hours=2) == pytest.approx(2 * 1.928)


def test_a_machine_without_a_price_is_not_free():
    with pytest.raises(
        ParamsError, match="no price for b7-imaginary in us-central1, which was rented; refresh"
    ):
        cost(stretch(machine="b7-imaginary"))


@given(st.lists(st.floats(0, 20), max_size=6), st.floats(0, 20))
def test_more_attempts_never_cost_less_and_parts_add_up(hours, more):
    whole = cost(*map(stretch, hours))
    assert cost(*map(stretch, hours), stretch(more)) >= whole
    assert whole == pytest.approx(sum(hours) * rate(stretch().rental, known=rented()), abs=1e-4)
