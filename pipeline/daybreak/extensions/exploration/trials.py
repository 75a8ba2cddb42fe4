"""Finds the ways that may be late and still can be tried, since another way could finish the night.

A way that is in time more likely than not, but not with the chance that a plan needs, may be tried if a
rescue, a second way that resumes from the same checkpoints, could do all the work in time once the launcher
knows the speed of the first (`LOOK_S`). The launcher changes to the rescue as late as possible
(jobs/escalation.py). The cost of a late night is that of the look at the first way plus the whole work on the
rescue, as if nothing had been done before.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from daybreak.planning.fallback import LOOK_S, Weighed, could_save

CERTAIN = 0.95  # chance that exploring costs no more than is left for it, and no more than the budget


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
