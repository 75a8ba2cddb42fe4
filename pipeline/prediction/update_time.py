"""Predicts how long an update takes on a machine, how it is split into passes, and how certain that is.

With R workers, b = batch / R samples each in s micro-batches of m, an update takes

    T = s * (load(m) + step(m)) + S,   S = k (R/2)^p * (sync_bytes / bandwidth + latency)

(no gradient is sent in the micro-steps before the last; Pollux, OSDI'21, without overlap; k and p are those
that networks showed, priors.json, one of each for one machine, two, and more). With L loaders
load and step overlap: max(load / L, step). On a device that was not measured the part of the step that
grows with the batch is scaled by the roofline (Sia, SOSP'23): by FLOP/s at one extreme, by bandwidth at the
other, expected at their geometric mean; the part that does not grow is the host's and stays. Loading waits
for no storage for the share of the arrays that stay in memory once they were laid out, and for the rest as
long as the profile measured with nothing in memory, by the rates of both disks. Earlier nights correct the
result (calibration.py) and reduce its uncertainty.
"""

from dataclasses import dataclass
from math import ceil, exp, hypot, log

from pipeline.contract.machine import Machine
from pipeline.contract.records import Profile
from pipeline.machines.catalog import HEADROOM, PAGE_CACHE
from pipeline.machines.startup import Z90, Part
from pipeline.prediction.calibration import Calibration, Correction, Update, nothing
from pipeline.prediction.measurements import Setting
from pipeline.prediction.priors import priors

LEAST_LOAD = 0.05  # share of a load that stays where it waits for no storage
LATENCY_S = 50e-6  # of one message between machines; a fifth of that within one


@dataclass(frozen=True, kw_only=True)
class TimedUpdate:
    """How an update is split into passes on a machine, and the parts of its time."""

    setting: Setting
    num_loaders: int
    parts: tuple[Part, ...]

    @property
    def seconds(self) -> float:
        """Median of the time, in seconds."""
        return sum(part.seconds for part in self.parts)


def update(
    profile: Profile,
    machine: Machine,
    *,
    measured: Machine,
    num_machines: int,
    batch_size: int,
    num_workers: int,
    num_bytes: int = 0,
    known: Calibration | None = None,
) -> TimedUpdate | None:
    """Returns one update on a machine; None if not even one sample fits the memory.

    `num_bytes` is the size of the arrays.
    """
    workers = num_workers * num_machines
    samples = ceil(batch_size / workers)
    sharing = max(1.0, num_workers / machine.num_workers)  # processes on one device
    micro = _micro_batch_size(profile, machine, samples=samples, sharing=sharing)
    if micro is None:
        return None
    setting = Setting(
        workers=(num_workers,) * num_machines, micro_batch_size=micro, num_passes=ceil(samples / micro)
    )
    return at(
        profile, machine, measured=measured, setting=setting, num_bytes=num_bytes, known=known,
        samples=samples, sharing=sharing,
    )  # fmt: skip


def by_profile(profile: Profile, machine: Machine, *, measured: Machine, sharing: float = 1.0) -> Update:
    """Returns an update on a machine by profile and roofline, `sharing` processes on one device."""
    scale, _ = _scale(machine, measured=measured, sharing=sharing)
    line = profile.step_s
    return Update(
        fixed_s=line.fixed,
        per_sample_s=line.per_sample * scale,
        within_s=_sync_s(profile, machine, num_machines=1),
        across_s=_sync_s(profile, machine, num_machines=2),
        fixed_error=_relative(line.fixed_error, line.fixed),
        per_sample_error=_relative(line.per_sample_error, line.per_sample),
    )


def at(
    profile: Profile,
    machine: Machine,
    *,
    measured: Machine,
    setting: Setting,
    samples: float = 0,
    sharing: float = 1.0,
    num_bytes: int = 0,
    known: Calibration | None = None,
) -> TimedUpdate:
    """Returns one update in a setting, whether or not it fits the memory.

    `samples` are those of a worker, if the last of its passes has fewer than the others.
    """
    samples = samples or setting.micro_batch_size * setting.num_passes
    scale, apart = _scale(machine, measured=measured, sharing=sharing)
    corrected = None
    if known and known.past:
        plain = by_profile(profile, machine, measured=measured, sharing=sharing)
        corrected = known.correction(machine.name, machine.device, setting, plain, here=machine is measured)
    spread, apart = _doubt(corrected, seen=machine is measured, apart=apart)
    num_loaders, parts = _passes(
        profile, machine, seen=machine is measured, setting=setting, samples=samples, scale=scale,
        spread=spread, apart=apart,
        storage=_storage(profile, machine, measured=measured, num_bytes=num_bytes),
    )  # fmt: skip
    if setting.num_workers > 1:
        compute_s = sum(part.seconds for part in parts) / setting.num_passes
        parts = (*parts, _summing(profile, machine, setting, compute_s=compute_s, known=known))
    if corrected and (corrected.num_nights or machine is not measured):
        late = exp(
            corrected.shift
        )  # the whole update was measured or is like those, so its parts are as certain
        parts = tuple(Part(seconds=p.seconds * late, spread=spread, name=p.name) for p in parts)
    return TimedUpdate(setting=setting, num_loaders=num_loaders, parts=parts)


