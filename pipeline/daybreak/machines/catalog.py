"""Lists the machines to choose from: `machines.csv` with the prices of `pricelist` and the fees of `fees`.

Device figures are per device, as vendors state them for dense bf16; a CPU machine counts as one device with
float32 figures assumed per core. Rates of links between devices, one way, are assumptions: `rates_source`
names what is assumed. A machine is listed once for each region that it is offered in. A price that no fee is
known for is not known. `local` is the machine that was profiled, with the rates that the profile measured.
"""

import csv
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from math import inf
from pathlib import Path

from daybreak.contract.errors import ParamsError
from daybreak.contract.machine import Machine, Price, Speeds
from daybreak.contract.record_parts import LOCAL, Strategy
from daybreak.contract.record_types import Profile
from daybreak.machines import fees, pricelist

IMPLAUSIBLE = 1 / 3  # of what the slowest CPU of the catalog does a core: a busy machine was measured
HEADROOM = 0.10  # share of a device's memory that stays free
PAGE_CACHE = 0.5  # share of a machine's memory, that arrays may take to stay in it once they were laid out


def rented(refreshed: Path | None = None) -> tuple[Machine, ...]:
    """Returns all machines in all regions that offer them; prices in the file `refreshed` take precedence."""
    return _rented(refreshed, pricelist.changed(refreshed))


@cache
def _rented(refreshed: Path | None, written: int) -> tuple[Machine, ...]:
    offered: dict[tuple[str, str], dict[Strategy, Price]] = {}
    for price in pricelist.prices(refreshed):
        offered.setdefault((price.name, price.region), {})[price.strategy] = price
    text = files("daybreak.machines").joinpath("machines.csv").read_text()
    rows = {row["name"]: row for row in csv.DictReader(text.splitlines())}
    listed = {
        place: prices["on-demand"].usd_per_hour
        for place, prices in offered.items()
        if "on-demand" in prices and prices["on-demand"].usd_per_hour is not None
    }
    return tuple(
        _machine(
            rows[name],
            region,
            {strategy: _with_fee(price, rows, listed) for strategy, price in prices.items()},
        )
        for (name, region), prices in offered.items()
    )


def _with_fee(price: Price, rows: dict[str, dict[str, str]], listed: dict[tuple[str, str], float]) -> Price:
    """Returns the price with the fee that was read with it, or that `fees.csv` says."""
    if price.fee or price.usd_per_hour is None:
        return price
    number = int(rows[price.name]["num_devices"])
    base = _on_demand_usd(price, rows, listed)
    fee = fees.fee(price.name, price.region, price.strategy, num_devices=number, on_demand_usd=base)
    return replace(price, fee=fee) if fee else replace(price, usd_per_hour=None)


def _on_demand_usd(
    price: Price, rows: dict[str, dict[str, str]], listed: dict[tuple[str, str], float]
) -> float | None:
    """Returns the on-demand price, else the devices' share of a larger machine's, else the dearest elsewhere.

    Small machines with H100 are not sold on demand, and have an eighth, a quarter or half of the large one.
    """
    if (price.name, price.region) in listed:
        return listed[price.name, price.region]
    series, devices = _series(price.name), int(rows[price.name]["num_devices"])
    for (name, region), usd in listed.items():
        if devices and region == price.region and _series(name) == series:
            return usd * devices / int(rows[name]["num_devices"])
    return max((usd for (name, _), usd in listed.items() if name == price.name), default=None)


def _series(name: str) -> tuple[str, ...]:
    return tuple(name.split("-")[:2])


def _machine(row: dict[str, str], region: str, prices: dict[Strategy, Price]) -> Machine:
    usd = {strategy: price.total_usd_per_hour for strategy, price in prices.items()}
    first = next((p for p in prices.values() if p.usd_per_hour is not None), next(iter(prices.values())))
    return Machine(
        name=row["name"],
        machine_type=row["machine_type"],
        device=row["device"],
        accelerator=row["accelerator"],
        num_devices=int(row["num_devices"]),
        vcpus=int(row["vcpus"]),
        memory_bytes=int(row["memory_bytes"]),
        device_memory_bytes=int(row["device_memory_bytes"]),
        speeds=Speeds(
            flops_per_s=float(row["flops_per_s"]),
            bandwidth_bytes_per_s=float(row["bandwidth_bytes_per_s"]),
            link_bytes_per_s=float(row["link_bytes_per_s"]),
            network_bytes_per_s=float(row["network_bytes_per_s"]),
            source=row["rates_source"],
        ),
        spot=row["spot"] == "1",
        flex=row["flex"] == "1",
        region=region,
        usd_per_hour=usd.get("on-demand"),
        spot_usd_per_hour=usd.get("spot"),
        flex_usd_per_hour=usd.get("flex-start"),
        source=first.source,
        dated=first.dated,
        ssd_bytes=int(row["ssd_bytes"]),
        prices=tuple(prices.values()),
    )


