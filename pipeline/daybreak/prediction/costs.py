"""Predicts time and cost of a job on a machine: `predict`, the one function behind every plan.

The time is the sum of waiting for the machine, starting it and fetching data (startup.py), all updates
(update_time.py), and the overhead of saving and losses (machines/losses.py). A machine is billed from
its start, so the queue costs nothing. Workers that average now and then train on more samples
(local_updates.py); the uncertainty of that number is added to the time.

A time is a sum of parts, each lognormal with its median and its spread (standard deviation of the
logarithm). Parts are assumed to be late together, which is on the safe side: a quantile of the sum is the sum
of the quantiles.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, exp, hypot
from statistics import NormalDist
from typing import TYPE_CHECKING

from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import EVERY_UPDATE, Rental, Sync
from daybreak.contract.record_types import Profile
from daybreak.contract.units import HOUR_S
from daybreak.machines.losses import Loss, checkpoint_interval_s, loss, mean_time_to_loss_s
from daybreak.machines.startup import BEFORE_WORK, DATA, QUEUE, START, Z90, StartupPart, Wait, waits
from daybreak.prediction import local_updates
from daybreak.prediction.calibration import CostCalibration
from daybreak.prediction.measurements import StepSetting
from daybreak.prediction.update_time import PARTS, Updates, updates

if TYPE_CHECKING:
    from daybreak.prediction.update_time import Array

__all__ = ["Estimate", "Estimates", "StartupPart", "least_extra_s", "predict", "predict_counts"]

NORMAL = NormalDist()
NAMES = (QUEUE, START, DATA, *PARTS)
SAVE_BYTES_PER_S = 200e6
SAVE_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One way to run the job, with predicted time and cost."""

    machine: Machine
    rental: Rental  # of that machine, in its region
    batch_size: int
    micro_batch_size: int
    num_loaders: int
    checkpoint_every_s: float
    parts: tuple[StartupPart, ...]
    deviation_s: float  # standard deviation of the time that preemptions add
    widened: float = 1.0  # multiple of the plain interval (scorecard.py)
    others: tuple[tuple[Machine, int], ...] = ()  # the other kinds of the rental, and how many of each
    num_samples: int = 0  # trained on
    sync: Sync = EVERY_UPDATE

    @property
    def expected_s(self) -> float:
        """Median of the time."""
        return sum(part.seconds for part in self.parts)

    @property
    def start_s(self) -> float:
        """Seconds of `expected_s` until it trains: the queue, the start-up and the data."""
        return sum(part.seconds for part in self.parts if part.name in BEFORE_WORK)

    @property
    def expected_usd(self) -> float:
        """Cost of the billed part of `expected_s`, in dollars."""
        return self.usd(self.parts)

    @property
    def interval(self) -> tuple[float, float]:
        """90 % interval of the time, in seconds."""
        return self.time_s(0.05), self.time_s(0.95)

    def usd(self, parts: Iterable[StartupPart]) -> float:
        """Returns the dollars for some of the parts on all machines; the queue costs nothing."""
        billed_s = sum(part.seconds for part in parts if part.name != QUEUE)
        return billed_s / HOUR_S * self.rental.num_machines * (self.usd_per_hour or 0.0)

    @property
    def usd_per_hour(self) -> float | None:
        """Price of one machine, in dollars an hour; of unlike ones, the mean."""
        strategy, number = self.rental.strategy, self.rental.num_machines
        if not self.others:
            return self.machine.price(strategy)
        alike = number - sum(count for _, count in self.others)
        kinds = ((self.machine, alike), *self.others)
        return sum(count * (machine.price(strategy) or 0.0) for machine, count in kinds) / number

    @property
    def devices(self) -> frozenset[tuple[bool, str]]:
        """Kinds of device in use, as (at hand, name); a device that was measured here is one of its own."""
        return frozenset((m.is_local, m.device) for m in (self.machine, *(m for m, _ in self.others)))

    def time_s(self, chance: float) -> float:
        """Returns the seconds within which the job is done with this chance."""
        return self._at(NORMAL.inv_cdf(chance))

    def chance(self, seconds: float) -> float:
        """Returns the probability that the job is done within `seconds`; inverse of `time_s`, to 1e-6."""
        low, high = -8.0, 8.0
        while high - low > 1e-6:
            middle = (low + high) / 2
            low, high = (middle, high) if self._at(middle) <= seconds else (low, middle)
        return NORMAL.cdf(low)

    def _at(self, z: float) -> float:
        late = sum(part.seconds * exp(z * part.spread) for part in self.parts)
        # Fewer preemptions than expected cannot save more than what they were expected to cost.
        return late + max(0.0, z) * self.deviation_s


