"""Reads a team's own machines from a CSV file: hardware, price by the hour, and how many there are.

    name,device,num_devices,vcpus,memory_gb,count,options,usd_per_hour,spot_options,spot_usd_per_hour
    a100,A100 80GB,4,64,512,8,--partition=gpu --gres=gpu:a100:4,6.00,--partition=scavenge --gres=gpu:4,1.50
    cpu,cpu,0,32,128,40,--partition=main

A device that the catalog knows (`daybreak prices`) brings its speed and memory; of another the
columns `device_memory_gb`, `flops_per_s` and `bandwidth_gb_per_s` say them. `link_gb_per_s` is between the
devices of a machine, and needed where that has several of such a device; `network_gb_per_s` is between
machines, that of an Ethernet of 10 Gbit/s if left out; both one way. A price that is left out is 0.
`spot_options` make a machine one that may be taken away. All columns after the fifth may be left out. The
machine `local` is the one at hand, for the backend Local alone: how fast it is the profile measures.
"""

import csv
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from daybreak.contract.errors import ParamsError
from daybreak.contract.machine import Machine, Price, Speeds
from daybreak.contract.record_parts import LOCAL, Strategy
from daybreak.machines import catalog

NEEDED = ("name", "device", "num_devices", "vcpus", "memory_gb")
RATES = ("device_memory_gb", "flops_per_s", "bandwidth_gb_per_s", "link_gb_per_s", "network_gb_per_s")
OPTIONAL = (*RATES, "count", "usd_per_hour", "spot_usd_per_hour", "options", "spot_options")
GB = 1e9
ETHERNET_GB_PER_S = 1.25  # 10 Gbit/s, between machines where nothing else is known


@dataclass(frozen=True, kw_only=True)
class OwnMachine:
    """A machine, with the options of the scheduler that request it."""

    machine: Machine
    options: tuple[str, ...]
    spot_options: tuple[str, ...]

    def words(self, strategy: Strategy) -> tuple[str, ...]:
        """Returns the options of that strategy."""
        return self.spot_options if strategy == "spot" else self.options


def read(path: Path) -> tuple[OwnMachine, ...]:
    """Returns the machines of the file in its order; ParamsError names the line and column that is wrong."""
    if not path.exists():
        raise ParamsError(f"{path}, the file of your machines, is missing; write it, or fix backend.machines")
    dated = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
    reader = csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines())
    columns = tuple(reader.fieldnames or ())
    missing, unknown = set(NEEDED) - set(columns), set(columns) - {*NEEDED, *OPTIONAL}
    if missing or unknown:
        wrong = [*(f"lacks {name}" for name in sorted(missing)), *(f"has {name}" for name in sorted(unknown))]
        raise ParamsError(
            f"{path} {' and '.join(wrong)}; its columns are {', '.join(NEEDED)}, and those that may be left "
            f"out: {', '.join(OPTIONAL)}"
        )
    lines = [(f"{path}, line {reader.line_num}", row) for row in reader]
    if not lines:
        raise ParamsError(f"{path} names no machine; write a line for each kind that you have")
    return parsed(lines, source=str(path), dated=dated)


def parsed(
    lines: Iterable[tuple[str, Mapping[str, str | None]]], *, source: str, dated: date
) -> tuple[OwnMachine, ...]:
    """Returns the machines of rows, each with where it stands, by which a ParamsError begins."""
    machines: list[OwnMachine] = []
    for where, row in lines:
        cells = _Cells(row, where=where)
        name = cells.text("name")
        if any(name == each.machine.name for each in machines):
            raise ParamsError(f"{cells.where}: the name {name} is taken; give each machine a name of its own")
        price = {
            strategy: Price(
                name=name,
                region="",
                strategy=strategy,
                usd_per_hour=cells.number(column),
                source=source,
                dated=dated,
            )
            for strategy, column in _strategies(cells)
        }
        machines.append(
            OwnMachine(
                machine=_machine(cells, prices=price),
                options=cells.words("options"),
                spot_options=cells.words("spot_options"),
            )
        )
    return tuple(machines)


def _strategies(cells: "_Cells") -> Iterator[tuple[Strategy, str]]:
    yield "on-demand", "usd_per_hour"
    if cells.text("spot_options", ""):
        yield "spot", "spot_usd_per_hour"


