"""Reads the charges that Vertex AI adds to the prices of Compute Engine: a management fee, and the boot disk.

The fee is the same however a machine is rented. On demand, Vertex AI bills by SKUs of its own that include
it; on spot, flex-start and reservations it bills Compute Engine's SKUs and the fee beside them. `fees.csv`
has the amounts, with source and date. The source of an amount that is on no list, but was inferred from other
listed amounts, begins with `inferred: `, and is shown wherever the price is.

    $ a device and hour        times the devices of the machine
    of the on-demand price     this share of the machine's on-demand price in its region
    $ a GiB and month          of disk; a month has 730 hours
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Literal

from daybreak.contract.machine import Charge
from daybreak.contract.record_parts import Strategy

HOURS_A_MONTH = 730  # as the provider divides
FEE, BOOT_DISK = "management fee", "boot disk"


@dataclass(frozen=True, kw_only=True)
class FeeRule:
    """A row of `fees.csv`; `of`, `region` and `strategy` are patterns, and the first row that fits counts."""

    charge: str
    of: str
    region: str
    strategy: str
    amount: float
    unit: Literal["$ a device and hour", "of the on-demand price", "$ a GiB and month"]
    source: str
    dated: str


@cache
def rules() -> tuple[FeeRule, ...]:
    """Returns the rows of `fees.csv`."""
    return tuple(_rows(files("daybreak.machines").joinpath("fees.csv").read_text()))


def _rows(text: str) -> Iterator[FeeRule]:
    for row in csv.DictReader(text.splitlines()):
        yield FeeRule(**{**row, "amount": float(row["amount"])})  # type: ignore[arg-type]


def fee(
    name: str, region: str, strategy: Strategy, *, num_devices: int, on_demand_usd: float | None
) -> Charge | None:
    """Returns the fee for an hour of a machine; None if it is a share of a price that is not known."""
    rule = _rule(FEE, name, region, strategy)
    if rule.unit == "$ a device and hour":
        return Charge(usd_per_hour=num_devices * rule.amount, source=_source(rule))
    if on_demand_usd is None:
        return None
    return Charge(usd_per_hour=on_demand_usd * rule.amount, source=_source(rule))


def boot_disk(kind: str, region: str, *, size_gib: float) -> Charge:
    """Returns the price of an hour of a boot disk of that kind and size."""
    rule = _rule(BOOT_DISK, kind, region, "on-demand")
    return Charge(usd_per_hour=size_gib * rule.amount / HOURS_A_MONTH, source=_source(rule))


def _rule(charge: str, of: str, region: str, strategy: Strategy) -> FeeRule:
    return next(
        rule
        for rule in rules()
        if rule.charge == charge
        and fnmatchcase(of, rule.of)
        and fnmatchcase(region, rule.region)
        and fnmatchcase(strategy, rule.strategy)
    )


def _source(rule: FeeRule) -> str:
    return f"{rule.source}, {rule.dated}"
