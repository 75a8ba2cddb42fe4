"""Describes a machine that a job can run on: devices, peak speeds and prices."""

from dataclasses import dataclass
from datetime import date

from daybreak.contract.formats import dollars
from daybreak.contract.record_parts import LOCAL, PriceSource, Strategy

INFERRED = "inferred: "  # begins the source of what no list says


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What the service that runs a job adds to the price of a machine."""

    usd_per_hour: float
    source: str  # with its date

    @property
    def inferred(self) -> bool:
        """Returns whether no list has this charge, so that it was inferred from others."""
        return self.source.startswith(INFERRED)


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a machine costs in a region, rented one way; None where that is not known."""

    name: str
    region: str
    strategy: Strategy
    usd_per_hour: float | None  # by the list of the provider, without the fee
    source: str
    dated: date
    fee: Charge | None = None  # of the service that runs the job

    @property
    def total_usd_per_hour(self) -> float | None:
        """Returns the price with its fee."""
        if self.usd_per_hour is None:
            return None
        return self.usd_per_hour + (self.fee.usd_per_hour if self.fee else 0.0)

    @property
    def key(self) -> tuple[str, str, Strategy]:
        """The machine, region and strategy that it is the price of."""
        return self.name, self.region, self.strategy


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """The peak rates of a machine; 0 where a rate is not known, or the machine has no such link."""

    flops_per_s: float  # of one device
    bandwidth_bytes_per_s: float  # of the memory of one device
    link_bytes_per_s: float  # between the devices of one machine, one way
    network_bytes_per_s: float  # between machines, one way
    storage_bytes_per_s: float = 0.0  # read from the disk that the arrays are laid out on
    source: str = ""  # of all but the storage


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A rented unit. Prices are dollars per hour, None where there is none.

    `price` is what a job pays for it: the price with the fee of the service, and the boot disk.
    """

    name: str
    machine_type: str  # the provider's
    device: str
    accelerator: str  # the provider's name of the device; "" for CPU and TPU machines
    num_devices: int  # 0: the CPU is the device
    vcpus: int
    memory_bytes: int
    device_memory_bytes: int
    speeds: Speeds
    spot: bool
    flex: bool
    region: str  # "" for the machine at hand
    usd_per_hour: float | None  # with the fee, without the boot disk, like the next one
    spot_usd_per_hour: float | None
    source: str  # of the first of its prices that is known
    dated: date
    flex_usd_per_hour: float | None = None
    ssd_bytes: int = 0  # disks that come with it and are billed with it
    prices: tuple[Price, ...] = ()  # as they are listed, each with its source and date
    count: int = 0  # of existing machines; 0: unlimited
    disk: Charge | None = None  # the boot disk, at the size that a backend rents
    backend: str = ""  # name in params.yaml of the backend that rents it; "" where there is only one
    joins: bool = False  # whether a job may have it beside machines of another kind, of the same backend

    @property
    def is_local(self) -> bool:
        """Returns whether it is the machine at hand, which is not rented."""
        return self.name == LOCAL

    @property
    def num_workers(self) -> int:
        """Returns the number of workers on a machine: one per device, one on a CPU."""
        return max(1, self.num_devices)

    @property
    def num_processes(self) -> int:
        """Returns the training processes on a machine: one per worker, but one for all chips of a TPU."""
        return 1 if self.is_tpu else self.num_workers

    @property
    def is_tpu(self) -> bool:
        """Returns whether it is a TPU slice, of all chips of one machine."""
        return self.device.startswith("TPU")

    @property
    def gpus(self) -> str:
        """Returns the GPUs that its workers must see, `2 x L4`; "" where they need none."""
        return f"{self.num_devices} x {self.device}" if self.num_devices and not self.is_tpu else ""

    def price(self, strategy: Strategy) -> float | None:
        """Returns what a job pays for an hour, in dollars, or None where it is not rented that way.

        Plan, budget, meter and ledger all read this.
        """
        usd = self.usd_per_hour
        if strategy == "flex-start":
            usd = self.flex_usd_per_hour if self.flex else None
        elif strategy == "spot":
            usd = self.spot_usd_per_hour if self.spot else None
        return usd if usd is None or self.disk is None else usd + self.disk.usd_per_hour

    def price_source(self, strategy: Strategy) -> PriceSource:
        """Returns source and date of the price under a strategy, with the source of fee and boot disk."""
        listed = (p for p in self.prices if p.strategy == strategy and p.usd_per_hour is not None)
        price = next(listed, None)
        source, dated = (price.source, price.dated) if price else (self.source, self.dated)
        for charge, name in ((price.fee if price else None, "its fee"), (self.disk, "its boot disk")):
            if charge:
                source += f"; {dollars(charge.usd_per_hour)} of it for {name}: {charge.source}"
        return PriceSource(source=source, dated=dated)
