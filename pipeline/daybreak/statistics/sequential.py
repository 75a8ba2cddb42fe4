"""Bounds how far a sum wanders by chance if it is looked at again and again, for every kind of looking.

Looks at any time, without an end: a normal mixture is a martingale that passes 1/alpha with probability at
most alpha, ever (Robbins 1970; Howard, Ramdas, McAuliffe & Sekhon 2021). At sum s and intrinsic time v, with
mixing variance rho,

    two-sided  log M = log(rho / (v + rho)) / 2 + s^2 / (2 (v + rho))
    one-sided  log M = log 2 + the same + log Phi(s / sqrt(v + rho))

Looks at known shares t_1 < t_2 < ... of the information: a Brownian motion B(t) that stops at the first look
with B(t_k) >= z_k sqrt(t_k). The density of what has not stopped goes from look to look by (Armitage,
McPherson & Rowe 1969)

    g_k(x) = integral over (lower, bound) of g_{k-1}(u) phi((x - u) / sd) / sd du,   sd^2 = t_k - t_{k-1}

here by Gauss-Legendre quadrature, two nodes to an sd, which is exact to about 1e-9. Spending functions are
those of Lan & DeMets (1983); z_k = C t_k^(delta - 1/2) are those of Wang & Tsiatis (1987), of which Pocock's
(delta 1/2) and O'Brien & Fleming's (delta 0) are two. Pure: numpy and scipy only.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

FARTHEST_Z = 8.0  # beyond, nothing is spent and nothing is kept
NODES_PER_SD = 2.0
CHUNK = 64  # nodes taken together
Floats = NDArray[np.float64]
Sides = Literal[1, 2]


def mixture_rho(variance: float, *, alpha: float) -> float:
    """Mixing variance whose two-sided boundary is about the lowest at `variance` (Howard et al. 2021, 3.5).

    For a one-sided boundary give it 2 alpha.

    >>> round(mixture_rho(100, alpha=0.05), 5)
    12.60056
    """
    doubled = 2 * math.log(1 / alpha)
    return variance / (doubled + math.log1p(doubled))


def log_mixture(total: float, variance: float, *, rho: float, sides: Sides) -> float:
    """Log of the normal mixture supermartingale at sum `total` and intrinsic time `variance`.

    It passes log(1/alpha) at any time with probability at most alpha (Ville's inequality).
    """
    spread = variance + rho
    two_sided = 0.5 * math.log(rho / spread) + total**2 / (2 * spread)
    if sides == 2:
        return two_sided
    return float(math.log(2) + two_sided + special.log_ndtr(total / math.sqrt(spread)))


@lru_cache(maxsize=4096)
def mixture_bound(variance: float, *, alpha: float, rho: float, sides: Sides) -> float:
    """Sum that the mixture of `rho` passes at any time with probability alpha, at time `variance`.

    >>> round(mixture_bound(100, alpha=0.05, rho=mixture_rho(100, alpha=0.1), sides=1), 1)
    27.7
    """
    spread = variance + rho
    two_sided = math.sqrt(spread * (math.log(spread / rho) + 2 * math.log(1 / alpha)))
    if sides == 2:
        return two_sided

    def excess(total: float) -> float:
        return log_mixture(total, variance, rho=rho, sides=1) - math.log(1 / alpha)

    return float(optimize.brentq(excess, 0, two_sided, xtol=1e-10, rtol=1e-12))


def spend(times: Sequence[float], *, alpha: float, power: float = 2.0) -> Floats:
    """Chance of a false alarm used up by each look, `alpha t^power` (Kim & DeMets 1987).

    >>> spend([0.5, 1.0], alpha=0.04).tolist()
    [0.01, 0.04]
    """
    return alpha * np.asarray(times, dtype=np.float64) ** power


def group_bounds(times: Sequence[float], spent: Sequence[float] | Floats, *, sides: Sides) -> Floats:
    """Bounds of z at each look, shape [k], passed first at look i with probability spent[i] - spent[i-1].

    `times` are shares of the information, increasing and above 0; `spent` is of all sides together. A look
    that may spend next to nothing gets the bound 8. Raises ValueError where the times do not increase.
    """
    state, bounds, used = _State.begin(times, sides=sides), [], 0.0
    for time, allowed in zip(times, spent, strict=True):
        state = state.moved(time)
        farthest = FARTHEST_Z * math.sqrt(time)

        def excess(bound: float, state: "_State" = state, left: float = allowed - used) -> float:
            return state.passing(bound) - left

        bound = farthest if excess(farthest) >= 0 else optimize.brentq(excess, 0, farthest, xtol=1e-12)
        used += state.passing(bound)
        bounds.append(bound / math.sqrt(time))
        state = state.stopped(bound)
    return np.array(bounds)


def crossing(
    times: Sequence[float], bounds: Sequence[float] | Floats, *, sides: Sides, drift: float = 0.0
) -> Floats:
    """Chance to have passed a bound by each look, shape [k], where B has this drift; 0 under the null."""
    state, passed = _State.begin(times, sides=sides, drift=drift), []
    for time, z in zip(times, bounds, strict=True):
        state = state.moved(time)
        passed.append(state.passing(z * math.sqrt(time)))
        state = state.stopped(z * math.sqrt(time))
    return np.cumsum(passed)


def family(times: Sequence[float], *, alpha: float, delta: float, sides: Sides) -> Floats:
    """Bounds C t^(delta - 1/2) of Wang & Tsiatis with a false alarm of alpha over all looks.

    Pocock's are those of delta 1/2, O'Brien & Fleming's those of delta 0.
    """
    shape = (np.asarray(times, dtype=np.float64) / times[-1]) ** (delta - 0.5)

    def excess(c: float) -> float:
        return float(crossing(times, c * shape, sides=sides)[-1]) - alpha

    return float(optimize.brentq(excess, 0.5, FARTHEST_Z, xtol=1e-10)) * shape


def inflation(times: Sequence[float], bounds: Floats, *, alpha: float, power: float, sides: Sides) -> float:
    """Samples at the last look, as a multiple of those of a single look of the same power."""
    single = -special.ndtri(alpha / sides) + special.ndtri(power)

    def short(drift: float) -> float:
        return float(crossing(times, bounds, sides=sides, drift=drift)[-1]) - power

    return float(optimize.brentq(short, 0.1, 10 * single) / single) ** 2


@lru_cache(maxsize=64)
def _gauss(number: int) -> tuple[Floats, Floats]:
    """Nodes and weights of Gauss-Legendre quadrature on [-1, 1]."""
    nodes, weights = special.roots_legendre(number)
    return np.asarray(nodes), np.asarray(weights)


@dataclass(frozen=True)
class _State:
    """Paths that have not stopped: where they were after the last look, and how far they have gone since."""

    nodes: Floats
    mass: Floats  # of each node
    time: float
    sd: float  # of the way from the nodes to this look
    sides: Sides
    drift: float

    @classmethod
    def begin(cls, times: Sequence[float], *, sides: Sides, drift: float = 0.0) -> "_State":
        if not len(times) or times[0] <= 0 or any(b <= a for a, b in itertools.pairwise(times)):
            raise ValueError(f"information times {list(times)[:5]} do not increase from above 0")
        return cls(np.zeros(1), np.ones(1), 0.0, 0.0, sides, drift)

    def moved(self, time: float) -> "_State":
        """The same paths at the next look, before it is taken."""
        ahead = self.drift * (time - self.time)
        sd = math.sqrt(time - self.time)
        return _State(self.nodes + ahead, self.mass, time, sd, self.sides, self.drift)

    def passing(self, bound: float) -> float:
        """Chance to be beyond the bound at this look, and at none before."""
        beyond = special.ndtr((self.nodes - bound) / self.sd)
        if self.sides == 2:
            beyond = beyond + special.ndtr((-bound - self.nodes) / self.sd)
        return float(self.mass @ beyond)

    def stopped(self, bound: float) -> "_State":
        """The paths within the bound, which go on after this look."""
        lowest = min(self.drift * self.time, 0.0) - FARTHEST_Z * math.sqrt(self.time)
        lower = -bound if self.sides == 2 else lowest
        half = (bound - lower) / 2
        unit, weights = _gauss(max(48, math.ceil(NODES_PER_SD * 2 * half / self.sd)))
        nodes = lower + half * (unit + 1)
        return _State(nodes, half * weights * self._density(nodes), self.time, 0.0, self.sides, self.drift)

    def _density(self, nodes: Floats) -> Floats:
        """Density of the paths at increasing nodes, at this look; only what is near can have come there."""
        density = np.empty_like(nodes)
        for start in range(0, nodes.size, CHUNK):
            part = nodes[start : start + CHUNK]
            reach = (FARTHEST_Z + 1) * self.sd
            first, last = np.searchsorted(self.nodes, (part[0] - reach, part[-1] + reach))
            away = (part[:, None] - self.nodes[None, first:last]) / self.sd
            density[start : start + CHUNK] = np.exp(-0.5 * away * away) @ self.mass[first:last]
        return density / (self.sd * math.sqrt(2 * math.pi))
