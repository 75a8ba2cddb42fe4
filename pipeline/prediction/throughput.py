"""Predicts the time of an update in a setting that was not measured, and how certain that is.

`step_time.py` has the form, fitted by the error of log T. Its residual is a Gaussian process over log T
(Rasmussen & Williams 2006). With f the share of T that depends on summing gradients, it is
(1 - f) u(m) + f v(K, N, w, m): u and v are smooth, each placement has an offset, and both have noise. The
constants are linear in the same process through their derivatives, with a prior that was learned from other
jobs. So one covariance holds what is known of form, machine and noise, and intervals widen with the distance
from what was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular
from scipy.special import ndtri

from pipeline.prediction.measurements import Measurement, Setting
from pipeline.prediction.step_time import (
    LEARNED,
    MANY,
    ONE,
    SCALES,
    TWO,
    UNINFORMED,
    Array,
    Points,
    Prior,
    centred,
    form,
    slopes,
)


@dataclass(frozen=True, kw_only=True)
class Process:
    """Amplitudes and length scales of the form's residual, in log T; set once, on steps of T4 machines."""

    compute: float = 0.04
    compute_reach: float = 1.0  # in log m
    sync: float = 0.15
    sync_reach: float = 1.0  # in log K, log N and log w
    sync_batch_reach: float = 3.0  # in log m
    compute_offset: float = 0.02  # of a placement
    sync_offset: float = 0.08
    noise: float = 0.02
    sync_noise: float = 0.08


PROCESS = Process()
NOISES = tuple(float(x) for x in np.exp(np.arange(-1.2, 1.01, 0.2)))  # multiples of the noise of PROCESS
NOISE_SPREAD = 0.5  # of the logarithm of that factor, before anything is measured
FAR = 2.5  # deviations; a measurement farther from what the others predict weighs less
PSEUDO = 10  # measurements that behave as predicted, with which the calibration begins


class _Covariance:
    """Covariance of two sets of points beyond the form; the noise factor and shares are given later."""

    def __init__(self, one: Points, other: Points) -> None:
        p = PROCESS

        def apart(name: str) -> Array:
            logs: list[Array] = [np.log(getattr(points, name)) for points in (one, other)]
            return (logs[0][:, None] - logs[1][None]) ** 2

        batch = apart("micro")
        kind = np.minimum(one.machines, 3)[:, None] == np.minimum(other.machines, 3)[None]
        place = apart("workers") + apart("machines") + apart("most")
        self._same = (one.placement[:, None] == other.placement[None]).astype(float)
        self._compute = p.compute**2 * np.exp(-batch / 2 / p.compute_reach**2)
        self._sync = p.sync**2 * np.exp(-place / 2 / p.sync_reach**2) * kind
        self._batch: Array = np.exp(-batch / 2 / p.sync_batch_reach**2)

    def __call__(self, noise: float, one: Array, other: Array) -> Array:
        """Returns the covariance, [one, other], given the shares of sync of both."""
        p = PROCESS
        compute = self._compute + (noise * p.compute_offset) ** 2 * self._same
        sync = (self._sync + (noise * p.sync_offset) ** 2 * self._same) * self._batch
        covariance: Array = np.outer(1 - one, 1 - other) * compute + np.outer(one, other) * sync
        return covariance


def _variance(noise: float, share: Array) -> Array:
    """Returns the variance of the noise that is independent in each measurement."""
    variance: Array = noise**2 * (PROCESS.noise**2 + np.square(PROCESS.sync_noise * share))
    return variance


