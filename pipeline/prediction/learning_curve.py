"""Estimates what training on more samples adds to the score, by what earlier nights reached.

A night t that trained on about `length` times the samples of the recipe scored on held-out days

    y = level[length] + b t + noise

The levels are the learning curve, as far as nights have trained: no law goes through them, as a power law
that is right at two lengths is far off between and beyond them on many networks. b takes up what changes with
the days, whatever is trained, so that lengths that rose with time are not credited with it. Levels, b and the
noise have flat priors, so that the difference of two levels is Student's t around least squares.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import TYPE_CHECKING

from pipeline.prediction.efficiency import ANOTHER_MODEL, Reached, theory, within

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LENGTHS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # multiples of the recipe's samples
ALIKE = 1.15  # most that a night's samples are apart from a length that it counts for
LEAST_NIGHTS = 2  # of a length, and of the recipe's
LEAST_FREEDOM = 3  # nights beyond the constants; with fewer an interval says little
TAIL = 0.05  # on either side of the interval


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What a length adds to the score of the recipe's: the mean, and the interval of 90 %."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """Nights that trained like tonight, oldest first: their lengths, and the scores that they reached."""

    lengths: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()

    @cached_property
    def num_nights(self) -> Counter[float]:
        """How many nights trained on each length."""
        return Counter(self.lengths)

    def gain(self, length: float) -> Gain | None:
        """Returns what a length adds to the score; None where too few nights can tell."""
        import numpy as np
        from scipy.special import stdtrit

        if min(self.num_nights[1.0], self.num_nights[length]) < LEAST_NIGHTS or length == 1.0:
            return None
        levels = sorted(self.num_nights)
        score: Array = np.array(self.scores, np.float64)
        days = np.arange(len(score)) - (len(score) - 1) / 2
        columns: Array = np.column_stack([np.array(self.lengths)[:, None] == np.array(levels), days])
        freedom = len(score) - columns.shape[1]
        if freedom < LEAST_FREEDOM or np.linalg.matrix_rank(columns) < columns.shape[1]:
            return None
        inverse = np.linalg.inv(columns.T @ columns)
        coefficients = inverse @ columns.T @ score
        left = score - columns @ coefficients
        apart = np.zeros(columns.shape[1])
        apart[levels.index(length)], apart[levels.index(1.0)] = 1.0, -1.0
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
        times = night.num_samples / there / num_samples
        length = min(LENGTHS, key=lambda each: abs(log(times / each)))
        alike = night.warm == warm and within(night.flops_per_sample, flops_per_sample, ANOTHER_MODEL)
        if alike and within(times, length, ALIKE):
            lengths.append(length)
            scores.append(night.score)
    return LearningCurve(lengths=tuple(lengths), scores=tuple(scores))
