"""Plans the looks at a live test with a known end, and the bound that the effect has to exceed at each look.

Repeated looks raise the error rate. Bounds that hold at any time, without an end, cost about
twice the users of a single look. But a night's test ends when the night decides, so its alpha is spent over
`NUM_LOOKS` looks at equal distances, as the cube of the share of its hours that have gone by (Kim & DeMets
1987): little at first, nearly all at the end, which costs about a twentieth more users than a single look.

The number of users need not be known beforehand (Lan & DeMets 1989). The alpha spent by a look follows from
the hours alone, and the bound from the information of each look so far (T of
daybreak/statistics/unpaired.py). Between two looks the effect is not computed. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from daybreak.statistics.sequential import group_bounds, spend

NUM_LOOKS = 24
POWER_OF_HOURS = 3.0
LEAST_GROWTH = 1e-3  # of what is known; below, a look is left out


@dataclass(frozen=True, kw_only=True)
class Look:
    """A look at the effect."""

    time: float  # seconds since 1970: users whose window was over by then count
    bound: float  # of z, which the effect has to exceed


@dataclass(frozen=True, kw_only=True)
class Looks:
    """The looks at a test that begins and ends at known times, in seconds since 1970."""

    began: float
    ends: float

    def newest(self, ready: ArrayLike, weight: ArrayLike, *, now: float, alpha: float) -> Look | None:
        """Returns the newest look that is due; None before the first that knows anything.

        Args:
            ready: when the window of each user is over, shape [n].
            weight: p (1 - p) of each, with p the chance to meet the challenger, shape [n].
            now: seconds since 1970.
            alpha: chance that one end of the interval is ever wrong.
        """
        order = np.argsort(np.asarray(ready, dtype=np.float64), kind="stable")
        over = np.asarray(ready, dtype=np.float64)[order]
        known = np.concatenate([[0.0], np.cumsum(np.asarray(weight, dtype=np.float64)[order])])
        hours = np.arange(1, NUM_LOOKS + 1) / NUM_LOOKS
        times: list[float] = []
        clocks: list[float] = []
        shares: list[float] = []
        for share, time in zip(hours.tolist(), (self.began + hours * (self.ends - self.began)), strict=True):
            clock = float(known[np.searchsorted(over, time, side="right")])
            if time <= now and clock > (1 + LEAST_GROWTH) * (clocks[-1] if clocks else 0.0):
                times, clocks, shares = [*times, float(time)], [*clocks, clock], [*shares, share]
        if not clocks:
            return None
        return Look(time=times[-1], bound=last_bound(clocks, shares, alpha=alpha))


def last_bound(clocks: Sequence[float], shares: Sequence[float], *, alpha: float) -> float:
    """Returns the bound of z at the last of these looks.

    Args:
        clocks: T at each look, increasing from above 0.
        shares: of the test's hours, that have gone by at each.
        alpha: chance that one end of the interval is ever wrong.

    >>> round(last_bound([5, 10], [0.5, 1.0], alpha=0.05), 3)
    1.665
    """
    return float(group_bounds(clocks, spend(shares, alpha=alpha, power=POWER_OF_HOURS), sides=1)[-1])
