"""Computes what the machines of a job cost: each attempt from its start to its end, at the catalog's price.

    usd = sum over attempts of num_machines * usd_per_hour * (ended - started) / 3600

Preempted attempts are paid like the others; waiting in the queue before a start is not. The service reports
when a job began and ended, not when it waited for a new spot machine in between, so for a job that it
restarted by itself this is an upper bound. jobs/cost_tracker.py records the result.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pipeline.contract.errors import ParamsError
from pipeline.contract.machine import Machine
from pipeline.contract.records import Rental
from pipeline.contract.units import HOUR_S


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Machines rented from one moment to another; `started` is None if none were obtained."""

    rental: Rental
    started: datetime | None
    ended: datetime | None  # None: they are still rented


def usd(stretches: Iterable[Stretch], *, now: datetime, known: Sequence[Machine]) -> float:
    """Returns the dollars of all stretches until `now`."""
    return sum(_usd(stretch, now=now, known=known) for stretch in stretches)


def _usd(stretch: Stretch, *, now: datetime, known: Sequence[Machine]) -> float:
    if stretch.started is None:
        return 0.0
    hours = max(0.0, ((stretch.ended or now) - stretch.started).total_seconds()) / HOUR_S
    return stretch.rental.num_machines * rate(stretch.rental, known=known) * hours


def rate(rental: Rental, *, known: Sequence[Machine]) -> float:
    """Returns the dollars per hour of one machine; the on-demand price where the strategy has none.

    The result is so never too low. Raises ParamsError where the catalog has no price at all.
    """
    machine = next((m for m in known if (m.name, m.region) == (rental.machine, rental.region)), None)
    price = machine.price(rental.strategy) if machine else None
    price = price if price is not None or machine is None else machine.usd_per_hour
    if price is None:
        raise ParamsError(
            f"the catalog has no price for {rental.machine} in {rental.region}, which was rented; "
            f"refresh the prices (python -m pipeline prices --refresh)"
        )
    return price