def _machine(cells: "_Cells", *, prices: dict[Strategy, Price]) -> Machine:
    device, vcpus = cells.text("device"), cells.count("vcpus")
    num_devices, memory = cells.count("num_devices"), cells.number("memory_gb") * GB
    if (device == "cpu") != (num_devices == 0):
        raise ParamsError(
            f"{cells.where}: {num_devices} devices {device}; a machine without GPUs has 0 devices cpu"
        )
    alike = [each for each in catalog.rented() if each.device == device]
    joined = [each for each in alike if each.speeds.link_bytes_per_s and num_devices > 1]
    known = next(iter([*joined, *alike]), None)
    listed = known.speeds if known else None
    share = vcpus / known.vcpus if known and not num_devices else 1.0  # CPUs are listed by their cores
    link = cells.number("link_gb_per_s", listed.link_bytes_per_s / GB if listed else 0.0)
    network = cells.number("network_gb_per_s", listed.network_bytes_per_s / GB if listed else 0.0)
    if num_devices > 1 and not (link or network) and cells.text("name") != LOCAL:
        raise ParamsError(
            f"{cells.where}: the catalog does not know how fast {num_devices} x {device} reach each other; "
            f"add the column link_gb_per_s, such as 25 for PCIe 4.0 of 16 lanes"
        )
    on_device = (known.device_memory_bytes if known else 0.0) if num_devices else memory
    machine = Machine(
        name=cells.text("name"),
        machine_type=cells.text("name"),
        device=device,
        accelerator="",
        num_devices=num_devices,
        vcpus=vcpus,
        memory_bytes=int(memory),
        device_memory_bytes=int(cells.number("device_memory_gb", on_device / GB) * GB),
        speeds=Speeds(
            flops_per_s=cells.number("flops_per_s", share * listed.flops_per_s if listed else 0.0),
            bandwidth_bytes_per_s=GB
            * cells.number(
                "bandwidth_gb_per_s", share * listed.bandwidth_bytes_per_s / GB if listed else 0.0
            ),
            link_bytes_per_s=GB * link,
            network_bytes_per_s=GB * (network or ETHERNET_GB_PER_S),
            source=f"the catalog's of {device}" if known else prices["on-demand"].source,
        ),
        spot="spot" in prices,
        flex=False,
        region="",
        usd_per_hour=prices["on-demand"].usd_per_hour,
        spot_usd_per_hour=prices["spot"].usd_per_hour if "spot" in prices else None,
        source=prices["on-demand"].source,
        dated=prices["on-demand"].dated,
        prices=tuple(prices.values()),
        count=cells.count("count", 0),
    )
    for column, value in (
        ("device_memory_gb", machine.device_memory_bytes),
        ("flops_per_s", machine.speeds.flops_per_s),
        ("bandwidth_gb_per_s", machine.speeds.bandwidth_bytes_per_s),
    ):
        if not value > 0 and machine.name != LOCAL:
            devices = sorted({each.device for each in catalog.rented()})
            raise ParamsError(
                f"{cells.where}: the catalog does not know {device}; add the column {column}, or name one of "
                f"{', '.join(devices)}"
            )
    return machine


@dataclass(frozen=True)
class _Cells:
    """A line of the file."""

    row: Mapping[str, str | None]
    where: str

    def text(self, column: str, missing: str | None = None) -> str:
        value = (self.row.get(column) or "").strip()
        if value:
            return value
        if missing is None:
            raise ParamsError(f"{self.where}: {column} is empty; fill it in")
        return missing

    def words(self, column: str) -> tuple[str, ...]:
        text = self.text(column, "")
        try:
            return tuple(shlex.split(text))
        except ValueError as error:
            raise ParamsError(
                f"{self.where}: {column} is {text!r}, which a shell cannot split ({error}); check its quotes "
                "and backslashes"
            ) from error

    def number(self, column: str, missing: float = 0.0) -> float:
        value = self.text(column, "" if column not in NEEDED else None)
        try:
            number = float(value) if value else missing
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise ParamsError(f"{self.where}: {column} is {value!r}; write a number that is not negative")
        return number

    def count(self, column: str, missing: int = 0) -> int:
        number = self.number(column, float(missing))
        if number != int(number):
            raise ParamsError(f"{self.where}: {column} is {number:g}; write a whole number")
        return int(number)