def _doubt(corrected: Correction | None, *, seen: bool, apart: float) -> tuple[float, float]:
    """Returns the spread of an update's parts, and what the two extremes of the roofline add to it."""
    if corrected and (corrected.num_nights or not seen):
        return corrected.spread, 0.0
    assumed = priors().assumed
    return (assumed.repeated if seen else assumed.unseen), apart


def _scale(machine: Machine, *, measured: Machine, sharing: float) -> tuple[float, float]:
    """Returns the slowdown of the part that grows with the batch, and the spread of its two extremes."""
    if machine is measured:
        return sharing, 0.0
    by_flops = measured.flops_per_s / machine.flops_per_s
    by_bandwidth = measured.bandwidth_bytes_per_s / machine.bandwidth_bytes_per_s
    return sharing * (by_flops * by_bandwidth) ** 0.5, abs(log(by_flops / by_bandwidth)) / 2 / Z90


def _storage(profile: Profile, machine: Machine, *, measured: Machine, num_bytes: int) -> tuple[float, float]:
    """Returns the slowdown of loading by the machine's storage, and a spread that reaches back to none."""
    shares = profile.evidence.get("storage", {})
    if machine is measured or not shares:
        return 1.0, 0.0
    rates = measured.storage_bytes_per_s, machine.storage_bytes_per_s
    cold = shares["cold_share"] * (rates[0] / rates[1] if all(rates) else 1.0)
    stays = min(1.0, PAGE_CACHE * machine.memory_bytes / num_bytes) if num_bytes else 1.0
    slowdown = max(LEAST_LOAD, 1 - shares["waited_share"] + (1 - stays) * cold)
    return slowdown, abs(log(slowdown)) / Z90


def _micro_batch_size(profile: Profile, machine: Machine, *, samples: int, sharing: float) -> int | None:
    """Returns the samples per pass, halved until the predicted peak leaves the headroom free.

    Returns None if not even one sample fits.
    """
    available = machine.device_memory_bytes * (1 - HEADROOM) / sharing
    micro = samples
    while profile.memory_bytes(micro) > available:
        if micro == 1:
            return None
        micro = ceil(micro / 2)
    return micro


def _passes(
    profile: Profile,
    machine: Machine,
    *,
    seen: bool,
    setting: Setting,
    samples: float,
    scale: float,
    spread: float,
    apart: float,
    storage: tuple[float, float],
) -> tuple[int, tuple[Part, ...]]:
    """Returns the number of loaders, and the parts of an update before the gradients are summed."""
    num_passes = setting.num_passes
    line = profile.step_s
    fixed = Part(
        seconds=num_passes * line.fixed,
        spread=hypot(spread, _relative(line.fixed_error, line.fixed)),
    )
    grows = Part(
        seconds=samples * line.per_sample * scale,
        spread=hypot(spread + apart, _relative(line.per_sample_error, line.per_sample)),
    )
    load = Part(
        seconds=storage[0] * (num_passes * profile.load_s.fixed + samples * profile.load_s.per_sample),
        spread=spread + storage[1],
    )
    # Where the CPU is the device, loaders would take the step's own cores; on the measured machine the
    # measured lines already include what loaders save.
    spare = machine.vcpus // machine.num_devices - 1 if machine.num_devices and not seen else 0
    step_s = fixed.seconds + grows.seconds
    num_loaders = min(spare, ceil(load.seconds / step_s) if step_s else 1)
    if num_loaders < 1 or load.seconds < 0.05 * step_s:  # too short to be worth a process
        return 0, (load, fixed, grows)
    loading = Part(seconds=load.seconds / num_loaders, spread=load.spread)
    return num_loaders, (loading,) if loading.seconds > step_s else (fixed, grows)


def _relative(error: float, value: float) -> float:
    """Returns the spread of a value whose 90 % interval has this half-width; 0 where there is no value."""
    return log(1 + error / value) / Z90 if value > 0 else 0.0


def _summing(
    profile: Profile, machine: Machine, setting: Setting, *, compute_s: float, known: Calibration | None
) -> Part:
    """Returns what summing gradients adds to the last pass, by what networks showed beside their rates."""
    found = (known or nothing()).prior
    num_machines, doubles = len(setting.workers), log(setting.num_workers / 2)
    kind = "one" if num_machines == 1 else "two" if num_machines == 2 else "many"
    relative = kind != "many"
    slower = found.mean_of("many") + relative * found.mean_of(kind) + found.mean_of(f"{kind}_power") * doubles
    spread = hypot(
        found.spread_of("many"), relative * found.spread_of(kind), found.spread_of(f"{kind}_power") * doubles
    )
    seconds = _sync_s(profile, machine, num_machines=num_machines) * exp(slower)
    power = 1 + exp(found.mean_of("overlap"))
    longer = max(compute_s, seconds)
    together = longer * ((compute_s / longer) ** power + (seconds / longer) ** power) ** (1 / power)
    return Part(name="all-reduce", seconds=together - compute_s, spread=spread)


def _sync_s(profile: Profile, machine: Machine, *, num_machines: int) -> float:
    """Returns the seconds in which two workers sum gradients, by the rate of their link or network."""
    across = num_machines > 1
    rates = machine.network_bytes_per_s, machine.link_bytes_per_s  # 0: there is no such link
    rate = (rates[0] or rates[1]) if across else (rates[1] or rates[0])
    message_s = LATENCY_S if across else LATENCY_S / 5
    return profile.sync_bytes.fixed / rate + 2 * message_s
