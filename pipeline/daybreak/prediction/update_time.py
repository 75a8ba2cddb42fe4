"""Predicts how long an update takes on a machine, how it is split into passes, and how certain that is.

With R workers, b = batch / R samples each in s micro-batches of m, an update takes

    T = s * (load(m) + step(m)) + S,   S = k (R/2)^p * (sync_bytes / bandwidth + latency)

(no gradient is sent in the micro-steps before the last; workers may average now and then, by the form in
step_time.py; Pollux, OSDI'21, without overlap; k and p were measured on networks, priors.json, with separate
values for one machine, two, and more). With L loaders
load and step overlap: max(load / L, step). On a device that was not measured the part of the step that
grows with the batch is scaled by the roofline (Sia, SOSP'23): by FLOP/s at one extreme, by bandwidth at the
other, expected at their geometric mean, the ratio of R = sqrt(FLOP/s * bytes/s) here and there. The part
that does not grow is host and device one after the other: launches, which a faster GPU does not shorten, and
kernels, which it does. Both take as long on a GPU of R = even (priors.json), so between GPUs it is scaled by
(1 + even / R there) / (1 + even / R here). From a CPU to a GPU it stays, and is less certain than between
GPUs. Loading waits for no storage for the share of the arrays that stay in memory once they were laid out,
and for the rest as long as the profile measured with nothing in memory, by the rates of both disks. Earlier
nights correct the result (calibration.py) and reduce its uncertainty.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, hypot, log, sqrt
from typing import TYPE_CHECKING

from daybreak.contract.machine import Machine, Speeds
from daybreak.contract.record_parts import EVERY_UPDATE, Sync
from daybreak.contract.record_types import Profile
from daybreak.machines.catalog import HEADROOM, PAGE_CACHE
from daybreak.machines.data_sheets import sheet
from daybreak.machines.startup import Z90, StartupPart
from daybreak.prediction.calibration import CostCalibration, Update, nothing
from daybreak.prediction.measurements import StepSetting
from daybreak.prediction.priors import Roofline, priors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LEAST_LOAD = 0.05  # share of a load that stays where it waits for no storage
COPIES = 4  # of the weights, held by a worker between averages: last average, momentum, message
FORWARD = 1 / 3  # of a step: its forward pass, as a backward pass is two of them
HARDLY = 0.05  # share of a step that a loader has to save
LATENCY_S = 50e-6  # of one message between machines; a fifth of that within one
PARTS = ("training", "training", "training", "all-reduce")  # loading, what is fixed, what grows, and the sum


@dataclass(frozen=True, kw_only=True)
class TimedUpdate:
    """How an update is split into passes on a machine, and the parts of its time."""

    setting: StepSetting
    num_loaders: int
    parts: tuple[StartupPart, ...]

    @property
    def seconds(self) -> float:
        """Median of the time, in seconds."""
        return sum(part.seconds for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class Updates:
    """Updates on one kind of machine in several settings; a part that a setting lacks takes 0 seconds."""

    settings: Sequence[StepSetting]
    num_loaders: "NDArray[np.int_]"  # [settings]
    seconds: "Array"  # medians, [parts, settings], the parts in the order of `PARTS`
    spread: "Array"  # of their logarithms, likewise

    def beside(self, other: "Updates") -> "Updates":
        """Returns these and others on the same kind of machine."""
        import numpy as np

        return Updates(
            settings=[*self.settings, *other.settings],
            num_loaders=np.concatenate([self.num_loaders, other.num_loaders]),
            seconds=np.hstack([self.seconds, other.seconds]),
            spread=np.hstack([self.spread, other.spread]),
        )

    def of(self, place: int) -> TimedUpdate:
        """Returns the update in one of the settings."""
        return TimedUpdate(
            setting=self.settings[place],
            num_loaders=int(self.num_loaders[place]),
            parts=tuple(
                StartupPart(name=name, seconds=float(seconds), spread=float(spread))
                for name, seconds, spread in zip(
                    PARTS, self.seconds[:, place], self.spread[:, place], strict=True
                )
                if seconds
            ),
        )


def update(
    profile: Profile,
    machine: Machine,
    *,
    measured: Machine,
    num_machines: int,
    batch_size: int,
    num_workers: int,
    num_bytes: int = 0,
    known: CostCalibration | None = None,
    sync: Sync = EVERY_UPDATE,
) -> TimedUpdate | None:
    """Returns one update on a machine; None if not even one sample fits the memory.

    `num_bytes` is the size of the arrays, `sync` when workers agree.
    """
    timed = updates(
        profile,
        machine,
        measured=measured,
        counts=(num_machines,),
        batch_sizes=(batch_size,),
        num_workers=num_workers,
        num_bytes=num_bytes,
        known=known,
        syncs=(sync,),
    )
    return timed.of(0) if timed else None


def updates(
    profile: Profile,
    machine: Machine,
    *,
    measured: Machine,
    counts: Sequence[int],
    batch_sizes: Sequence[int],
    num_workers: int,
    num_bytes: int = 0,
    known: CostCalibration | None = None,
    syncs: Sequence[Sync] = (),
) -> Updates | None:
    """Returns one update on each number of machines; None if not even one sample fits the memory.

    `batch_sizes` has one for each number. `syncs` says for each when its workers agree; none: at every
    update.
    """
    import numpy as np

    sharing = max(1.0, num_workers / machine.num_workers)  # processes on one device
    settings, shares = [], []
    agreeing = syncs or (EVERY_UPDATE,) * len(counts)
    for count, batch_size, sync in zip(counts, batch_sizes, agreeing, strict=True):
        samples = ceil(batch_size / (num_workers * count))
        held = held_bytes(profile, sync)
        micro = _micro_batch_size(profile, machine, samples=samples, sharing=sharing, held_bytes=held)
        if micro is None:
            return None
        shares.append(samples)
        settings.append(
            StepSetting(
                workers=(num_workers,) * count,
                micro_batch_size=micro,
                num_passes=ceil(samples / micro),
                sync=sync,
            )
        )
    return _timed(
        profile,
        machine,
        measured=measured,
        settings=settings,
        samples=np.array(shares, float),
        sharing=sharing,
        num_bytes=num_bytes,
        known=known,
    )


def by_profile(
    profile: Profile,
    machine: Machine,
    *,
    measured: Machine,
    sharing: float = 1.0,
    roofline: Roofline | None = None,
) -> Update:
    """Returns an update on a machine by profile and roofline, `sharing` processes on one device.

    `roofline` says how the fixed part scales; None: as the priors of nights do.
    """
    roofline = roofline or priors().roofline
    scale, _ = _scale(machine, measured=measured, sharing=sharing)
    line = profile.step_s
    is_fitted = machine is measured or _are_gpus(machine, measured)
    return Update(
        fixed_s=line.fixed * _fixed_scale(machine, measured=measured, roofline=roofline),
        per_sample_s=line.per_sample * scale,
        within_s=_sync_s(profile, machine, num_machines=1),
        across_s=_sync_s(profile, machine, num_machines=2),
        fixed_error=hypot(_relative(line.fixed_error, line.fixed), 0.0 if is_fitted else roofline.cpu_fixed),
        per_sample_error=_relative(line.per_sample_error, line.per_sample),
    )


def at(
    profile: Profile,
    machine: Machine,
    *,
    measured: Machine,
    setting: StepSetting,
    known: CostCalibration | None = None,
) -> TimedUpdate:
    """Returns one update in a setting, whether or not it fits the memory."""
    import numpy as np

    samples = np.array([setting.micro_batch_size * setting.num_passes])
    return _timed(
        profile,
        machine,
        measured=measured,
        settings=[setting],
        samples=samples,
        sharing=1.0,
        num_bytes=0,
        known=known,
    ).of(0)


def _timed(
    profile: Profile,
    machine: Machine,
    *,
    measured: Machine,
    settings: Sequence[StepSetting],
    samples: "Array",
    sharing: float,
    num_bytes: int,
    known: CostCalibration | None,
) -> Updates:
    """Returns updates in some settings; `samples` are those of a worker, whose last pass may have fewer."""
    import numpy as np

    seen = machine is measured
    roofline = (known or nothing()).prior.roofline
    scale, apart = _scale(machine, measured=measured, sharing=sharing)
    assumed = priors().assumed
    doubt: float | Array = assumed.repeated if seen else assumed.unseen
    late: float | Array = 1.0
    corrected = False
    if known and known.past:
        plain = by_profile(profile, machine, measured=measured, sharing=sharing, roofline=roofline)
        corrections = known.corrections(machine.name, machine.device, settings, plain, here=seen)
        corrected = not seen or corrections[0].num_nights > 0
        if corrected:
            late = np.exp([each.shift for each in corrections])
            doubt = np.array([each.spread for each in corrections])
            # Priors know how rooflines fail between GPUs; how far off one from a CPU is, a night there tells.
            apart = 0.0 if any(each.device == machine.device for each in known.past) else apart
    passes = np.array([each.num_passes for each in settings], float)
    num_loaders, seconds, spread = _passes(
        profile,
        machine,
        seen=seen,
        passes=passes,
        samples=samples,
        again=np.ones(len(settings)) if corrected else _again(profile, settings),
        fixed_scale=_fixed_scale(machine, measured=measured, roofline=roofline),
        scale=scale,
        doubt=doubt,
        apart=apart,
        storage=_storage(profile, machine, measured=measured, num_bytes=num_bytes),
    )
    summed = _summing(profile, machine, settings, compute_s=seconds.sum(axis=0) / passes, known=known)
    seconds, spread = np.vstack([seconds, summed[0]]), np.vstack([spread, summed[1]])
    if corrected:  # the whole update was measured or is like those, so its parts are as certain
        seconds, spread = seconds * late, np.tile(doubt, (len(seconds), 1))
        spread[2] = np.hypot(doubt, apart)
    return Updates(settings=settings, num_loaders=num_loaders, seconds=seconds, spread=spread)


def _scale(machine: Machine, *, measured: Machine, sharing: float) -> tuple[float, float]:
    """Returns the slowdown of the part that grows with the batch, and the spread of its two extremes."""
    if machine is measured:
        return sharing, 0.0
    here, there = _on_sheet(measured), machine.speeds
    by_flops = here.flops_per_s / there.flops_per_s
    by_bandwidth = here.bandwidth_bytes_per_s / there.bandwidth_bytes_per_s
    return sharing * sqrt(by_flops * by_bandwidth), abs(log(by_flops / by_bandwidth)) / 2 / Z90


def _fixed_scale(machine: Machine, *, measured: Machine, roofline: Roofline) -> float:
    """Returns the slowdown of the fixed part of a pass; 1 from a CPU or to one."""
    if machine is measured or not _are_gpus(machine, measured):
        return 1.0
    there, here = (
        1 + roofline.even / sqrt(each.flops_per_s * each.bandwidth_bytes_per_s)
        for each in (machine.speeds, _on_sheet(measured))
    )
    return there / here


def _on_sheet(measured: Machine) -> Speeds:
    """Returns the rates of the machine at hand as data sheets state those of others, if its GPU has one.

    As measured it would seem slower than the same machine rented.
    """
    return (sheet(measured.device) if _are_gpus(measured) else None) or measured.speeds


def _are_gpus(*machines: Machine) -> bool:
    return all(each.num_devices and not each.is_tpu for each in machines)


def _storage(profile: Profile, machine: Machine, *, measured: Machine, num_bytes: int) -> tuple[float, float]:
    """Returns the slowdown of loading by the machine's storage, and a spread that reaches back to none."""
    shares = profile.evidence.get("storage", {})
    if machine is measured or not shares:
        return 1.0, 0.0
    rates = measured.speeds.storage_bytes_per_s, machine.speeds.storage_bytes_per_s
    cold = shares["cold_share"] * (rates[0] / rates[1] if all(rates) else 1.0)
    stays = min(1.0, PAGE_CACHE * machine.memory_bytes / num_bytes) if num_bytes else 1.0
    slowdown = max(LEAST_LOAD, 1 - shares["waited_share"] + (1 - stays) * cold)
    return slowdown, abs(log(slowdown)) / Z90


