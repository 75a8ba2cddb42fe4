"""Computes prices of machines from the SKUs of the provider's own list, and refuses implausible ones.

The list (Cloud Billing Catalog API) has no machines, but a price per vCPU, per GiB of memory, per device and
per GiB of disk, each by region and strategy, which only the description names:

    A2 Instance Core running in Americas                            on-demand
    Spot Preemptible A2 Instance Core running in Americas           spot
    Nvidia L4 GPU attached to Spot Preemptible VMs running in Iowa  spot
    DWS Defined Duration A2 Core running in Americas                flex-start

    Vertex AI: Training/Pipelines on A3 Instance Core in Iowa       on demand on Vertex AI, its fee included
    Vertex AI: Training/Pipelines management fee on A3 Instance Core in Iowa     its fee, rented otherwise

Commitments and reservations have other descriptions and are skipped. Memory is priced per GiB and hour, disks
per GiB and month, all else per hour. The price of TPU chips and B200 slices includes their host.

Vertex AI names the parts in other cases and with other small words (`NVIDIA H100 80GB`, `A3 Instance RAM`),
so names are compared without these differences. It bills no local SSDs on demand, so the fee is then the sum
of Vertex AI's SKUs less the price of Compute Engine.

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

from daybreak.contract.machine import Charge, Machine, Price
from daybreak.contract.record_parts import Strategy
from daybreak.machines.fees import HOURS_A_MONTH

SOURCE = "Cloud Billing Catalog API"
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

VERTEX = re.compile(
    r"Vertex AI: Training/Pipelines (management fee )?on (.+?)(?: running)? in ", re.IGNORECASE
)
ON_VERTEX, VERTEX_FEE = "on Vertex AI", "fee of Vertex AI"  # beside strategies
SMALL_WORDS = re.compile(r"\b(?:instance|predefined|gpu|tesla)\b")
MOST_FEE = 0.5  # largest share of the on-demand price that a fee may be

Rates = Mapping[tuple[str, str, str], float]  # by what, how rented, region: dollars per unit and hour


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """The result of reading the provider's list."""

    accepted: tuple[Price, ...]
    refused: tuple[str, ...]  # one sentence each
    num_missing: int  # listed prices that are not in the provider's list


def rates(skus: Iterable[Mapping[str, Any]]) -> Rates:
    """Returns dollars per unit and hour of all SKUs that can be parsed; of two for the same, the higher."""
    rates: dict[tuple[str, str, str], float] = {}
    for sku in skus:
        read = _what(sku)
        usd = _usd_per_hour(sku) if read else None
        if read is None or usd is None:
            continue
        for region in sku.get("serviceRegions", ()):
            key = (*read, region)
            rates[key] = max(usd, rates.get(key, usd))
    return rates


def _what(sku: Mapping[str, Any]) -> tuple[str, str] | None:
    """What a SKU is the price of, and how it is rented; None for commitments and the like."""
    category = sku.get("category", {})
    if category.get("usageType") not in ("OnDemand", "Preemptible"):
        return None
    description = str(sku.get("description", ""))
    if vertex := VERTEX.match(description):
        return _plain(vertex[2]), VERTEX_FEE if vertex[1] else ON_VERTEX
    text = re.split(r" (?:running )?in ", description, maxsplit=1)[0]
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


def _plain(name: str) -> str:
    """Returns the name of a part in the form that both services share.

    >>> _plain("Nvidia H100 80GB GPU") == _plain("NVIDIA H100 80GB")
    True
    """
    return " ".join(SMALL_WORDS.sub("", name.lower()).split())


def fee(machine: Machine, strategy: Strategy, rates: Rates, *, on_demand_usd: float | None) -> float | None:
    """Returns what Vertex AI adds to an hour of the machine; None if the rate of a part is missing."""
    parts = [([_plain(n) for n in names], amount) for names, amount in _bill(machine) if names != [DISK]]
    if strategy != "on-demand":
        return _sum(parts, VERTEX_FEE, machine.region, rates)
    total = _sum(parts, ON_VERTEX, machine.region, rates)
    return None if total is None or on_demand_usd is None else total - on_demand_usd


def usd_per_hour(machine: Machine, strategy: Strategy, rates: Rates) -> float | None:
    """Returns dollars per hour of the whole machine in its region; None if the rate of a part is missing."""
    return _sum(_bill(machine), strategy, machine.region, rates)


def _sum(
    parts: Iterable[tuple[Sequence[str], float]], strategy: str, region: str, rates: Rates
) -> float | None:
    total = 0.0
    for names, amount in parts:
        known = (rates.get((name, strategy, region)) for name in names)
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
    accepted: dict[tuple[str, str, Strategy], Price] = {}
    refused: list[str] = []
    missing = 0
    # On-demand first: the others are compared with it.
    for old in sorted(listed, key=lambda price: price.strategy != "on-demand"):
        machine = known[old.name, old.region]
        at_once = now.get((old.name, old.region, "on-demand"))
        usd = usd_per_hour(machine, old.strategy, rates)
        if usd is None:
            missing += 1
        elif fault := absurd(usd, old=old, machine=machine, on_demand=at_once):
            kept = (
                "none is kept" if old.usd_per_hour is None else f"{old.usd_per_hour:g} of {old.dated} is kept"
            )
            refused.append(
                f"{old.name} in {old.region}, {old.strategy}: {usd:g} dollars an hour {fault}; {kept}"
            )
        else:
            accepted[old.key] = now[old.key] = replace(old, usd_per_hour=usd, source=SOURCE, dated=today)
        now[old.key], fault = _with_fee(now[old.key], machine, rates, now, today=today)
        if fault:
            refused.append(f"{old.name} in {old.region}, {old.strategy}: {fault}")
        elif now[old.key].fee != old.fee:
            accepted[old.key] = now[old.key]
    return Refreshed(accepted=tuple(accepted.values()), refused=tuple(refused), num_missing=missing)


def _with_fee(
    price: Price,
    machine: Machine,
    rates: Rates,
    now: Mapping[tuple[str, str, Strategy], Price],
    *,
    today: date,
) -> tuple[Price, str]:
    """Returns the price with the fee of today's list, or as it is and why the fee is implausible."""
    at_once = now.get((price.name, price.region, "on-demand"))
    on_demand_usd = at_once.usd_per_hour if at_once else None
    usd = fee(machine, price.strategy, rates, on_demand_usd=on_demand_usd)
    if usd is None or price.usd_per_hour is None:
        return price, ""
    base = on_demand_usd or price.usd_per_hour
    if not 0 < usd <= MOST_FEE * base:
        return (
            price,
            f"a fee of {usd:g} dollars an hour is {usd / base:.0%} of {base:g}; the fee stays as it was",
        )
    return replace(price, fee=Charge(usd_per_hour=usd, source=f"{SOURCE}, {today}")), ""


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