def least_extra_s(slow: Estimate, fast: Estimate) -> float:
    """Returns the seconds that one way takes more than another at least: the lower end of the 90 % interval.

    Starts and preemptions are drawn anew for each rental. All else is late together on the same devices,
    where the same profile and roofline err for both, and independent on others. Independent margins add up by
    their squares (Zou and Donner 2008). At or below 0, the forecasts cannot tell the two apart.
    """
    margins = [
        _seconds(slow, before=True) - _seconds(slow, before=True, z=-Z90),
        _seconds(fast, before=True, z=Z90) - _seconds(fast, before=True),
        Z90 * fast.deviation_s,
    ]
    work_s = _seconds(slow) - _seconds(fast)
    if slow.devices == fast.devices:
        margins.append(
            work_s - min(work_s, *(_seconds(slow, z=z) - _seconds(fast, z=z) for z in (-Z90, Z90)))
        )
    else:
        margins += [_seconds(slow) - _seconds(slow, z=-Z90), _seconds(fast, z=Z90) - _seconds(fast)]
    return slow.expected_s - fast.expected_s - hypot(*margins)


def _seconds(estimate: Estimate, *, before: bool = False, z: float = 0.0) -> float:
    """Returns the seconds of the parts before the work, or of the work, at a quantile."""
    parts = (part for part in estimate.parts if (part.name in BEFORE_WORK) == before)
    return sum(part.seconds * exp(z * part.spread) for part in parts)


@dataclass(frozen=True, kw_only=True)
class Estimates:
    """What a job takes on each number of one kind of machine, as arrays; `of` spells an estimate out.

    A number may come twice, with workers that agree at every update and now and then.
    """

    machine: Machine
    rental: Rental  # whatever the number
    batch_size: int
    counts: Sequence[int]
    timed: Updates
    every_s: Sequence[float]  # between checkpoints
    seconds: "Array"  # medians, [parts, counts], the parts in the order of `NAMES`
    spread: "Array"  # of their logarithms, likewise, widened
    deviation_s: "Array"  # [counts]
    widened: Sequence[float]
    num_samples: Sequence[int]  # trained on

    @property
    def expected_s(self) -> "Array":
        """Medians of the time."""
        total: Array = self.seconds.sum(axis=0)
        return total

    @property
    def machine_s(self) -> "Array":
        """Billed seconds times machines, which cost the same each."""
        import numpy as np

        billed: Array = self.seconds[1:].sum(axis=0) * np.array(self.counts)
        return billed

    def time_s(self, chance: float) -> "Array":
        """Returns the seconds within which the job is done with this chance, by the number of machines."""
        import numpy as np

        z = NORMAL.inv_cdf(chance)
        late: Array = (self.seconds * np.exp(z * self.spread)).sum(axis=0) + max(0.0, z) * self.deviation_s
        return late

    def of(self, places: Sequence[int]) -> list[Estimate]:
        """Returns the estimates for some of the numbers of machines, by their places."""
        seconds, spread = (each[:, places].T.tolist() for each in (self.seconds, self.spread))
        return [
            Estimate(
                machine=self.machine,
                rental=replace(self.rental, num_machines=self.counts[place]),
                batch_size=self.batch_size,
                micro_batch_size=ceil(self.timed.settings[place].micro_batch_size),
                num_loaders=int(self.timed.num_loaders[place]),
                checkpoint_every_s=self.every_s[place],
                parts=tuple(
                    StartupPart(name=name, seconds=part_s, spread=part_spread)
                    for name, part_s, part_spread in zip(NAMES, part_seconds, part_spreads, strict=True)
                    if part_s
                ),
                deviation_s=float(self.deviation_s[place]),
                widened=self.widened[place],
                num_samples=self.num_samples[place],
                sync=self.timed.settings[place].sync,
            )
            for place, part_seconds, part_spreads in zip(places, seconds, spread, strict=True)
        ]


