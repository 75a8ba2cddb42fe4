"""Predicts how many samples another batch size needs for the same quality: by theory, then by earlier nights.

By noise-scale theory (McCandlish 2018; Pollux, OSDI'21) a batch of B makes (phi + B0) / (phi + B) as much of
a sample as one of B0, which is often wrong (Scavenger, CCGrid'23: epochs fall as B grows). So samples are

    n(B) = n(B0) (phi + B) / (phi + B0) (B / B0)^d,   d ~ N(0, 0.6) before any night

and nights teach d by what they reached. A night trained n samples in batches of B, and scored

    y = a + c log(n / (n(B) / n(B0))) + noise

on held-out days. The level a, what more samples are worth (c > 0) and the noise from night to night are
not known either: all but a are summed over a grid, a has a flat prior and is integrated out. Nights
of one batch size say nothing of d, and little where c is not known: the interval then stays that of theory.
Where nights have the score of a simple rule on the same days, that is taken off, as days differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, isfinite, log
from typing import TYPE_CHECKING

from daybreak.contract.record_types import Profile
from daybreak.machines.startup import Z90
from daybreak.prediction.priors import priors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

REACH = 2.5  # of d on the grid, either way; four deviations of its prior
NUM_SLOPES, NUM_OTHERS = 101, 25
# What e times the samples add to the score, as a share of it: 90 % within a factor of ten of 5 %.
WORTH, WORTH_SPREAD = 0.05, log(10.0) / Z90
# Deviation of a score from night to night, as a share of it: 90 % within a factor of ten of 3 %.
NOISE, NOISE_SPREAD = 0.03, log(10.0) / Z90
AS_FAR = 3.0  # times the samples, for equal batches, or a part: otherwise it began elsewhere
ANOTHER_MODEL = 1.2  # times the FLOPs of a sample


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The quality that a night's training reached."""

    batch_size: int
    num_samples: int  # trained on
    noise_scale: float  # towards the end of that night's training, or by its profile
    score: float  # less a simple rule's on the same days, where all nights have one
    size: float  # of scores: what changes of it are a share of
    flops_per_sample: float  # of the model
    warm: bool | None = None  # did it begin with the champion's weights? None: nobody told


def alike(
    nights: Sequence[Reached], *, profile: Profile, num_samples: int, batch_size: int
) -> tuple[Reached, ...]:
    """Returns the nights that trained a model like tonight's about as far: no warm ones for a cold start."""
    return tuple(
        night
        for night in nights
        if within(night.flops_per_sample, profile.flops_per_sample, ANOTHER_MODEL)
        and within(
            night.num_samples / theory(night.noise_scale, night.batch_size, batch_size), num_samples, AS_FAR
        )
    )


def within(one: float, other: float, times: float) -> bool:
    """Returns whether one is at most so many times the other."""
    return one <= other * times and other <= one * times


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """Samples for equal quality by batch size, from tonight's noise scale and the nights before."""

    noise_scale: float
    nights: tuple[Reached, ...] = ()

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Batch sizes that these nights trained with, ascending."""
        return tuple(sorted({night.batch_size for night in self.nights}))

    @property
    def learned(self) -> bool:
        """Whether nights have run with two batch sizes, so that they show how samples depend on it."""
        return len(self.batch_sizes) > 1

    def ratio(self, batch_size: int, base_size: int) -> float:
        """Returns the samples that a batch size needs over those of another; the median."""
        beyond = exp(self.slope[0] * log(batch_size / base_size))
        return theory(self.noise_scale, batch_size, base_size) * beyond

    def spread(self, batch_size: int, base_size: int) -> float:
        """Returns the deviation of the logarithm of `ratio`."""
        return self.slope[1] * abs(log(batch_size / base_size))

    def says(self, batch_size: int, base_size: int) -> str:
        """Returns in words what the samples of a batch size rest on, naming the prior."""
        times, factor = self.ratio(batch_size, base_size), self.spread(batch_size, base_size)
        low, high = times * exp(-Z90 * factor), times * exp(Z90 * factor)
        text = (
            f"{times:.2f} ({low:.2f} to {high:.2f}) times the samples in batches of {batch_size} rather than "
            f"{base_size}, by "
        )
        prior = f"the prior of noise-scale theory (noise scale {self.noise_scale:,.0f})"
        if not isfinite(self.noise_scale):
            prior = "the prior of noise-scale theory (no gradient above the noise)"
        if self.learned:
            sizes = ", ".join(map(str, self.batch_sizes))
            return f"{text}{len(self.nights)} nights with batches of {sizes}, and {prior}"
        return f"{text}{prior}; no nights with two batch sizes can tell yet"

    @cached_property
    def slope(self) -> tuple[float, float]:
        """Mean and deviation of d."""
        if not self.learned:
            return 0.0, priors().assumed.theory
        import numpy as np

        size = float(np.median([night.size for night in self.nights]))
        base = self.batch_sizes[0]
        score: Array = np.array([night.score for night in self.nights], np.float64)
        progress: Array = np.array(
            [log(n.num_samples / theory(n.noise_scale, n.batch_size, base)) for n in self.nights], np.float64
        )
        batch: Array = np.log([night.batch_size / base for night in self.nights])
        d = np.linspace(-REACH, REACH, NUM_SLOPES)
        z = np.linspace(-2.5, 2.5, NUM_OTHERS)
        worth, noise = (size * WORTH * np.exp(WORTH_SPREAD * z), size * NOISE * np.exp(NOISE_SPREAD * z))
        # [d, c, nights], less its mean over the nights, since the level is integrated out.
        apart = score - worth[None, :, None] * (progress - d[:, None, None] * batch)
        squares = np.square(apart - apart.mean(axis=-1, keepdims=True)).sum(axis=-1)
        likely = -squares[..., None] / (2 * noise**2) - (len(score) - 1) * np.log(noise)
        likely -= np.square(d / priors().assumed.theory)[:, None, None] / 2  # the priors
        likely -= (np.square(z)[:, None] + np.square(z)) / 2
        weights = np.exp(likely - likely.max()).sum(axis=(1, 2))
        weights /= weights.sum()
        mean = float(weights @ d)
        step = 2 * REACH / (NUM_SLOPES - 1)
        return mean, (float(weights @ np.square(d - mean)) + step**2 / 12) ** 0.5


def theory(noise_scale: float, batch_size: int, base_size: int) -> float:
    """Returns (phi + B) / (phi + B0); 1 where noise hides the gradient."""
    noise = max(0.0, noise_scale)
    return (noise + batch_size) / (noise + base_size) if isfinite(noise) else 1.0
