"""Writes the bill of a month from SKUs and the provider's log of jobs; it imports nothing of the pipeline.

The SKUs are those of the Cloud Billing Catalog for an a3-highgpu-8g in us-central1, as
https://zenn.dev/google_cloud_jp/articles/dws-flex-new-skus read them off bills of Vertex AI on 2025-08-15. On
demand all are of Vertex AI, its fee included; by flex-start the machine is Compute Engine's and the fee
Vertex AI's. A machine is billed from when it is there until it is gone, by the second, and so is its disk.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

HOURS_A_MONTH = Decimal(730)
GPUS, CORES, RAM_GIB, LOCAL_SSD_GIB, DISK_GIB = map(Decimal, (8, 208, 1872, 6000, 200))
DISK = (Decimal("0.1955") / HOURS_A_MONTH, DISK_GIB)  # A005-98FE-36CC, SSD backed PD Capacity
SKUS: dict[str, tuple[tuple[Decimal, Decimal], ...]] = {  # by how it is rented: dollars an hour, amount
    "on-demand": (
        (Decimal("11.2660332"), GPUS),  # 3F95-001E-B747, Training/Pipelines on NVIDIA H100 80GB in Iowa
        (Decimal("0.0293227"), CORES),  # 2E83-99F1-391A, on A3 Instance Core
        (Decimal("0.0025534"), RAM_GIB),  # B045-9255-8314, on A3 Instance RAM
    ),
    "flex-start": (
        (Decimal("4.200761"), GPUS),  # 341A-49A5-0C07, H100 attached to DWS Defined Duration VMs
        (Decimal("0.010934"), CORES),  # 9A32-36B2-7FBC, DWS Defined Duration A3 Core
        (Decimal("0.000952"), RAM_GIB),  # ED19-A584-4A84, DWS Defined Duration A3 Ram
        (Decimal("0.08") / HOURS_A_MONTH, LOCAL_SSD_GIB),  # 2303-1D6A-9C08, SSD backed Local Storage
        (Decimal("1.4694826"), GPUS),  # 5853-505F-A5C4, management fee on NVIDIA H100 80GB in Iowa
        (Decimal("0.0038247"), CORES),  # 9AC1-7D9B-C47E, management fee on A3 Instance Core
        (Decimal("0.0003331"), RAM_GIB),  # D30D-69C9-F057, management fee on A3 Instance RAM
    ),
}


@dataclass(frozen=True, kw_only=True)
class Use:
    """A line of the provider's log: machines that were there from one moment to another."""

    strategy: str
    num_machines: int
    there_s: float  # seconds since 1970
    gone_s: float


def usd_per_hour(strategy: str, *, with_disk: bool) -> Decimal:
    """Dollars for an hour of one machine."""
    parts = (*SKUS[strategy], *([DISK] if with_disk else []))
    return sum((rate * amount for rate, amount in parts), Decimal(0))


def total_usd(uses: Iterable[Use]) -> Decimal:
    """Dollars for all uses."""
    return sum(
        (
            usd_per_hour(use.strategy, with_disk=True)
            * use.num_machines
            * Decimal(use.gone_s - use.there_s)
            / 3600
            for use in uses
        ),
        Decimal(0),
    )


def to_a_cent(usd: Decimal | float) -> Decimal:
    """Dollars as a bill says them."""
    return Decimal(usd).quantize(Decimal("0.01"), ROUND_HALF_UP)
