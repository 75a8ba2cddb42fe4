"""Fits a straight line to how a cost grows with the batch, and estimates the errors of the line.

The noise of times is proportional to their size, and now and then a time is far too long because something
else ran. So values far from the median of their batch size (three scaled median absolute deviations) are
dropped, and the rest is fitted by least squares with weights 1 / median^2. Neither parameter is negative:
where one would be, the line is fitted without it. Errors are half-widths of 90 % intervals (Student's t).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from daybreak.contract.record_parts import Line

Array = NDArray[np.float64]

FAR = 3.0
MAD_TO_DEVIATION = 1.4826
NOTHING = 1e-12  # of a second or a byte
LEAST_NOISE = 0.02  # repeats closer than this are luck: a step cannot be measured better than to 2 %


def constant(value: float) -> Line:
    """Returns the line of a cost that does not depend on the batch and is known exactly."""
    return Line(fixed=value, per_sample=0.0, fixed_error=0.0, per_sample_error=0.0)


def fit(batch_sizes: Sequence[float], values: Sequence[float]) -> Line:
    """Returns the line through `values` at `batch_sizes`; with one batch size, through the origin.

    Raises ValueError if there is nothing to fit, or a value is negative or not finite.
    """
    x: Array = np.asarray(batch_sizes, np.float64)
    y: Array = np.asarray(values, np.float64)
    if len(x) == 0 or len(x) != len(y) or not np.all(np.isfinite(y)) or np.any(y < 0):
        raise ValueError(f"cannot fit a line through {list(values)} at {list(batch_sizes)}")
    if float(y.max()) < NOTHING:
        return constant(0.0)
    x, y, scale = _clean(x, y)
    columns: Array = np.stack([np.ones_like(x), x], axis=1) / scale[:, None]
    target: Array = y / scale
    both = [0, 1] if len(np.unique(x)) > 1 else [1]
    best, used = _solve(columns, target, both), both
    if np.any(best < 0):
        # The better of the two lines with one parameter; both are positive, as all values are.
        alone = [(_misfit(columns, target, [k], _solve(columns, target, [k])), k) for k in (0, 1)]
        used = [min(alone)[1]]
        best = _solve(columns, target, used)
    return _with_errors(columns, target, best, used)


def _clean(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Returns the points near the median of their batch size, and that median."""
    keep = np.ones(len(x), bool)
    scale: Array = np.ones_like(y)
    for size in np.unique(x):
        here = x == size
        median = float(np.median(y[here]))
        apart = np.abs(y - median)
        deviation = MAD_TO_DEVIATION * float(np.median(apart[here]))
        keep &= ~here | (apart <= FAR * max(deviation, LEAST_NOISE * median))
        scale[here] = median
    scale = np.maximum(scale, max(NOTHING, 1e-6 * float(scale.max())))
    return x[keep], y[keep], scale[keep]


def _solve(columns: Array, target: Array, used: list[int]) -> Array:
    return np.asarray(np.linalg.lstsq(columns[:, used], target, rcond=None)[0], np.float64)


def _misfit(columns: Array, target: Array, used: list[int], best: Array) -> float:
    return float(np.sum((columns[:, used] @ best - target) ** 2))


def _with_errors(columns: Array, target: Array, best: Array, used: list[int]) -> Line:
    freedom = len(target) - len(used)
    variance = _misfit(columns, target, used, best) / freedom if freedom > 0 else 0.0
    variance = max(variance, LEAST_NOISE**2)
    # For points that differ by a factor of a million the matrix is numerically singular.
    covariance = variance * np.linalg.pinv(columns[:, used].T @ columns[:, used], hermitian=True)
    wide = float(stdtrit(max(freedom, 1), 0.95))
    value, error = [0.0, 0.0], [0.0, 0.0]
    for place, parameter in enumerate(used):
        value[parameter] = float(best[place])
        error[parameter] = wide * float(np.sqrt(max(0.0, covariance[place, place])))
    return Line(fixed=value[0], per_sample=value[1], fixed_error=error[0], per_sample_error=error[1])