def predict(
    profile: Profile,
    machine: Machine,
    *,
    measured: Machine,
    rental: Rental,
    batch_size: int,
    num_workers: int,
    num_samples: int,
    num_bytes: int,
    known: CostCalibration | None = None,
    sync: Sync = EVERY_UPDATE,
    noise_scale: float = float("inf"),
) -> Estimate | None:
    """Returns time and cost of training on `num_samples`, with intervals; docs/prediction.md has the formula.

    None if not even one sample fits the memory.
    `measured` is the machine that the profile was measured on, `num_workers` the training processes per
    machine, `num_bytes` the size of the arrays, `known` what earlier nights taught. `sync` says when workers
    agree. Where they do so now and then, equal progress takes more than `num_samples` by the `noise_scale`;
    at infinity none are added.
    """
    estimates = predict_counts(
        profile,
        machine,
        measured=measured,
        rentals=(rental,),
        counts=(rental.num_machines,),
        batch_size=batch_size,
        num_workers=num_workers,
        num_samples=num_samples,
        num_bytes=num_bytes,
        known=known,
        sync=sync,
        noise_scale=noise_scale,
    )
    return estimates[0].of([0])[0] if estimates else None


def predict_counts(
    profile: Profile,
    machine: Machine,
    *,
    measured: Machine,
    rentals: Sequence[Rental],
    counts: Sequence[int],
    batch_size: int,
    num_workers: int,
    num_samples: int,
    num_bytes: int,
    known: CostCalibration | None = None,
    sync: Sync | None = EVERY_UPDATE,
    noise_scale: float = float("inf"),
) -> list[Estimates]:
    """Returns what `predict` does for each way to rent a machine, in each of these numbers at once.

    It is empty if not even one sample fits the memory. The numbers in `rentals` do not matter. Without a
    `sync`, workers agree at every update, and numbers of machines that gain by averages now and then are
    there a second time with those.
    """
    timed_at = partial(
        updates,
        profile,
        machine,
        measured=measured,
        num_workers=num_workers,
        num_bytes=num_bytes,
        known=known,
    )
    whole = min(batch_size, num_samples)  # no update has more than there are
    syncs = [sync or EVERY_UPDATE] * len(counts)
    timed = timed_at(counts=counts, batch_sizes=[whole] * len(counts), syncs=syncs)
    if timed is None:
        return []
    if sync is None and not profile.tuning.sharded and not profile.tuning.sharded_weights:
        more = local_updates.worthwhile(
            timed, batch_size=batch_size, num_samples=num_samples, noise_scale=noise_scale
        )
        again, averages = [counts[place] for place, _ in more], [each for _, each in more]
        apart = timed_at(counts=again, batch_sizes=[whole] * len(again), syncs=averages) if more else None
        if apart:
            timed, counts = timed.beside(apart), [*counts, *again]
    ratios = known.starts.get(machine.name, ()) if known else ()
    before = waits(machine, num_bytes=num_bytes, counts=counts, ratios=ratios)
    return [
        _rented(
            rental,
            machine,
            timed=timed,
            before=before,
            counts=counts,
            batch_size=batch_size,
            num_samples=num_samples,
            noise_scale=noise_scale,
            save_s=time_to_save_s(profile),
            known=known,
        )
        for rental in rentals
    ]


