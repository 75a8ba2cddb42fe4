"""Computes the cost of a job's machines: each attempt from the first machine to its end, at `Machine.price`.

    usd = sum over attempts of num_machines * usd_per_hour * (ended - there) / 3600

    there = the time that the place reports, or the boot time that the first worker reports,
            else started - the start-up that was planned, but not before the request

Machines are billed from the time they exist, and not every place reports that time: Vertex AI reports when
the job's command began to run. The start-up of machine and image before that can take several times as long
as planned, so the worker reports the boot time. A machine booted before the request was not rented for it.
Preempted attempts are paid like the others; waiting in the queue is not. The service does not report when a
job waited for a new spot machine in between, so for a job that it restarted by itself this is an upper bound.
jobs/cost_tracker.py records the result.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from daybreak.contract.errors import ParamsError
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Rental
from daybreak.contract.units import HOUR_S
from daybreak.machines import startup


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Machines that ran from one moment to another; neither there nor started: none were obtained."""

    rental: Rental
    started: datetime | None
    asked: datetime | None = None  # when they were requested
    ended: datetime | None  # None: they are still rented
    there: datetime | None = None  # when the machines were there, where that is known


def usd(stretches: Iterable[Stretch], *, now: datetime, known: Sequence[Machine]) -> float:
    """Returns the dollars of all stretches until `now`."""
    return sum(_usd(stretch, now=now, known=known) for stretch in stretches)


def _usd(stretch: Stretch, *, now: datetime, known: Sequence[Machine]) -> float:
    there = _there(stretch, known)
    if there is None:
        return 0.0
    hours = max(0.0, ((stretch.ended or now) - there).total_seconds()) / HOUR_S
    return stretch.rental.num_machines * rate(stretch.rental, known=known) * hours


def _there(stretch: Stretch, known: Sequence[Machine]) -> datetime | None:
    """Returns when the machines were there; None if none were obtained."""
    asked, started, there = stretch.asked, stretch.started, stretch.there
    if there and (asked is None or there >= asked) and (started is None or there <= started):
        return there
    if started is None or asked is None or asked > started:
        return started
    return max(asked, started - start_up(stretch.rental, known=known))


def start_up(rental: Rental, *, known: Sequence[Machine]) -> timedelta:
    """Returns how long the start-up of machine and image is planned to take; 0 if it is unknown."""
    machine = _machine(rental, known)
    return timedelta(seconds=startup.wait(machine, num_bytes=0).start_s if machine else 0.0)


def rate(rental: Rental, *, known: Sequence[Machine]) -> float:
    """Returns the dollars per hour of one machine, of unlike ones the mean; see `_price`."""
    usd = (
        pool.num_machines * _price(replace(rental.one, machine=pool.machine), known=known)
        for pool in rental.pools
    )
    return sum(usd) / rental.num_machines


def _price(rental: Rental, *, known: Sequence[Machine]) -> float:
    """Returns the dollars per hour of a machine; the on-demand price where the strategy has none.

    The result is so never too low. Raises ParamsError where the catalog has no price at all.
    """
    machine = _machine(rental, known)
    price = machine.price(rental.strategy) if machine else None
    price = price if price is not None or machine is None else machine.price("on-demand")
    if price is None:
        raise ParamsError(
            f"the catalog has no price for {rental.machine} in {rental.region}, which was rented; "
            f"refresh the prices (daybreak prices --refresh)"
        )
    return price


def _machine(rental: Rental, known: Sequence[Machine]) -> Machine | None:
    """Returns the machine that was rented; a backend does not name itself among its own machines."""
    for machine in known:
        same = (machine.name, machine.region) == (rental.machine, rental.region)
        if same and ("" in (machine.backend, rental.backend) or machine.backend == rental.backend):
            return machine
    return None
