"""Describes a bag in words and as JSON: the predicted time and cost, and the result."""

import json
from dataclasses import asdict

from daybreak.contract.formats import counted, dollars, duration
from daybreak.contract.machine import Machine
from daybreak.contract.units import HOUR_S
from daybreak.extensions.bag.bag_forecast import BagForecast, Interval
from daybreak.extensions.bag.dispatcher import BagOutcome
from daybreak.extensions.bag.folder import Bag


def prediction(bag: Bag, forecast: BagForecast | None, machine: Machine, *, num_machines: int) -> str:
    """Returns what is predicted, or why nothing is."""
    needed = f"{bag.num_needed} of {counted(bag.num_runs, 'run')}"
    where = f"{needed} on up to {counted(num_machines, 'machine')} of {bag.rental}"
    if forecast is None:
        return f"bag {bag.name}: {where}; nothing is predicted, as --minutes does not say how long a run is"
    time = _between(duration(forecast.elapsed_s.low), duration(forecast.elapsed_s.high))
    paid = f"{duration(forecast.machine_s.mean)} of machines"
    if usd := dollars_of(bag, forecast, machine):
        range_usd = _between(dollars(usd.low), dollars(usd.high))
        paid = f"{dollars(usd.mean)} ({range_usd}), {paid}"
    return f"bag {bag.name}: {where}, {duration(forecast.elapsed_s.mean)} ({time}), {paid}; 90 % intervals"


def dollars_of(bag: Bag, forecast: BagForecast, machine: Machine) -> Interval | None:
    """Returns the predicted dollars; None where the machine has no price."""
    price = machine.price(bag.rental.strategy)
    return forecast.machine_s.times(price / HOUR_S) if price else None


def ending(outcome: BagOutcome) -> str:
    """Returns what a bag came to."""
    failed = f", {counted(len(outcome.given_up), 'seed')} failed" if outcome.given_up else ""
    lost = f"{counted(outcome.num_preempted, 'machine')} lost, {counted(outcome.num_lost, 'run')} run again"
    paid = f", {dollars(outcome.usd)}" if outcome.usd is not None else ""
    return (
        f"{counted(outcome.num_done, 'run')} done{failed} in {duration(outcome.elapsed_s)}, "
        f"{duration(outcome.machine_s)} of machines{paid}; {lost}; results in {outcome.folder}/seeds"
    )


def document(
    bag: Bag, forecast: BagForecast | None, machine: Machine, outcome: BagOutcome | None = None
) -> str:
    """Returns the prediction and the outcome as JSON."""
    usd = dollars_of(bag, forecast, machine) if forecast else None
    return json.dumps(
        {
            "name": bag.name,
            "rental": str(bag.rental),
            "predicted": forecast and {**asdict(forecast), "usd": usd and asdict(usd)},
            "outcome": outcome and asdict(outcome),
        },
        indent=1,
    )


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"
