"""What machines cost: every attempt that ran, none of the queue."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.backends.billing import Stretch, rate, usd
from daybreak.backends.submission_journal import Submission, SubmissionJournal, stretches
from daybreak.contract.errors import ParamsError
from daybreak.contract.machine import Charge
from daybreak.contract.record_parts import Pool, Rental
from daybreak.machines import startup
from daybreak.machines.catalog import rented
from daybreak.storage import jsonl

START = datetime(2026, 1, 2, tzinfo=UTC)
FEE = 0.2 * 3.6734  # the same however it is rented
SPOT = 1.928 + FEE
A2 = next(machine for machine in rented() if machine.name == "a2-highgpu-1g")


def stretch(hours: float | None = 1.0, **changes: object) -> Stretch:
    given_ = {"machine": "a2-highgpu-1g", "region": "us-central1", "strategy": "spot", **changes}
    ended = None if hours is None else START + timedelta(hours=hours)
    return Stretch(rental=Rental(**given_), started=START, ended=ended)  # type: ignore[arg-type]


def cost(*stretches: Stretch, hours: float = 24.0) -> float:
    return usd(stretches, now=START + timedelta(hours=hours), known=rented())


def test_an_attempt_that_was_taken_away_is_paid_like_the_others():
    assert cost(stretch(0.5), stretch(2, num_machines=3)) == pytest.approx((0.5 + 6) * SPOT)


def test_each_strategy_has_its_own_price():
    assert cost(stretch(strategy="on-demand")) == pytest.approx(3.6734 + FEE)
    assert cost(stretch(strategy="flex-start")) == pytest.approx(2.0204 + FEE)


def test_unlike_machines_are_paid_at_the_price_of_each():
    both = stretch(2, num_machines=3, others=(Pool(machine="g2-standard-8", num_machines=2),))
    l4 = rate(Rental(machine="g2-standard-8", region="us-central1", strategy="spot"), known=rented())
    assert cost(both) == pytest.approx(2 * (SPOT + 2 * l4))


def test_the_queue_costs_nothing_and_what_still_runs_is_paid_until_now():
    assert cost(replace(stretch(), started=None)) == 0
    assert cost(stretch(None), hours=2) == pytest.approx(2 * SPOT)


def test_the_start_up_that_is_planned_is_paid_from_the_request_at_the_earliest():
    planned_s = startup.wait(A2, num_bytes=0).start_s
    hour = stretch(1)
    long_ago, just_now = START - timedelta(hours=3), START - timedelta(seconds=planned_s / 2)
    assert cost(replace(hour, asked=long_ago)) == pytest.approx((1 + planned_s / 3600) * SPOT)
    assert cost(replace(hour, asked=just_now)) == pytest.approx((1 + planned_s / 7200) * SPOT)
    assert cost(replace(hour, asked=START + timedelta(seconds=1))) == pytest.approx(SPOT)  # clocks differ


def test_a_start_up_that_took_longer_than_planned_is_paid_from_when_the_machine_was_booted():
    asked, booted = START - timedelta(hours=3), START - timedelta(hours=2)
    hour = replace(stretch(1), asked=asked)
    assert cost(replace(hour, there=booted)) == pytest.approx(3 * SPOT)
    assert cost(replace(hour, there=START - timedelta(seconds=30))) == pytest.approx((1 + 30 / 3600) * SPOT)
    for other in (
        asked - timedelta(days=1),
        START + timedelta(minutes=1),
    ):  # not rented for it; clocks differ
        assert cost(replace(hour, there=other)) == cost(hour)


def test_machines_that_were_there_and_lost_before_the_command_began_are_paid():
    lost = replace(stretch(1), started=None, there=START)
    assert cost(lost) == pytest.approx(SPOT)


def test_the_first_worker_of_an_attempt_says_when_its_machine_was_booted(tmp_path):
    journal, rental = SubmissionJournal(tmp_path), stretch().rental
    for name, handle in (("a", "1"), ("a 2", "2"), ("b", "3")):
        at = START.isoformat()
        journal.put(Submission(name=name, job="j", rental=rental, asked_at=at, handle=handle))
    moments = [START + timedelta(minutes=number) for number in range(3)]
    for attempt, moment in zip("aab", moments, strict=True):
        jsonl.append(tmp_path / "starts.jsonl", {"attempt": attempt, "booted_at": moment.isoformat()})
    assert [each.there for each in stretches(tmp_path)] == [moments[0], None, moments[2]]


def test_the_meter_and_the_plan_read_the_same_price():
    disk = Charge(usd_per_hour=0.05, source="a list, 2026-11-22")
    known = [replace(machine, disk=disk) for machine in rented()]
    for machine in known:
        for strategy in ("on-demand", "spot", "flex-start"):
            if machine.price(strategy) is not None:
                rental = Rental(machine=machine.name, region=machine.region, strategy=strategy)
                assert rate(rental, known=known) == machine.price(strategy)


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