def _micro_batch_size(
    profile: Profile, machine: Machine, *, samples: int, sharing: float, held_bytes: float
) -> int | None:
    """Returns the samples per pass, halved until the predicted peak leaves the headroom free.

    `held_bytes` are held besides. Returns None if not even one sample fits, or an undivided batch.
    """
    available = machine.device_memory_bytes * (1 - HEADROOM) / sharing - held_bytes
    micro = samples
    while profile.memory_bytes(micro) > available:
        if micro == 1 or profile.is_estimator or profile.is_undivided:
            return None
        micro = ceil(micro / 2)
    return micro


def held_bytes(profile: Profile, sync: Sync) -> float:
    """Returns the bytes that a worker holds beside its passes: copies of the weights, between averages."""
    return COPIES * profile.sync_bytes.fixed if sync.every > 1 else 0.0


def largest_pass(profile: Profile, machine: Machine, *, most: int) -> int:
    """Returns the samples, `most` at most, of the largest pass that leaves the headroom free; at least 1."""
    line, available = profile.memory_bytes, machine.device_memory_bytes * (1 - HEADROOM)
    if line(most) <= available or line.per_sample <= 0:
        return most
    return max(1, min(most, int((available - line.fixed) / line.per_sample) + 1))


def _again(profile: Profile, settings: Sequence[StepSetting]) -> "Array":
    """Returns the factor of the steps that also encode the parts of a batch for its loss, before they learn.

    Nights on such settings have measured it.
    """
    import numpy as np

    divided = [each.num_passes > 1 or each.num_workers > 1 for each in settings]
    return np.where(np.array(divided) & profile.is_encoded, 1 + FORWARD, 1.0)


