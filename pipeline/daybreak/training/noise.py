"""Tracks the noise of gradients, by which the gain of a larger batch is estimated.

With g the mean gradient and Sigma the covariance of that of one sample, the noise scale is
phi = tr(Sigma) / |g|^2 (McCandlish 2018). From n parts of a batch of B samples, local = mean |g_i|^2 and
total = |mean g_i|^2:

    |g|^2 ~ (n * total - local) / (n - 1),        tr(Sigma) ~ (local - total) * B / (n - 1)

and three answers follow from both, for a batch M = S * b against b:

    Pollux' efficiency   (phi + b) / (phi + M)                            progress per sample (OSDI'21)
    Scavenger's gamma    mean |g_k|^2 / |mean g_k|^2 of S parts of b      (CCGrid'23)
    AdaScale's gain      (tr/b + |g|^2) / (tr/M + |g|^2), from 1 to S     updates that one stands for (2020)

gamma is the gain, and gamma / S the efficiency. Numerator and denominator are averaged apart, never their
ratio, whose mean is of no use; each average is corrected for starting at zero (Adam's correction).
"""

from dataclasses import dataclass, replace

SMOOTHING = 0.99


def parts(*, local: float, total: float, num_parts: int, batch_size: float) -> tuple[float, float]:
    """Returns unbiased |g|^2 and tr(Sigma) from parts of one batch; ValueError for fewer than two.

    >>> parts(local=6.0, total=3.0, num_parts=4, batch_size=8)
    (2.0, 8.0)
    """
    if num_parts < 2:
        raise ValueError("noise shows between parts of a batch, so there have to be two at least")
    square = (num_parts * total - local) / (num_parts - 1)
    return square, (local - total) * batch_size / (num_parts - 1)


def two_batches(
    *, small_square: float, small_size: float, big_square: float, big_size: float
) -> tuple[float, float]:
    """Returns unbiased |g|^2 and tr(Sigma) from |gradient|^2 of a small and of a big batch.

    Raises ValueError unless the big batch has more samples than the small one.

    >>> two_batches(small_square=6.0, small_size=2, big_square=3.0, big_size=8)
    (2.0, 8.0)
    """
    if not 0 < small_size < big_size:
        raise ValueError(f"the big batch has {big_size:g} samples, and the small one {small_size:g}")
    square = (big_size * big_square - small_size * small_square) / (big_size - small_size)
    return square, (small_square - big_square) / (1 / small_size - 1 / big_size)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Averages of |g|^2 and tr(Sigma) over updates; `seen` returns updated ones."""

    smoothing: float = SMOOTHING
    weight: float = 0.0  # of the updates seen; the rest, up to 1, is the initial zero
    square_sum: float = 0.0
    variance_sum: float = 0.0

    def seen(self, *, square: float, variance: float) -> "Noise":
        """Returns the averages with one more update's estimates, which may be negative by chance."""
        keep, new = self.smoothing, 1 - self.smoothing
        return replace(
            self,
            weight=keep * self.weight + new,
            square_sum=keep * self.square_sum + new * square,
            variance_sum=keep * self.variance_sum + new * variance,
        )

    @property
    def square(self) -> float:
        """The estimate of |g|^2; 0 before the first update and where noise hides it."""
        return max(0.0, self.square_sum / self.weight) if self.weight else 0.0

    @property
    def variance(self) -> float:
        """The estimate of tr(Sigma), for one sample."""
        return max(0.0, self.variance_sum / self.weight) if self.weight else 0.0

    @property
    def scale(self) -> float:
        """The noise scale phi in samples; infinite where noise hides the gradient, 0 without either."""
        if self.square > 0:
            return self.variance / self.square
        return float("inf") if self.variance > 0 else 0.0

    def gain(self, *, times: float, base_size: float) -> float:
        """Returns the updates at `base_size` that one with `times` the samples stands for, 1 to `times`."""
        large = self.square + self.variance / (times * base_size)
        return (self.square + self.variance / base_size) / large if large > 0 else 1.0
