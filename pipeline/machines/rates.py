"""Computes prices of machines from the SKUs of the provider's own list, and refuses implausible ones.

The list (Cloud Billing Catalog API) has no machines: it has a price per vCPU, per GiB of memory, per device
and per GiB of disk, each by region and by how it is rented, which only the description says:

    A2 Instance Core running in Americas                            on-demand
    Spot Preemptible A2 Instance Core running in Americas           spot
    Nvidia L4 GPU attached to Spot Preemptible VMs running in Iowa  spot
    DWS Defined Duration A2 Core running in Americas                flex-start

Commitments and reservations have other descriptions and are skipped. Memory is priced per GiB and hour, disks
per GiB and month, all else per hour. The price of TPU chips and B200 slices includes their host.

An implausible price is refused, and the old one kept: zero or less, spot or flex-start above on-demand, more
than ten times the old price or less than a tenth of it, or more than any device costs (the list has
placeholders of 700 dollars). Of 31,518 changes from month to month over four years, none was larger than 4.6
times.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from math import isfinite
from typing import Any

from pipeline.contract.machine import Machine, Price
from pipeline.contract.records import Strategy

SOURCE = "Cloud Billing Catalog API"
HOURS_A_MONTH = 730  # as the provider divides
UNITS = {"h": 1.0, "GiBy.h": 1.0, "GiBy.mo": 1 / HOURS_A_MONTH}
GIB = 2**30

CHANGE = 10.0  # largest factor between the old price and the new one
DEVICE_USD_PER_HOUR = 40.0  # twice the highest known price, a limit where there is no old price
VCPU_USD_PER_HOUR = 0.5

# The names in descriptions, without the word Instance; of several names, each region uses one.
HOSTS = {
    "a2": ("A2",),
    "a3-highgpu": ("A3",),
    "a3-megagpu": ("A3Plus", "A3"),
    "a3-ultragpu": ("A3Ultra", "A3 Ultra"),
    "c3": ("C3",),
    "e2": ("E2",),
    "g2": ("G2",),
    "g4": ("G4",),
    "n1": ("N1 Predefined",),
    "n2": ("N2",),
}
DEVICES = {
    "T4": ("Nvidia Tesla T4 GPU",),
    "L4": ("Nvidia L4 GPU",),
    "RTX PRO 6000": ("RTX 6000 96GB",),
    "A100 40GB": ("Nvidia Tesla A100 GPU",),
    "A100 80GB": ("Nvidia Tesla A100 80GB GPU",),
    "H100": ("Nvidia H100 80GB GPU",),
    "H200": ("Nvidia H200 141GB GPU",),
}
MEGA = ("Nvidia H100 80GB Mega GPU", "Nvidia H100 Mega 80GB GPU", "Nvidia H100 80GB Plus GPU")
WHOLE = {  # devices whose price includes the host
    "B200": ("A4 Nvidia B200 (1 gpu slice)",),
    "TPU v5e": ("TpuV5e", "V5e"),
    "TPU v6e": ("TpuV6e", "V6e"),
    "TPU7x": ("TPU7x", "Tpu7x", "7x"),
}
DISK = "SSD backed Local Storage"
MARKS: tuple[tuple[Strategy, str, str], ...] = (
    ("spot", "Spot Preemptible ", " attached to Spot Preemptible VMs"),
    ("flex-start", "DWS Defined Duration ", " attached to DWS Defined Duration VMs"),
)

Rates = Mapping[tuple[str, Strategy, str], float]  # by what, how rented, region: dollars per unit and hour


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """The result of reading the provider's list."""

    accepted: tuple[Price, ...]
    refused: tuple[str, ...]  # one sentence each
    num_missing: int  # listed prices that are not in the provider's list


def rates(skus: Iterable[Mapping[str, Any]]) -> Rates:
    """Returns dollars per unit and hour of all SKUs that can be parsed; of two for the same, the higher."""
    rates: dict[tuple[str, Strategy, str], float] = {}
    for sku in skus:
        read = _what(sku)
        usd = _usd_per_hour(sku) if read else None
        if read is None or usd is None:
            continue
        for region in sku.get("serviceRegions", ()):
            key = (*read, region)
            rates[key] = max(usd, rates.get(key, usd))
    return rates