class StepTime:
    """Fitted model of log T of a job on one kind of machine; see the module docstring."""

    def __init__(self, measurements: Sequence[Measurement], prior: Prior) -> None:
        self._at = Points.of(measurements)
        self._log: Array = np.log([each.step_s for each in measurements])
        self._common = _Covariance(self._at, self._at)
        self._mean, self._spread = prior.moments()
        self.constants = self._mean.copy()
        self.noise = 1.0
        self._extra: Array = np.ones(len(self._log))
        self.stretch, self.stretch_beyond = 1.0, 1.0
        if len(self._log):
            self._fit()

    def _fit(self) -> None:
        self._choose_noise()
        apart = self._left_out(each=True)
        if np.any(np.abs(apart) > FAR):  # a disturbed step must not set the standard for the others
            self._extra = np.square(np.maximum(1, np.abs(apart) / FAR))
            self._choose_noise()
        self.stretch = _stretch(self._left_out(each=True))
        self.stretch_beyond = _stretch(self._left_out(each=False))

    def _choose_noise(self) -> None:
        """Sets the noise factor under which the measurements are most likely, given its prior."""
        self.noise = 1.0
        self._settle(rounds=25)
        start, best = self.constants, (np.inf, 1.0, self.constants)
        for noise in NOISES:
            self.noise, self.constants = noise, start
            try:
                loss = self._settle(rounds=4) + (np.log(noise) / NOISE_SPREAD) ** 2 / 2
            except LinAlgError:
                continue
            best = min(best, (loss, noise, self.constants), key=lambda each: each[0])
        _, self.noise, self.constants = best
        self._settle(rounds=10)

    def _settle(self, *, rounds: int) -> float:
        """Fits the constants by Gauss-Newton under the whole covariance; returns minus the log evidence."""
        for _ in range(rounds):
            self._solve()
            step = self._mean + self._spread @ self._slopes.T @ self._weights - self.constants
            longest = float(np.max(np.abs(step)))
            self.constants = self.constants + step / max(1.0, longest)
            if longest < 1e-3:
                break
        self._solve()
        return float(self._left @ self._weights / 2 + np.sum(np.log(np.diag(self._factor[0]))))

    def _solve(self) -> None:
        fitted, self._share = form(self.constants, self._at)
        self._slopes = slopes(self.constants, self._at)
        covariance = self._common(self.noise, self._share, self._share)
        covariance += self._slopes @ self._spread @ self._slopes.T
        covariance += np.diag(_variance(self.noise, self._share) * self._extra)
        self._left = self._log - fitted + self._slopes @ (self.constants - self._mean)
        self._factor = cho_factor(covariance, lower=True)
        self._weights: Array = cho_solve(self._factor, self._left)

    def _left_out(self, *, each: bool) -> Array:
        """Returns deviations from the others' prediction, left out singly or with all of their placement."""
        inverse: Array = cho_solve(self._factor, np.eye(len(self._log)))
        if each:
            return np.asarray(self._weights / np.sqrt(np.diag(inverse)))
        apart = np.empty(len(self._log))
        for name in np.unique(self._at.placement):
            here = np.flatnonzero(self._at.placement == name)
            block = np.linalg.inv(inverse[np.ix_(here, here)])
            apart[here] = block @ self._weights[here] / np.sqrt(np.diag(block))
        return apart

    def predict(self, settings: Sequence[Setting], *, noisy: bool = True) -> tuple[Array, Array]:
        """Returns the median seconds of an update and the standard deviation of their logarithm, per setting.

        The deviation is that of one more measurement, or, without noise, of the mean of many.
        """
        at = Points.of(settings)
        fitted, share = form(self.constants, at)
        steep = slopes(self.constants, at)
        variance = np.square(1 - share) * (PROCESS.compute**2 + (self.noise * PROCESS.compute_offset) ** 2)
        variance += np.square(share) * (PROCESS.sync**2 + (self.noise * PROCESS.sync_offset) ** 2)
        variance += np.einsum("ij,jk,ik->i", steep, self._spread, steep)
        anew = _variance(self.noise, share) if noisy else np.zeros_like(share)
        log = fitted + steep @ (self._mean - self.constants)
        if not len(self._log):
            return np.exp(log), np.sqrt(variance + anew)
        common = _Covariance(at, self._at)(self.noise, share, self._share)
        common += steep @ self._spread @ self._slopes.T
        log = log + common @ self._weights
        known = solve_triangular(self._factor[0], common.T, lower=True)
        variance -= np.sum(np.square(known), axis=0)
        stretch = np.where(np.isin(at.placement, self._at.placement), self.stretch, self.stretch_beyond)
        return np.exp(log), stretch * np.sqrt(np.maximum(variance, 0.0) + anew)


def _stretch(apart: Array) -> float:
    """Returns the square root of the factor with which intervals cover 90 % of what was left out.

    It is conformal prediction (Vovk 2005) with a prior. The root goes half way on a logarithmic scale, since
    the settings to predict are farther from the measurements than those are from one another.
    """
    as_they_should = ndtri(0.5 + 0.5 * (np.arange(PSEUDO) + 0.5) / PSEUDO)
    return float(np.sqrt(np.quantile(np.concatenate([np.abs(apart), as_they_should]), 0.9) / ndtri(0.95)))


def fit(measurements: Sequence[Measurement], prior: Prior | None = None) -> StepTime:
    """Returns the model fitted to measurements of one job on one kind of machine.

    Without a prior the scales come from the measurements, and the rest from other jobs (`LEARNED`).
    """
    return StepTime(measurements, prior or centred(LEARNED, measurements))


def learn(jobs: Sequence[Sequence[Measurement]]) -> Prior:
    """Returns what jobs have in common: mean constants, and a deviation that allows for one more job.

    It is empirical Bayes with one pseudo-job of `UNINFORMED`, so that few jobs do not look too alike.
    """
    fitted = np.stack([StepTime(job, centred(UNINFORMED, job)).constants for job in jobs])
    fitted[:, [ONE, TWO]] -= fitted[:, [MANY]]
    mean = fitted.mean(axis=0)
    squares = np.sum(np.square(fitted - mean), axis=0) + np.square(UNINFORMED.deviation)
    spread = np.sqrt(squares / len(jobs) * (1 + 1 / len(jobs)))
    return UNINFORMED.scaled(
        {k: (float(mean[k]), float(spread[k])) for k in range(len(mean)) if k not in SCALES}
    )
