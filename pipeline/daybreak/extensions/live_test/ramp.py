"""Decides what share of the users may meet the challenger: a step up at a time, none once something is wrong.

    step            shares of `live_test.ramp`, one after the other: 1, 5, 25, 50 %
    moves on        when so many users met the challenger at this share, and so many hours went by, that what
                    is wrong would have shown; never more than one step at a look
    stops at once   when a guardrail is broken: the share is 0, and the champion stays
    is done         when the last share was held as long; before that nothing is promoted

Also how much can be learned by the end of the night, before the first user comes. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How a ramp is climbed."""

    shares: tuple[float, ...]  # increasing
    units: int  # that meet the challenger at a share, before the next one
    hours: float  # at a share, before the next one


@dataclass(frozen=True, kw_only=True)
class RampStep:
    """What to do with the share now."""

    action: Literal["hold", "raise", "stop", "done"]
    share: float  # to have from now on
    reason: str


def step(pace: Pace, *, share: float, units: int, hours: float, broken: Sequence[str] = ()) -> RampStep:
    """Returns the next step of a ramp.

    Args:
        pace: how it is climbed.
        share: that the challenger has now; 0 before the first user.
        units: that met the challenger at this share.
        hours: that it has had this share.
        broken: what is wrong, in words.
    """
    if broken:
        return RampStep(action="stop", share=0.0, reason="; ".join(broken))
    if share <= 0:
        return RampStep(action="raise", share=pace.shares[0], reason=f"begin at {pace.shares[0]:.0%}")
    if units < pace.units:
        reason = f"{units:,} of {pace.units:,} users have met the challenger at {share:.0%}"
        return RampStep(action="hold", share=share, reason=reason)
    if hours < pace.hours:
        reason = f"{hours:.1f} of {pace.hours:g} hours at {share:.0%} are over"
        return RampStep(action="hold", share=share, reason=reason)
    higher = [one for one in pace.shares if one > share]
    if not higher:
        return RampStep(action="done", share=share, reason=f"{share:.0%} were held")
    return RampStep(
        action="raise", share=higher[0], reason=f"{share:.0%} were held, go on to {higher[0]:.0%}"
    )


def clock_by(pace: Pace, *, units_per_hour: float, hours: float) -> float:
    """Returns how much is left to chance by then: the sum of p (1 - p) over the users to come (`unpaired`).

    Each share is held as long as it has to be, the last one to the end.

    >>> clock_by(Pace(shares=(0.1, 0.5), units=10, hours=1), units_per_hour=100, hours=3)
    59.0
    """
    total, left = 0.0, hours
    for number, share in enumerate(pace.shares):
        last = number == len(pace.shares) - 1
        enough = pace.units < share * units_per_hour * left  # of users, before the end
        needed = max(pace.hours, pace.units / (share * units_per_hour)) if enough else left
        held = left if last else min(needed, left)
        total += units_per_hour * held * share * (1 - share)
        left -= held
    return total