def _what(sku: Mapping[str, Any]) -> tuple[str, Strategy] | None:
    """What a SKU is the price of, and how it is rented; None for commitments and the like."""
    category = sku.get("category", {})
    if category.get("usageType") not in ("OnDemand", "Preemptible"):
        return None
    text = re.split(r" (?:running )?in ", str(sku.get("description", "")), maxsplit=1)[0]
    for strategy, before, behind in MARKS:
        if text.startswith(before) or text.endswith(behind):
            bare = text.removeprefix(before).removesuffix(behind)
            return bare.replace(" Instance", ""), strategy
    if category["usageType"] == "Preemptible":
        return None
    return text.replace(" Instance", ""), "on-demand"


def _usd_per_hour(sku: Mapping[str, Any]) -> float | None:
    """Dollars per unit and hour of the newest price, at the highest tier; None in any other form."""
    try:
        expression = sku["pricingInfo"][-1]["pricingExpression"]
        price = expression["tieredRates"][-1]["unitPrice"]
        if price.get("currencyCode", "USD") != "USD":
            return None
        usd = int(price.get("units", 0)) + int(price.get("nanos", 0)) / 1e9
        return usd * UNITS[expression["usageUnit"]]
    except (KeyError, IndexError, ValueError, TypeError):
        return None


def usd_per_hour(machine: Machine, strategy: Strategy, rates: Rates) -> float | None:
    """Returns dollars per hour of the whole machine in its region; None if the rate of a part is missing."""
    total = 0.0
    for names, amount in _bill(machine):
        known = (rates.get((name, strategy, machine.region)) for name in names)
        rate = next((usd for usd in known if usd is not None), None)
        if rate is None:
            return None
        total += rate * amount
    return total


def _bill(machine: Machine) -> list[tuple[Sequence[str], float]]:
    """The parts that are billed: their names, and the amount of each."""
    if machine.device in WHOLE:
        return [(WHOLE[machine.device], machine.num_devices)]
    hosts = next(names for series, names in HOSTS.items() if machine.machine_type.startswith(series))
    bill: list[tuple[Sequence[str], float]] = [
        ([f"{host} Core" for host in hosts], machine.vcpus),
        ([f"{host} Ram" for host in hosts], machine.memory_bytes / GIB),
    ]
    if machine.num_devices:
        mega = machine.machine_type.startswith("a3-mega")
        bill.append((MEGA if mega else DEVICES[machine.device], machine.num_devices))
    if machine.ssd_bytes:
        bill.append(([DISK], machine.ssd_bytes / GIB))
    return bill


def refreshed(
    listed: Sequence[Price], machines: Sequence[Machine], rates: Rates, *, today: date
) -> Refreshed:
    """Returns the listed prices at the provider's rates of today; implausible ones keep the old price."""
    known = {(machine.name, machine.region): machine for machine in machines}
    now = {price.key: price for price in listed}
    accepted: list[Price] = []
    refused: list[str] = []
    missing = 0
    # On-demand first: the others are compared with it.
    for old in sorted(listed, key=lambda price: price.strategy != "on-demand"):
        machine = known[old.name, old.region]
        usd = usd_per_hour(machine, old.strategy, rates)
        if usd is None:
            missing += 1
            continue
        at_once = now.get((old.name, old.region, "on-demand"))
        if fault := absurd(usd, old=old, machine=machine, on_demand=at_once):
            kept = (
                "none is kept" if old.usd_per_hour is None else f"{old.usd_per_hour:g} of {old.dated} is kept"
            )
            refused.append(
                f"{old.name} in {old.region}, {old.strategy}: {usd:g} dollars an hour {fault}; {kept}"
            )
            continue
        now[old.key] = replace(old, usd_per_hour=usd, source=SOURCE, dated=today)
        accepted.append(now[old.key])
    return Refreshed(accepted=tuple(accepted), refused=tuple(refused), num_missing=missing)


def absurd(usd: float, *, old: Price, machine: Machine, on_demand: Price | None) -> str:
    """Returns why a price is implausible, as words that follow it; "" if it is plausible."""
    if not (isfinite(usd) and usd > 0):
        return "is not a valid price"
    if on_demand and on_demand.usd_per_hour and old.strategy != "on-demand" and usd > on_demand.usd_per_hour:
        return f"is above the {on_demand.usd_per_hour:g} of on-demand"
    before = old.usd_per_hour
    if before and not before / CHANGE <= usd <= before * CHANGE:
        return f"is {usd / before:.3g} times the {before:g} of {old.dated}"
    number, most, unit = machine.num_devices, DEVICE_USD_PER_HOUR, "device"
    if not number:
        number, most, unit = machine.vcpus, VCPU_USD_PER_HOUR, "vCPU"
    if usd / number > most:
        return f"is {usd / number:.3g} a {unit}, above {most:g}"
    return ""