def _passes(
    profile: Profile,
    machine: Machine,
    *,
    seen: bool,
    passes: "Array",
    samples: "Array",
    again: "Array",
    fixed_scale: float,
    scale: float,
    doubt: "float | Array",
    apart: float,
    storage: tuple[float, float],
) -> "tuple[NDArray[np.int_], Array, Array]":
    """Returns the numbers of loaders, and the first three parts of updates: seconds and spreads."""
    import numpy as np

    line = profile.step_s
    fixed_s, grows_s = again * passes * line.fixed * fixed_scale, again * samples * line.per_sample * scale
    load_s = storage[0] * (passes * profile.load_s.fixed + samples * profile.load_s.per_sample)
    # Where the CPU is the device, loaders would take the step's own cores; on the measured machine the
    # measured lines already include what loaders save.
    spare = machine.vcpus // machine.num_devices - 1 if machine.num_devices and not seen else 0
    step_s = fixed_s + grows_s
    wanted = np.ceil(np.divide(load_s, step_s, out=np.ones_like(load_s), where=step_s > 0))
    num_loaders = np.minimum(spare, wanted)
    # One that would do little is not worth a process.
    num_loaders = np.where((num_loaders < 1) | (load_s < HARDLY * step_s), 0, num_loaders)
    loading_s = load_s / np.maximum(1, num_loaders)
    beside = num_loaders > 0  # loading and steps overlap, and the longer of the two counts
    loads = ~beside | (loading_s > step_s)
    steps = ~(beside & loads)
    # The error of the whole line at this size: on a busy machine, the error of a small part of the line alone
    # can be a thousand times that part.
    error_s = np.hypot(passes * line.fixed_error, samples * line.per_sample_error * scale)
    relative = np.log1p(np.divide(error_s, step_s, out=np.zeros_like(step_s), where=step_s > 0)) / Z90
    spreads = (doubt + storage[1], np.hypot(doubt, relative), np.hypot(doubt + apart, relative))
    return (
        num_loaders.astype(int),
        np.array([loading_s * loads, fixed_s * steps, grows_s * steps]),
        np.array([np.broadcast_to(each, passes.shape) for each in spreads]),
    )


