"""Predicts the time to a quality, by batch size and number of workers.

    T(B, K) = e(B) * (c(K)^g + s(B, K)^g)^(1/g),   c = 1 / K,   s = s0 K^a / B^b,   e = e0 B^-q

e: epochs to the quality; the rest: time of an epoch, whose gradients and their sum overlap (Pollux, OSDI'21,
with Scavenger's tau = c b + s K as one case; CCGrid'23). By noise-scale theory a larger batch needs more
epochs: samples are proportional to phi + B (McCandlish 2018), so q = -B / (phi + B). Measurements often show
the opposite (Scavenger: 231 epochs at 384, 172 at 1024). So q is learned from the nights, and theory is only
its prior.

Unknown constants are drawn from their priors, and mean and covariance of the draws define a Gaussian process
over log T: conditioning on the runs is then closed form, and yields the interval too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.prediction.efficiency import THEORY_SPREAD

Array = NDArray[np.float64]

NUM_DRAWS = 40_000
NOISE = 0.03  # of the logarithm of a time, from one run to the next
BEYOND, BEYOND_REACH = 0.02, 0.4  # residual of the form, smooth in log B and log K
LEVEL = 20.0  # deviation of the logarithm of all times
WITHOUT_THEORY = (0.2, 0.4)  # mean and deviation of q where no noise scale is known
SYNC_SHARE, SYNC_SPREAD = 0.3, 0.8  # s / c in the middle of the settings, and the deviation of its logarithm
POWER, WITH_BATCH, OVERLAP = (0.0, 2.0), (0.0, 1.0), (1.0, 3.0)  # a, b and g, uniform between these


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A batch size and a number of workers, as a plan may choose them."""

    batch_size: int
    num_workers: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that reached the quality, at a scale."""

    scale: Scale
    hours: float


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Hours (median) and the deviation of their logarithm for each scale, and what e(B) rests on."""

    hours: Array
    spread: Array
    prior: str


def epochs_slope(*, batch_size: float, noise_scale: float) -> float:
    """Returns q of noise-scale theory: d log e / d log B is B / (phi + B), and q is minus that.

    >>> epochs_slope(batch_size=1000, noise_scale=1000)
    -0.5
    """
    return -batch_size / (noise_scale + batch_size)


class TimeToQuality:
    """Prior of T over some scales, and its forecasts after runs."""

    def __init__(self, scales: Sequence[Scale], *, noise_scale: float | None = None, seed: int = 0) -> None:
        self.scales = tuple(scales)
        batch: Array = np.log([scale.batch_size for scale in scales])
        workers: Array = np.log([scale.num_workers for scale in scales])
        middle = float(np.exp(batch.mean()))
        batch, workers = batch - batch.mean(), workers - workers.mean()
        (slope, spread), self._theory = WITHOUT_THEORY, "no noise scale"
        if noise_scale is not None:
            slope, spread = epochs_slope(batch_size=middle, noise_scale=noise_scale), THEORY_SPREAD
            self._theory = f"noise scale {noise_scale:,.0f}"
        rng, one = np.random.default_rng(seed), (NUM_DRAWS, 1)
        q = rng.normal(slope, spread, one)
        share = rng.normal(np.log(SYNC_SHARE), SYNC_SPREAD, one)
        power, with_batch, overlap = (rng.uniform(*ends, one) for ends in (POWER, WITH_BATCH, OVERLAP))
        sync = share + power * workers - with_batch * batch
        log = -q * batch + np.logaddexp(-overlap * workers, overlap * sync) / overlap
        drawn = np.concatenate([log, q], axis=1)  # q is learned along with T
        self._mean: Array = drawn.mean(axis=0)
        self._covariance: Array = np.asarray(np.cov(drawn.T), np.float64)
        self._covariance[:-1, :-1] += LEVEL**2
        apart = np.square(batch[:, None] - batch) + np.square(workers[:, None] - workers)
        self._covariance[:-1, :-1] += BEYOND**2 * np.exp(-apart / 2 / BEYOND_REACH**2)

    def given(self, runs: Sequence[Run]) -> Forecast:
        """Returns the forecast at each scale after these runs.

        Raises ValueError without any, as nothing sets the level.
        """
        if not runs:
            raise ValueError("nothing was measured, so there is no level to start from")
        at = [self.scales.index(run.scale) for run in runs]
        known = self._covariance[np.ix_(at, at)] + NOISE**2 * np.eye(len(at))
        common = self._covariance[:, at]
        gain: Array = np.asarray(np.linalg.solve(known, common.T).T, np.float64)
        mean = self._mean + gain @ (np.log([run.hours for run in runs]) - self._mean[at])
        variance: Array = np.diag(self._covariance) - np.sum(gain * common, axis=1)
        spread: Array = np.sqrt(np.maximum(variance, 0.0))
        sizes = {run.scale.batch_size for run in runs}
        return Forecast(
            hours=np.exp(mean[:-1]),
            spread=np.hypot(spread[:-1], NOISE),
            prior=self._says(float(-mean[-1]), float(spread[-1]), len(sizes)),
        )

    def _says(self, power: float, spread: float, num_sizes: int) -> str:
        """Returns which prior e(B) rests on: theory until two batch sizes were run, then what they taught."""
        epochs = f"epochs as B^{power:+.2f} +- {spread:.2f}"
        if num_sizes < 2:
            return f"{self._theory}: {epochs}; one batch size was run"
        return f"learned from {num_sizes} batch sizes: {epochs}"
