"""Predicts how long a job takes on a machine, and what it costs: `predict`, which all plans are made of.

The time is that of waiting for the machine, starting it and fetching the data (startup.py), then of all
updates (update_time.py), plus what saving and preemptions add to them (spot/preemptions.py). A machine is
billed once it is there, so the queue for it is not.

A time is a sum of parts, each lognormal with its median and its spread (standard deviation of the
logarithm). Parts are assumed to be late together, which is on the safe side: a quantile of the sum is the sum
of the quantiles.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, exp
from statistics import NormalDist

from pipeline.contract.machine import Machine
from pipeline.contract.records import Profile, Rental
from pipeline.contract.units import HOUR_S
from pipeline.machines.startup import DATA, QUEUE, START, Part, wait
from pipeline.prediction.calibration import Calibration
from pipeline.prediction.update_time import update
from pipeline.spot.preemptions import (
    checkpoint_interval_s,
    loss,
    mean_time_to_loss_s,
)

__all__ = ["Estimate", "Part", "predict"]

NORMAL = NormalDist()
SAVE_BYTES_PER_S = 200e6
SAVE_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One way to run the job, its time and its price."""

    machine: Machine
    rental: Rental  # of that machine, in its region
    batch_size: int
    micro_batch_size: int
    num_loaders: int
    checkpoint_every_s: float
    parts: tuple[Part, ...]
    deviation_s: float  # standard deviation of the time that preemptions add
    widened: float = 1.0  # multiple of the plain interval (scorecard.py)

    @property
    def expected_s(self) -> float:
        """Median of the time."""
        return sum(part.seconds for part in self.parts)

    @property
    def expected_usd(self) -> float:
        """Cost of the billed part of `expected_s`, in dollars."""
        return self.usd(self.parts)

    @property
    def interval(self) -> tuple[float, float]:
        """90 % interval of the time, in seconds."""
        return self.time_s(0.05), self.time_s(0.95)

    def usd(self, parts: Iterable[Part]) -> float:
        """Returns the dollars for some of the parts on all machines; the queue costs nothing."""
        billed_s = sum(part.seconds for part in parts if part.name != QUEUE)
        return (
            billed_s / HOUR_S * self.rental.num_machines * (self.machine.price(self.rental.strategy) or 0.0)
        )

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
    known: Calibration | None = None,
) -> Estimate | None:
    """Returns time and cost of training on `num_samples`, with intervals; docs/prediction.md has the formula.

    None if not even one sample fits the memory.
    `measured` is the machine that the profile was measured on, `num_workers` the training processes per
    machine, `num_bytes` the size of the arrays, `known` what earlier nights taught.
    """
    timed = update(
        profile, machine, measured=measured, num_machines=rental.num_machines, batch_size=batch_size,
        num_workers=num_workers, num_bytes=num_bytes, known=known,
    )  # fmt: skip
    if timed is None:
        return None
    num_updates = ceil(num_samples / batch_size)
    work = [part.times(num_updates) for part in timed.parts]
    before = wait(
        machine, num_bytes=num_bytes, num_machines=rental.num_machines,
        ratios=known.starts.get(machine.name, ()) if known else (),
    )  # fmt: skip
    work_s, save_s = sum(part.seconds for part in work), time_to_save_s(profile)
    between_s = mean_time_to_loss_s(rental)
    if rental.is_spot and known and known.hazard:
        between_s = known.hazard.mean_time_to_loss_s(num_machines=rental.num_machines, within_s=work_s)
    every_s = checkpoint_interval_s(save_s=save_s, mean_time_to_preemption_s=between_s)
    lost = loss(
        work_s=work_s,
        save_s=save_s,
        every_s=every_s,
        restart_s=before.restart_s,
        mean_time_to_preemption_s=between_s,
    )
    parts = (
        Part(name=QUEUE, seconds=before.queue_s, spread=before.queue_spread),
        Part(name=START, seconds=before.start_s, spread=before.spread),
        Part(name=DATA, seconds=before.pull_s, spread=before.spread),
        *(part.times(1 + lost.share) for part in work),
    )
    spread = sum(p.seconds * p.spread for p in parts) / sum(part.seconds for part in parts)
    widened = known.widened(spread) if known else 1.0
    return Estimate(
        machine=machine,
        rental=rental,
        batch_size=batch_size,
        micro_batch_size=ceil(timed.setting.micro_batch_size),
        num_loaders=timed.num_loaders,
        checkpoint_every_s=every_s,
        parts=tuple(
            Part(seconds=p.seconds, spread=p.spread * widened, name=p.name) for p in parts if p.seconds
        ),
        deviation_s=lost.deviation_s * widened if rental.is_spot else 0.0,
        widened=widened,
    )


def time_to_save_s(profile: Profile) -> float:
    """Returns the seconds to save a checkpoint: weights and two moments."""
    return SAVE_S + 3 * profile.sync_bytes.fixed / SAVE_BYTES_PER_S
