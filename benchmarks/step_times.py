"""Measured step times of six networks on five clusters of three laboratories, with profiles and machines.

Pollux (OSDI'21) measured machines of four T4, Sia (SOSP'23) machines of eight RTX 2080 Ti and of eight A100,
Gavel (OSDI'20) up to eight K80 or P100 in one machine, or in as many; two of its networks are also theirs.
A profile has the ends of the batch on one device, as nights measure it; bytes to sum are those of the
networks' published weights (of Gavel's transformer and language model: assumed), and rates those of the
devices' data sheets. Links and networks are assumed.
"""

import csv
import gzip
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks import frame
from daybreak.prediction.measurements import Measurement

APPS = ("bert", "cifar10", "imagenet", "ncf")
CLUSTERS = ("t4", "rtx", "dgx")
LABORATORY = {"t4": "Pollux", "rtx": "Sia", "dgx": "Sia", "k80": "Gavel", "p100": "Gavel"}
# The networks of Gavel by their names; one of them was measured on single devices only, and is left out.
GAVEL = {"ResNet-18": "cifar10", "ResNet-50": "imagenet", "Transformer": "transformer", "LM": "lm"}
GAVEL_CLUSTERS = ("k80", "p100")
PARAMETERS = {
    "bert": 110e6,
    "cifar10": 11.2e6,
    "imagenet": 25.6e6,
    "ncf": 1.5e6,
    "transformer": 55e6,
    "lm": 14e6,
}


@dataclass(frozen=True, kw_only=True)
class Device:
    """Rates by data sheets: dense FLOP/s as trained, bytes/s of memory, link and network."""

    name: str
    per_machine: int
    flops_per_s: float
    bandwidth_bytes_per_s: float
    link_bytes_per_s: float
    network_bytes_per_s: float

    @property
    def roofline(self) -> float:
        """Root of FLOP/s times bytes/s of memory."""
        return (self.flops_per_s * self.bandwidth_bytes_per_s) ** 0.5


DEVICES = {
    "t4": Device(
        name="T4",
        per_machine=4,
        flops_per_s=65e12,
        bandwidth_bytes_per_s=320e9,
        link_bytes_per_s=12e9,
        network_bytes_per_s=6.25e9,
    ),
    "rtx": Device(
        name="RTX 2080 Ti",
        per_machine=8,
        flops_per_s=108e12,
        bandwidth_bytes_per_s=616e9,
        link_bytes_per_s=12e9,
        network_bytes_per_s=6.25e9,
    ),
    "dgx": Device(
        name="A100 40GB",
        per_machine=8,
        flops_per_s=312e12,
        bandwidth_bytes_per_s=1555e9,
        link_bytes_per_s=250e9,
        network_bytes_per_s=25e9,
    ),
    "k80": Device(
        name="K80",
        per_machine=8,
        flops_per_s=4.37e12,
        bandwidth_bytes_per_s=240e9,
        link_bytes_per_s=12e9,
        network_bytes_per_s=1.25e9,
    ),
    "p100": Device(
        name="P100",
        per_machine=8,
        flops_per_s=10.6e12,
        bandwidth_bytes_per_s=732e9,
        link_bytes_per_s=12e9,
        network_bytes_per_s=1.25e9,
    ),
}


@cache
def steps() -> dict[tuple[str, str], list[Measurement]]:
    """The measured steps by network and cluster; where a row has no placement, workers are spread evenly."""
    measured: dict[tuple[str, str], list[Measurement]] = {(a, c): [] for a in APPS for c in CLUSTERS}
    measured |= {(app, cluster): [] for app in GAVEL.values() for cluster in GAVEL_CLUSTERS}
    for name in ("pollux_osdi21_throughput", "sia_sosp23_rtx_dgx"):
        with gzip.open(frame.DATA / "throughput" / f"{name}.csv.gz", "rt") as file:
            for row in csv.DictReader(file):
                cluster = "t4" if row["cluster"] == "default" else row["cluster"]
                workers = placement(row)
                if (row["app"], cluster) in measured and float(row["step_time"]) > 0:
                    measured[row["app"], cluster].append(
                        Measurement(
                            workers=workers,
                            micro_batch_size=float(row["local_bsz"]),
                            step_s=float(row["step_time"]),
                        )
                    )
    with gzip.open(frame.DATA / "throughput" / "gavel_osdi20_k80_p100.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if row["model"] in GAVEL:
                workers = int(row["num_workers"])  # of whose steps the rate is the sum
                measured[GAVEL[row["model"]], row["device"]].append(
                    Measurement(
                        workers=(workers,) if row["consolidated"] == "1" else (1,) * workers,
                        micro_batch_size=float(row["micro_batch_size"]),
                        step_s=workers / float(row["steps_per_s"]),
                    )
                )
    return measured


def placement(row: dict[str, str]) -> tuple[int, ...]:
    """Workers on each machine of a row: its digits, or spread evenly over its machines."""
    if row["num_nodes"]:
        machines, workers = int(float(row["num_nodes"])), int(float(row["num_replicas"]))
        even = tuple(workers // machines + (k < workers % machines) for k in range(machines))
    digits = row["placement"].removesuffix(".0")
    return tuple(map(int, digits)) if digits else even


def line(rows: list[Measurement]) -> tuple[float, float]:
    """Seconds of a pass and of each of its samples, by the ends of the batch on one device."""
    alone = sorted((r for r in rows if r.num_workers == 1), key=lambda r: r.micro_batch_size)
    low, high = alone[0], alone[-1]
    per_sample = (high.step_s - low.step_s) / (high.micro_batch_size - low.micro_batch_size)
    return max(0.0, low.step_s - per_sample * low.micro_batch_size), per_sample


def middle(rows: list[Measurement]) -> float:
    """Geometric mean of the micro-batch sizes."""
    return float(np.exp(np.mean(np.log([r.micro_batch_size for r in rows]))))
