"""Nights, data sets, profiles and machines for the tests of what is planned."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

from daybreak.contract.machine import Machine, Speeds
from daybreak.contract.record_parts import Line
from daybreak.contract.record_types import Dataset, Night, Profile
from daybreak.machines.catalog import AT_HAND, rented

EVERYTHING = (AT_HAND, *rented())  # that can be had: the machine at hand, and the catalog
STARTED = datetime(2011, 9, 1, 11, 0, tzinfo=UTC)
DATASET = Dataset(
    digest="d",
    num_samples=1_000_000,
    num_bytes=10**9,
    first_day=date(2011, 1, 1),
    last_day=date(2011, 8, 31),
)


def night(*, hours: float = 18, budget_usd: float = 40) -> Night:
    return Night(
        id="2011-09-01",
        day=date(2011, 9, 1),
        started_at=STARTED,
        train_until=STARTED + timedelta(hours=hours),
        decide_until=STARTED + timedelta(hours=hours + 6),
        budget_usd=budget_usd,
        trigger="schedule",
        code_commit="c",
        previous="",
    )


def line(fixed: float, per_sample: float) -> Line:
    return Line(
        fixed=fixed, per_sample=per_sample, fixed_error=0.02 * fixed, per_sample_error=0.02 * per_sample
    )


def profile(*, step_s: float = 1e-3, load_s: float = 1e-5, sample_bytes: float = 1e6) -> Profile:
    """A job on a CPU of two cores, `step_s` seconds of step per sample."""
    return Profile(
        device="cpu",
        load_s=line(1e-3, load_s),
        step_s=line(1e-2, step_s),
        memory_bytes=line(3e8, sample_bytes),
        sync_bytes=line(4e7, 0),
        flops_per_sample=1e8,
        noise_scale=1000,
        bound="compute",
        evidence={
            "machine": {
                "num_cores": 2,
                "num_devices": 0,
                "memory_bytes": 8 * 10**9,
                "device_memory_bytes": 8 * 10**9,
                "flops_per_s": 2e11,
                "bandwidth_bytes_per_s": 2e10,
                "storage_bytes_per_s": 0.0,
            }
        },
        remedies=(),
    )


def machine(**changes: object) -> Machine:
    """A rented machine of two cores as fast as the profiled one, with changes."""
    plain = next(m for m in rented() if m.name == "n2-standard-4" and m.region == "us-central1")
    return with_speeds(plain, **{"flops_per_s": 2e11, "bandwidth_bytes_per_s": 2e10} | changes)


def with_speeds(machine: Machine, **changes: object) -> Machine:
    """The machine with changes, of its speeds and otherwise."""
    speeds = {name: value for name, value in changes.items() if name in Speeds.__dataclass_fields__}
    others = {name: value for name, value in changes.items() if name not in speeds}
    return replace(machine, speeds=replace(machine.speeds, **speeds), **others)
