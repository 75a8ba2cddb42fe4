"""Computes what the machines of a job cost: each attempt from its machines to its end, at `Machine.price`.

    usd = sum over attempts of num_machines * usd_per_hour * (ended - started + start-up) / 3600

Machines are billed from when they are there, and the service reports when the job's command began to run: the
start-up before that, of machine and image, is counted as it was planned, but never from before the request.
Preempted attempts are paid like the others; waiting in the queue is not. The service does not report when a
job waited for a new spot machine in between, so for a job that it restarted by itself this is an upper bound.
jobs/cost_tracker.py records the result.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pipeline.contract.errors import ParamsError
from pipeline.contract.machine import Machine
from pipeline.contract.records import Rental
from pipeline.contract.units import HOUR_S
from pipeline.machines import startup


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Machines that ran from one moment to another; `started` is None if none were obtained."""

    rental: Rental
    started: datetime | None
    asked: datetime | None = None  # when they were requested
    ended: datetime | None  # None: they are still rented
    there: datetime | None = None  # when the machines were there, where that is known


def usd(stretches: Iterable[Stretch], *, now: datetime, known: Sequence[Machine]) -> float:
    """Returns the dollars of all stretches until `now`."""
    return sum(_usd(stretch, now=now, known=known) for stretch in stretches)


def _usd(stretch: Stretch, *, now: datetime, known: Sequence[Machine]) -> float:
    if stretch.started is None:
        return 0.0
    hours = max(0.0, ((stretch.ended or now) - _there(stretch, known)).total_seconds()) / HOUR_S
    return stretch.rental.num_machines * rate(stretch.rental, known=known) * hours


def _there(stretch: Stretch, known: Sequence[Machine]) -> datetime:
    """Returns when the machines were there: a planned start-up before the command began, not before asked."""
    assert stretch.started
    machine = _machine(stretch.rental, known)
    if machine is None or stretch.asked is None or stretch.asked > stretch.started:
        return stretch.started
    start_s = startup.wait(machine, num_bytes=0).start_s
    return max(stretch.asked, stretch.started - timedelta(seconds=start_s))


def rate(rental: Rental, *, known: Sequence[Machine]) -> float:
    """Returns the dollars per hour of one machine; the on-demand price where the strategy has none.

    The result is so never too low. Raises ParamsError where the catalog has no price at all.
    """
    machine = _machine(rental, known)
    price = machine.price(rental.strategy) if machine else None
    price = price if price is not None or machine is None else machine.price("on-demand")
    if price is None:
        raise ParamsError(
            f"the catalog has no price for {rental.machine} in {rental.region}, which was rented; "
            f"refresh the prices (python -m pipeline prices --refresh)"
        )
    return price


def _machine(rental: Rental, known: Sequence[Machine]) -> Machine | None:
    return next((m for m in known if (m.name, m.region) == (rental.machine, rental.region)), None)
