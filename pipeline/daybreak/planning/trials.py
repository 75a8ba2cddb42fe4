"""Finds the ways that may be late and still can be tried, since another way could finish the night.

A way that is in time more likely than not, but not with the chance that a plan needs, may be tried if a
rescue, a second way that resumes from the same checkpoints, could do all the work in time once the launcher
knows the speed of the first (`LOOK_S`). The launcher changes to the rescue as late as possible
(jobs/escalation.py). The cost of a late night is that of the look at the first way plus the whole work on the
rescue, as if nothing had been done before.

The time R of the rescue is taken at the chance that a plan needs, given that the first way is late at the
same chance. For any correlation r of the two, R is then late by r + sqrt(1 - r^2) times its own margin, so by
at most sqrt(2) times the margin.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from typing import Generic, Protocol, TypeVar

from daybreak.spot.steering import TICK_S

CERTAIN = 0.95  # chance that exploring costs no more than is left for it, and no more than the budget
LOOK_S = 900.0  # of training, after which the launcher knows how fast it is
SPARE_S = 2 * TICK_S  # between the launcher's change and the last moment for it


class Weighed(Protocol):
    """A way to run the job, as the search weighs it."""

    @property
    def start_s(self) -> float:
        """Seconds of `expected_s` until it trains."""

    @property
    def expected_s(self) -> float:
        """Median of the time."""

    @property
    def expected_usd(self) -> float:
        """Dollars for that time."""

    def time_s(self, chance: float) -> float:
        """Returns the seconds within which it is done with this chance."""

    def chance(self, seconds: float) -> float:
        """Returns the probability that it is done within these seconds."""


W = TypeVar("W", bound=Weighed)
W_co = TypeVar("W_co", bound=Weighed, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Trial(Generic[W_co]):
    """A way that may be late tonight, and the one that the launcher changes to if it is."""

    way: W_co
    rescue: W_co
    deadline_s: float
    confidence: float  # the chance with which a plan is in time

    @property
    def late_usd(self) -> float:
        """Dollars of the night if the way is late, at the median of the rescue's time."""
        looked_s = self.way.start_s + LOOK_S
        return looked_s * self.way.expected_usd / self.way.expected_s + self.rescue.expected_usd

    @property
    def expected_usd(self) -> float:
        """Expected dollars of the night over both outcomes: in time, at the median time, or late."""
        chance = self.way.chance(self.deadline_s)
        in_time_usd = self.way.expected_usd * self.way.time_s(chance / 2) / self.way.expected_s
        return chance * in_time_usd + (1 - chance) * self.late_usd

    @property
    def worst_usd(self) -> float:
        """Dollars of the night at most, with a chance of `CERTAIN`."""
        in_time_usd = self.way.expected_usd * self.deadline_s / self.way.expected_s
        late_usd = self.late_usd * self.rescue.time_s(CERTAIN) / self.rescue.expected_s
        return max(in_time_usd, late_usd)


def trial_of(way: W, rescues: Iterable[W], *, deadline_s: float, confidence: float) -> Trial[W] | None:
    """Returns the trial of a way that may be late; None if it probably is, or nothing could save the night.

    `rescues` go on from its checkpoints; the first that is in time is taken.
    """
    if way.expected_s > deadline_s:
        return None
    for rescue in rescues:
        if could_save(rescue, start_s=way.start_s, deadline_s=deadline_s, confidence=confidence):
            return Trial(way=way, rescue=rescue, deadline_s=deadline_s, confidence=confidence)
    return None


def could_save(rescue: Weighed, *, start_s: float, deadline_s: float, confidence: float) -> bool:
    """Returns whether it could do all the work in time after a look at another way, from `start_s` on."""
    expected_s, most_s = rescue.expected_s - rescue.start_s, rescue.time_s(confidence) - rescue.start_s
    work_s = expected_s * (most_s / expected_s) ** sqrt(2) if expected_s > 0 else most_s
    return start_s + LOOK_S + SPARE_S + rescue.start_s + work_s <= deadline_s
