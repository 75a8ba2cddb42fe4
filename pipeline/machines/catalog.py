"""What can be rented, and where? `machines.csv` with the prices of `pricelist`, and the machine at hand.

Device figures are per device, as vendors state them for dense bf16; a CPU machine counts as one device with
float32 figures assumed per core. Links between devices, one way, are assumed: `rates_source` says what is. A
machine is there once for each region that it is offered in. `local` is the machine that was profiled, with
what the profile measured.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path

from pipeline.contract.errors import ParamsError
from pipeline.contract.records import LOCAL, Profile, Strategy
from pipeline.machines import pricelist
from pipeline.machines.pricelist import Price

HEADROOM = 0.10  # share of a device's memory that is left free


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A rented unit. Rates are per second; prices are dollars per hour, None where there is none."""

    name: str
    machine_type: str  # the provider's
    device: str
    accelerator: str  # the provider's name of the device; "" for CPU and TPU machines
    num_devices: int  # 0: the CPU is the device
    vcpus: int
    memory_bytes: int
    device_memory_bytes: int
    bandwidth_bytes_per_s: float
    flops_per_s: float
    link_bytes_per_s: float  # between the devices of one machine, one way
    network_bytes_per_s: float  # between machines, one way
    spot: bool
    flex: bool
    region: str  # "" for the machine at hand
    usd_per_hour: float | None
    spot_usd_per_hour: float | None
    source: str  # of the first of its prices that is known
    dated: date
    flex_usd_per_hour: float | None = None
    ssd_bytes: int = 0  # disks that come with it and are billed with it
    rates_source: str = ""  # of its FLOP/s, bandwidth and links
    prices: tuple[Price, ...] = ()  # as they are listed, each with its source and date

    @property
    def num_workers(self) -> int:
        """Training processes on one machine: one per device, one where the CPU is the device."""
        return max(1, self.num_devices)

    @property
    def is_tpu(self) -> bool:
        """TPU slices of one machine only: spot ones cannot be joined."""
        return self.device.startswith("TPU")

    @property
    def gpus(self) -> str:
        """What its workers must see, `2 x L4`; "" where they need no GPU."""
        return f"{self.num_devices} x {self.device}" if self.num_devices and not self.is_tpu else ""

    def price(self, strategy: Strategy) -> float | None:
        """Dollars per hour, or None where it is not rented that way."""
        if strategy == "flex-start":
            return self.flex_usd_per_hour if self.flex else None
        if strategy == "spot":
            return self.spot_usd_per_hour if self.spot else None
        return self.usd_per_hour

    def told(self, strategy: Strategy) -> tuple[str, date]:
        """Whose price that is, and of which day."""
        listed = (p for p in self.prices if p.strategy == strategy and p.usd_per_hour is not None)
        found = next(listed, None)
        return (found.source, found.dated) if found else (self.source, self.dated)


def rented(refreshed: Path | None = None) -> tuple[Machine, ...]:
    """All machines in all regions they are offered in; prices in the file `refreshed` go before ours."""
    return _rented(refreshed, pricelist.changed(refreshed))


@cache
def _rented(refreshed: Path | None, written: int) -> tuple[Machine, ...]:
    offered: dict[tuple[str, str], dict[Strategy, Price]] = {}
    for price in pricelist.prices(refreshed):
        offered.setdefault((price.name, price.region), {})[price.strategy] = price
    text = files("pipeline.machines").joinpath("machines.csv").read_text()
    known = {row["name"]: row for row in csv.DictReader(text.splitlines())}
    return tuple(_machine(known[name], region, found) for (name, region), found in offered.items())


def _machine(row: dict[str, str], region: str, found: dict[Strategy, Price]) -> Machine:
    usd = {strategy: price.usd_per_hour for strategy, price in found.items()}
    first = next((p for p in found.values() if p.usd_per_hour is not None), next(iter(found.values())))
    return Machine(
        name=row["name"],
        machine_type=row["machine_type"],
        device=row["device"],
        accelerator=row["accelerator"],
        num_devices=int(row["num_devices"]),
        vcpus=int(row["vcpus"]),
        memory_bytes=int(row["memory_bytes"]),
        device_memory_bytes=int(row["device_memory_bytes"]),
        bandwidth_bytes_per_s=float(row["bandwidth_bytes_per_s"]),
        flops_per_s=float(row["flops_per_s"]),
        link_bytes_per_s=float(row["link_bytes_per_s"]),
        network_bytes_per_s=float(row["network_bytes_per_s"]),
        spot=row["spot"] == "1",
        flex=row["flex"] == "1",
        region=region,
        usd_per_hour=usd.get("on-demand"),
        spot_usd_per_hour=usd.get("spot"),
        flex_usd_per_hour=usd.get("flex-start"),
        source=first.source,
        dated=first.dated,
        ssd_bytes=int(row["ssd_bytes"]),
        rates_source=row["rates_source"],
        prices=tuple(found.values()),
    )


def local(profile: Profile, *, today: date) -> Machine:
    """The machine that was profiled, with its measured rates; it costs nothing."""
    measured = profile.evidence["machine"]
    return Machine(
        name=LOCAL,
        machine_type=LOCAL,
        device=profile.device,
        accelerator="",
        num_devices=measured["num_devices"],
        vcpus=measured["num_cores"],
        memory_bytes=measured["memory_bytes"],
        device_memory_bytes=measured["device_memory_bytes"],
        bandwidth_bytes_per_s=measured["bandwidth_bytes_per_s"],
        flops_per_s=measured["flops_per_s"],
        link_bytes_per_s=measured["bandwidth_bytes_per_s"],
        network_bytes_per_s=0,
        spot=False,
        flex=False,
        region="",
        usd_per_hour=0.0,
        spot_usd_per_hour=None,
        source="measured by the profile",
        rates_source="measured by the profile",
        dated=today,
    )


def choose(
    patterns: Sequence[str], *, regions: Sequence[str], machines: Sequence[Machine]
) -> tuple[Machine, ...]:
    """The machines of the regions (and the one at hand) that a name or pattern names, in catalog order.

    Raises ParamsError for a pattern that names none, with the nearest names there are.
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
        f"nearest are {', '.join(near)} (python -m pipeline prices lists all)"
    )
