"""Estimates the gain of more samples from the scores of earlier nights.

A night t that trained at a level, such as a multiple of the recipe's samples, scored on held-out days

    y = score[level] + b t + noise

The scores of levels are the learning curve, as far as nights have trained. No law is fitted through them,
since on many networks a power law that is right at two lengths is far off elsewhere. b absorbs a trend over
the days, so that lengths that rose with time are not credited with the trend. All parameters and the noise
have flat priors, so the difference of two levels is Student's t around least squares.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import TYPE_CHECKING

from daybreak.prediction.efficiency import ANOTHER_MODEL, Reached, theory, within

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LENGTHS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # multiples of the recipe's samples
ALIKE = 1.15  # most that a night's samples are apart from a length that it counts for
LEAST_NIGHTS = 2  # of a level, and of the recipe's
LEAST_FREEDOM = 3  # nights beyond the constants; with fewer an interval says little
TAIL = 0.05  # on either side of the interval


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What a level adds to the score of another one: the mean, and the interval of 90 %."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """Nights that trained like tonight, oldest first: their levels, and the scores that they reached."""

    levels: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()

    @cached_property
    def num_nights(self) -> Counter[float]:
        """How many nights trained at each level."""
        return Counter(self.levels)

    def gain(self, level: float, *, base: float = 1.0) -> Gain | None:
        """Returns what a level adds to the score of `base`; None where too few nights can tell."""
        import numpy as np
        from scipy.special import stdtrit

        if min(self.num_nights[base], self.num_nights[level]) < LEAST_NIGHTS or level == base:
            return None
        levels = sorted(self.num_nights)
        score: Array = np.array(self.scores, np.float64)
        days = np.arange(len(score)) - (len(score) - 1) / 2
        columns: Array = np.column_stack([np.array(self.levels)[:, None] == np.array(levels), days]).astype(
            np.float64
        )
        freedom = len(score) - int(np.linalg.matrix_rank(columns))
        inverse = np.linalg.pinv(columns.T @ columns)
        apart = np.zeros(columns.shape[1])
        apart[levels.index(level)], apart[levels.index(base)] = 1.0, -1.0
        if freedom < LEAST_FREEDOM:
            return None
        coefficients = inverse @ columns.T @ score
        left = score - columns @ coefficients
        error = float(left @ left / freedom * (apart @ inverse @ apart)) ** 0.5
        mean, half = float(apart @ coefficients), float(stdtrit(freedom, 1 - TAIL)) * error
        return Gain(mean=mean, low=mean - half, high=mean + half)


def learning_curve(
    nights: Sequence[Reached], *, warm: bool, flops_per_sample: float, num_samples: int, batch_size: int
) -> LearningCurve:
    """Returns the nights that began like tonight, with a model like tonight's, on about one of `LENGTHS`.

    `num_samples` in batches of `batch_size` are those of the recipe; other batches count as many as make
    equal progress by noise-scale theory.
    """
    lengths, scores = [], []
    for night in nights:
        there = theory(night.noise_scale, night.batch_size, batch_size)
        length = length_of(night.num_samples / there / num_samples)
        alike = night.warm == warm and within(night.flops_per_sample, flops_per_sample, ANOTHER_MODEL)
        if alike and length is not None:
            lengths.append(length)
            scores.append(night.score)
    return LearningCurve(levels=tuple(lengths), scores=tuple(scores))


def length_of(times: float) -> float | None:
    """Returns the length that so many times the recipe's samples count for; None if for none."""
    length = min(LENGTHS, key=lambda each: abs(log(times / each)))
    return length if within(times, length, ALIKE) else None
