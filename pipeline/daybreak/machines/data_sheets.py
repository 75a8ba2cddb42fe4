"""Puts the measured peak rates of a device on the scale of data sheets, so that like is compared with like.

A device reaches less than its sheet says: an H100 reached 0.89 of its FLOP/s in a large product and 0.90 of
its bandwidth in a copy (docs/measured.md). Compared with the sheets of others as it was measured, it would
seem slower than itself. So a device that the catalog has counts by its own sheet, whatever share of it was
measured; of any other, a CPU too, the measured rates are divided by those two shares. A slice of a device
(MIG), and a board of the same name with less power (PCIe, NVL), count as others.
"""

import re
from functools import cache

from daybreak.contract.machine import Machine, Speeds
from daybreak.machines.catalog import rented

UNLIKE = frozenset({"MIG", "PCIE", "NVL"})  # in a name: slower than the sheet of the name without it
REACHED_FLOPS, REACHED_BYTES = 0.89, 0.90  # of a sheet, by an H100


def sheet(name: str) -> Speeds | None:
    """Returns the data sheet of a device by the name that its driver gives it; None if none is known.

    >>> sheet("NVIDIA A100-SXM4-80GB").bandwidth_bytes_per_s
    1900000000000.0
    >>> sheet("NVIDIA L40S")
    """
    words = _words(name)
    if words & UNLIKE:
        return None
    return next((machine.speeds for device, machine in _devices().items() if _words(device) <= words), None)


def on_sheet(name: str, *, flops_per_s: float, bytes_per_s: float) -> tuple[float, float]:
    """Returns FLOP/s and bytes/s of a device as a data sheet states them, by its name and measured rates."""
    known = sheet(name)
    if known:
        return known.flops_per_s, known.bandwidth_bytes_per_s
    return flops_per_s / REACHED_FLOPS, bytes_per_s / REACHED_BYTES


def fastest() -> Machine:
    """Returns a machine with a price whose device has the most FLOP/s, then the most bytes/s."""
    priced = (machine for machine in rented() if machine.usd_per_hour or machine.spot_usd_per_hour)
    return max(priced, key=lambda m: (m.speeds.flops_per_s, m.speeds.bandwidth_bytes_per_s))


@cache
def _devices() -> dict[str, Machine]:
    """Returns a machine of each accelerator of the catalog."""
    return {machine.device: machine for machine in rented() if machine.num_devices}


def _words(name: str) -> frozenset[str]:
    # Google Cloud's own name of a slice of TPU v5e is v5litepod-8.
    return frozenset(re.split(r"[^A-Z0-9]+", name.upper().replace("V5LITEPOD", "V5E"))) - {""}