def _relative(error: float, value: float) -> float:
    """Returns the spread of a value whose 90 % interval has this half-width; 0 where there is no value."""
    return log(1 + error / value) / Z90 if value > 0 else 0.0


def _summing(
    profile: Profile,
    machine: Machine,
    settings: Sequence[StepSetting],
    *,
    compute_s: "Array",
    known: CostCalibration | None,
) -> "tuple[Array, Array]":
    """Returns the seconds that summing gradients adds to the last pass, and their spread, for each setting.

    Networks are taken at their rates, corrected by what earlier nights measured. Both are 0 for one worker.
    """
    import numpy as np

    from daybreak.prediction.step_time import BESIDE

    workers = np.array([each.num_workers for each in settings])
    several = workers > 1
    if not several.any():
        return np.zeros(len(settings)), np.zeros(len(settings))
    prior = (known or nothing()).prior
    across = np.array([len(each.workers) for each in settings])
    kind, doubles = np.minimum(across, 3) - 1, np.log(np.maximum(workers, 2) / 2)
    names = ("one", "two", "many")
    base = [prior.mean_of("many") + (name != "many") * prior.mean_of(name) for name in names]
    doubt = [hypot(prior.spread_of("many"), (name != "many") * prior.spread_of(name)) for name in names]
    power, power_doubt = (
        np.array([each(f"{name}_power") for name in names])[kind] for each in (prior.mean_of, prior.spread_of)
    )
    plain_s = np.array([_sync_s(profile, machine, num_machines=number) for number in (1, 2, 3)])[kind]
    sync_s = plain_s * np.exp(np.array(base)[kind] + power * doubles) * [each.sent for each in settings]
    spread = np.hypot(np.array(doubt)[kind], power_doubt * doubles)
    late = np.array([each.sync.is_late for each in settings])
    apart = np.array([each.sync.every > 1 for each in settings])
    overlap = np.where(apart, np.where(late, BESIDE, 1.0), 1 + np.exp(prior.mean_of("overlap")))
    beside_s = compute_s * np.where(late, [each.num_passes for each in settings], 1)
    longer = np.maximum(beside_s, sync_s)
    together = longer * ((beside_s / longer) ** overlap + (sync_s / longer) ** overlap) ** (1 / overlap)
    return (together - beside_s) * several, spread * several


def _sync_s(profile: Profile, machine: Machine, *, num_machines: int) -> float:
    """Returns the seconds in which two workers sum gradients, by the rate of their link or network."""
    across = num_machines > 1
    rates = machine.speeds.network_bytes_per_s, machine.speeds.link_bytes_per_s  # 0: there is no such link
    rate = (rates[0] or rates[1]) if across else (rates[1] or rates[0])
    message_s = LATENCY_S if across else LATENCY_S / 5
    return profile.sync_bytes.fixed / rate + 2 * message_s
