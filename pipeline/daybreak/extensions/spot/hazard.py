"""Estimates the hazard of tonight's spot machines, from earlier nights or the prior, and when to save.

Until nights have seen `ENOUGH` preemptions, machines count as memoryless, with a mean that begins at that of
2019 (`machines/losses.py`) as if `PRIOR_LOSSES` had been seen. From then on the families of `survival` are
fitted, and the one that best predicts machines that were held out is chosen (`lifetimes`), with censoring.

If that hazard depends on age, the times between checkpoints come from the dynamic program (`intervals`).
Otherwise, and if saves are so cheap that they would be closer than the program's grid, they come from Young's
formula with the mean time to a loss of machines that are used for a time T at most: E[min(L, T)] / P(L < T).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from daybreak.contract.units import HOUR_S
from daybreak.extensions.spot.survival import GRID, Exponential, Lifetime
from daybreak.machines.losses import MEAN_TIME_TO_PREEMPTION_S, checkpoint_interval_s
from daybreak.storage.ledger import Entry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

ENOUGH = 20  # preemptions: four for each fold that is held out
PRIOR_LOSSES = 3.0
SHORTEST_S, LONGEST_S = 60.0, 1000 * HOUR_S


@dataclass(frozen=True, kw_only=True)
class FirstLoss:
    """The time until the first of several machines is lost."""

    one: Lifetime
    number: int

    @property
    def name(self) -> str:
        """See `Lifetime`."""
        return self.one.name

    def cumulative(self, age_s: "Floats") -> "Floats":
        """See `Lifetime`."""
        return self.number * self.one.cumulative(age_s)

    def hazard_per_s(self, age_s: "Floats") -> "Floats":
        """See `Lifetime`."""
        return self.number * self.one.hazard_per_s(age_s)


@dataclass(frozen=True, kw_only=True)
class Hazard:
    """The lifetime of a spot machine, and what the estimate is based on."""

    lifetime: Lifetime
    says: str
    _means: dict[int, tuple["Floats", "Floats"]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def memoryless(self) -> bool:
        """Returns whether the hazard is the same at any age."""
        return isinstance(self.lifetime, Exponential)

    def mean_time_to_loss_s(self, *, num_machines: int, within_s: float) -> float:
        """Returns the mean seconds of use per loss of one of the machines, in jobs of `within_s` at most."""
        if isinstance(self.lifetime, Exponential):
            return self.lifetime.mean_s / num_machines
        import numpy as np

        if num_machines not in self._means:
            ages = np.append(0.0, np.geomspace(SHORTEST_S, LONGEST_S, GRID))
            left = np.exp(-num_machines * self.lifetime.cumulative(ages))
            lived = np.append(0.0, np.cumsum((left[1:] + left[:-1]) / 2 * np.diff(ages)))
            self._means[num_machines] = ages[1:], (lived / np.maximum(1 - left, 1e-12))[1:]
        return float(np.interp(within_s, *self._means[num_machines]))


PRIOR = Hazard(
    lifetime=Exponential(mean_s=MEAN_TIME_TO_PREEMPTION_S), says="the prior of 1,442 machines of 2019"
)


@dataclass(frozen=True, kw_only=True)
class Saves:
    """Seconds of work between checkpoints from a machine's start on, the last one repeated, and why."""

    intervals_s: tuple[float, ...]
    says: str


def learned(observed: Sequence[tuple[float, bool]]) -> Hazard:
    """Returns the hazard learned from observed lifetimes: seconds, and whether a preemption ended each."""
    lost = sum(preempted for _, preempted in observed)
    if not observed:
        return PRIOR
    if lost < ENOUGH:
        lived_s = sum(seconds for seconds, _ in observed) + PRIOR_LOSSES * MEAN_TIME_TO_PREEMPTION_S
        says = f"{lost} preemption{'s' if lost != 1 else ''} of {len(observed)} seen, with {PRIOR.says}"
        return Hazard(lifetime=Exponential(mean_s=lived_s / (lost + PRIOR_LOSSES)), says=says)
    import numpy as np

    from daybreak.extensions.spot.lifetimes import Observed, choose

    lifetimes = Observed(
        lived_s=np.array([max(seconds, 1.0) for seconds, _ in observed]),
        preempted=np.array([preempted for _, preempted in observed]),
    )
    return Hazard(
        lifetime=choose(lifetimes).best,
        says=f"{lost} preemptions of {len(observed)} seen, which it predicts best when held out",
    )


def hazard_of(entries: Sequence[Entry]) -> Hazard:
    """Returns the hazard learned from the nights of the ledger."""
    return learned(spot_lives(entries))


def spot_lives(entries: Sequence[Entry]) -> list[tuple[float, bool]]:
    """Returns the lifetimes of spot machines and whether each was preempted.

    Of several machines together one was preempted, and the others had lived as long.
    """
    lives: list[tuple[float, bool]] = []
    for entry in entries:
        training = entry.training
        if training is None:
            continue
        numbers = [one.rental.num_machines for one in training.attempts if one.ran_at and one.rental.is_spot]
        if len(numbers) != len(training.spot_lives):  # of some it is not known where they began
            numbers = [entry.plan.rental.num_machines if entry.plan else 1] * len(training.spot_lives)
        for number, (seconds, preempted) in zip(numbers, training.spot_lives, strict=True):
            lives += [(seconds, preempted), *[(seconds, False)] * (number - 1)]
    return lives


def saves(hazard: Hazard, *, num_machines: int, work_s: float, save_s: float, restart_s: float) -> Saves:
    """Returns when a job on spot saves."""
    from daybreak.extensions.spot.intervals import LEAST_STEP_S, NUM_STEPS, schedule

    mean_s = hazard.mean_time_to_loss_s(num_machines=num_machines, within_s=work_s)
    every_s = checkpoint_interval_s(save_s=save_s, mean_time_to_preemption_s=mean_s)
    hours = f"one preemption in {mean_s / HOUR_S:.3g} h"
    reason = f"machines live as the {hazard.lifetime.name} curve says, {hours}, by {hazard.says}"
    if hazard.memoryless:
        return Saves(intervals_s=(every_s,), says=f"{reason}: saves by Young/Daly")
    if every_s < max(LEAST_STEP_S, work_s / NUM_STEPS):
        return Saves(intervals_s=(every_s,), says=f"{reason}: saves by Young/Daly, too cheap for a program")
    lifetime = FirstLoss(one=hazard.lifetime, number=num_machines)
    program = schedule(lifetime, work_s=work_s, save_s=save_s, restart_s=restart_s)
    return Saves(
        intervals_s=program.intervals_s, says=f"{reason}: saves by the dynamic program on its hazard"
    )