def _rented(
    rental: Rental,
    machine: Machine,
    *,
    timed: Updates,
    before: Sequence[Wait],
    counts: Sequence[int],
    batch_size: int,
    num_samples: int,
    noise_scale: float,
    save_s: float,
    known: CostCalibration | None,
) -> Estimates:
    """Returns the estimates of machines rented one way, with what saving and losses add."""
    import numpy as np

    more = [
        local_updates.more_samples(
            noise_scale, batch_size=batch_size, num_workers=each.num_workers, sync=each.sync
        )
        for each in timed.settings
    ]
    samples = [round(num_samples * times) for times, _ in more]
    whole = min(batch_size, num_samples)  # as `timed`
    work = timed.seconds * _as_run(timed.settings, samples=samples, batch_size=whole)
    every_s, losses = _losses(
        rental, work.sum(axis=0).tolist(), before, counts=counts, save_s=save_s, known=known
    )
    first = np.array([(each.queue_s, each.start_s, each.pull_s) for each in before]).T
    first_spread = np.array([(each.queue_spread, each.spread, each.spread) for each in before]).T
    seconds = np.vstack([first, work * (1 + np.array([each.share for each in losses]))])
    spread = np.vstack([first_spread, np.hypot(timed.spread, [doubt for _, doubt in more])])
    widened = [1.0] * len(before)
    if known:
        widened = list(map(known.widened, ((seconds * spread).sum(axis=0) / seconds.sum(axis=0)).tolist()))
    deviation_s = np.array([each.deviation_s for each in losses]) * widened
    return Estimates(
        machine=machine,
        rental=rental,
        batch_size=batch_size,
        counts=counts,
        timed=timed,
        every_s=every_s,
        seconds=seconds,
        spread=spread * widened,
        deviation_s=deviation_s if rental.is_spot else np.zeros(len(before)),
        widened=widened,
        num_samples=samples,
    )


def _as_run(settings: Sequence[StepSetting], *, samples: Sequence[int], batch_size: int) -> "Array":
    """Returns by how many times an update's parts a run takes, [parts, settings].

    The last update has the samples that are left, in as many passes as they need; gradients are summed as
    after any other.
    """
    import numpy as np

    number = np.array([ceil(each / batch_size) for each in samples])
    last = np.array(samples) - (number - 1) * batch_size
    workers = np.array([each.num_workers for each in settings])
    micro = np.array([each.micro_batch_size for each in settings])
    passes = np.array([each.num_passes for each in settings])
    of_worker, of_last = np.ceil(batch_size / workers), np.ceil(last / workers)
    by_sample = number - 1 + of_last / of_worker
    by_pass = number - 1 + np.ceil(of_last / micro) / passes
    return np.array([by_sample, by_pass, by_sample, number], float)


def _losses(
    rental: Rental,
    work_s: Sequence[float],
    before: Sequence[Wait],
    *,
    counts: Sequence[int],
    save_s: float,
    known: CostCalibration | None,
) -> tuple[list[float], list[Loss]]:
    """Returns the seconds between checkpoints, and the time that losses add, by the number of machines."""
    one_s = mean_time_to_loss_s(replace(rental, num_machines=1))
    hazard = known.hazard if known and rental.is_spot else None
    every_s, losses = [], []
    for count, busy_s, start in zip(counts, work_s, before, strict=True):
        between_s = one_s / count
        if hazard:
            between_s = hazard.mean_time_to_loss_s(num_machines=count, within_s=busy_s)
        every_s.append(checkpoint_interval_s(save_s=save_s, mean_time_to_preemption_s=between_s))
        losses.append(
            loss(
                work_s=busy_s,
                save_s=save_s,
                every_s=every_s[-1],
                restart_s=start.restart_s,
                mean_time_to_preemption_s=between_s,
            )
        )
    return every_s, losses


def time_to_save_s(profile: Profile) -> float:
    """Returns the seconds to save a checkpoint: weights and two moments."""
    return SAVE_S + 3 * profile.sync_bytes.fixed / SAVE_BYTES_PER_S