AT_HAND = Machine(
    name=LOCAL,
    machine_type=LOCAL,
    device="",
    accelerator="",
    num_devices=0,
    vcpus=0,
    memory_bytes=0,
    device_memory_bytes=0,
    speeds=Speeds(
        flops_per_s=0,
        bandwidth_bytes_per_s=0,
        link_bytes_per_s=0,
        network_bytes_per_s=0,
        source="measured by the profile",
    ),
    spot=False,
    flex=False,
    region="",
    usd_per_hour=0.0,
    spot_usd_per_hour=None,
    source="measured by the profile",
    dated=date.min,
)


def local(profile: Profile, *, today: date, own: Machine = AT_HAND) -> Machine:
    """Returns the machine that was profiled, with its measured rates.

    It costs nothing, unless the team's file has it as `own`, with price, devices and memory.
    Raises ParamsError where the profile saw fewer devices than the file has, or another kind.

    An implausibly low rate of a CPU, measured while other processes used the cores, is replaced by the
    catalog's median per core, since the rate scales forecasts for rented machines.
    """
    measured = profile.evidence["machine"]
    rates, source = {}, AT_HAND.speeds.source
    for name in ("flops_per_s", "bandwidth_bytes_per_s"):
        rates[name] = measured[name]
        listed = sorted(_per_core(name)) if not measured["num_devices"] else [0.0]
        if measured[name] < IMPLAUSIBLE * listed[0] * measured["num_cores"]:
            rates[name] = listed[len(listed) // 2] * measured["num_cores"]
            source += f"; {name} {measured[name]:.3g} is not plausible, and {rates[name]:.3g} is assumed"
    seen = measured["num_devices"]
    if own.device and (own.num_devices > seen or bool(own.num_devices) != bool(seen)):
        raise ParamsError(
            f"{own.source} has {own.num_devices} x {own.device} for this machine, and the profile "
            f"saw {seen} x {profile.device}; fix the line {LOCAL}, or look at the driver (nvidia-smi)"
        )
    return replace(
        own,
        device=own.device or profile.device,
        num_devices=own.num_devices if own.device else seen,
        vcpus=measured["num_cores"],
        memory_bytes=min(measured["memory_bytes"], own.memory_bytes or inf),
        device_memory_bytes=min(measured["device_memory_bytes"], own.device_memory_bytes or inf),
        speeds=replace(
            own.speeds,
            flops_per_s=rates["flops_per_s"],
            bandwidth_bytes_per_s=rates["bandwidth_bytes_per_s"],
            link_bytes_per_s=rates["bandwidth_bytes_per_s"],
            storage_bytes_per_s=measured["storage_bytes_per_s"],
            source=source,
        ),
        dated=own.dated if own.device else today,
    )


@cache
def _per_core(rate: str) -> frozenset[float]:
    """Returns what a core of each series of CPU machines does, by the catalog."""
    return frozenset(getattr(m.speeds, rate) / m.vcpus for m in rented() if m.device == "cpu")


def choose(
    patterns: Sequence[str], *, regions: Sequence[str], machines: Sequence[Machine]
) -> tuple[Machine, ...]:
    """Returns the machines of the regions (and the local one) that match a name or pattern, in catalog order.

    Raises ParamsError for a region that the catalog does not have, and for a pattern that matches no machine,
    with the nearest names.
    """
    known = sorted({machine.region for machine in machines if machine.region})
    for region in regions:
        if region not in known:
            raise ParamsError(
                f"plan.regions names {region}, of which nothing is known; choose among {', '.join(known)}"
            )
    there = [machine for machine in machines if machine.region in ("", *regions)]
    for pattern in patterns:
        if not any(fnmatchcase(machine.name, pattern) for machine in there):
            raise ParamsError(_unknown(pattern, regions, machines))
    return tuple(m for m in there if any(fnmatchcase(m.name, pattern) for pattern in patterns))


def _unknown(pattern: str, regions: Sequence[str], machines: Sequence[Machine]) -> str:
    elsewhere = sorted({m.region for m in machines if fnmatchcase(m.name, pattern)})
    if elsewhere:
        return (
            f"plan.machines names {pattern}, which is not offered in {' or '.join(regions)}; "
            f"add {' or '.join(elsewhere)} to plan.regions, or name another machine"
        )
    names = sorted({machine.name for machine in machines})
    near = get_close_matches(pattern, names, n=3, cutoff=0.3) or names[:3]
    return (
        f"plan.machines names {pattern}, which the catalog does not have; "
        f"nearest are {', '.join(near)} (daybreak prices lists all)"
    )
