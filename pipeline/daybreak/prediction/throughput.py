"""Predicts the time of an update in a setting that was not measured, and how certain that is.

log T is a Gaussian process (Rasmussen & Williams 2006) over all machines of a job:

    log T = log form(constants of the machine) + (1 - f) (u + q + o) + f (v + o') + noise

f is the share of T that depends on summing gradients, so a misfit of the network is not blamed on the
device. u is smooth in m; q differs from one micro-batch size to the next, as kernels of devices do; v is
smooth in K, N, w and m; o and o' are offsets of a placement. The constants of all machines are jointly
Gaussian, with parts in common for the job and for the device (priors.py), so a measurement on one machine
carries over to others, in any number (Sia, SOSP'23). Constants enter linearly, by their derivatives. So one
covariance covers form, machines and noise, and intervals widen with the distance from measurements; and where
the form is bent in the constants, as a hidden sum may outlast its pass, by the share that is not explained.

Three factors are chosen by evidence, each with a prior around 1: of the noise, of q, and of the constants'
deviations; measurements that contradict the prior or each other so widen the interval. Last, the scale of
all deviations has a prior. Measurements farther than expected widen it for all forecasts; those as near or
nearer narrow it by the share of a forecast's variance that they explain, since nights that repeat one setting
show how quiet a machine is, and nothing of the roofline or of machines that never ran.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular
from scipy.special import ndtri, stdtrit

from daybreak.prediction.measurements import Measurement, StepSetting
from daybreak.prediction.priors import NAMES, Priors
from daybreak.prediction.step_time import MIX, Array, Points, form, slopes

FACTORS = {  # multiples to choose from, by name
    "noise": tuple(float(x) for x in np.exp(np.arange(-1.2, 1.3, 0.2))),
    "kernel": (0.2, 0.5, 1.0, 2.0, 4.0),
    "constants": (1.0, 2.0, 4.0, 8.0, 16.0),
}
FACTOR_SPREAD = {
    "noise": 0.35,
    "kernel": 1.0,
    "constants": 0.5,
}  # of their logarithms, before any measurement
AS_EXPECTED = 8  # measurements that the prior of the scale of all deviations weighs
FAR = 2.5  # deviations; a measurement farther from what the others predict weighs less
SAME_SIZE = 0.01  # of log m


@dataclass(frozen=True, kw_only=True)
class MachineKind:
    """A kind of machine as the model sees it: the constants of the form by profile and roofline."""

    name: str
    device: str
    profiled: bool  # the profile was measured on it
    constants: tuple[float, ...]
    errors: tuple[float, ...]  # deviations of these, beyond the prior's


@dataclass(frozen=True, kw_only=True)
class UpdateTimeForecast:
    """Logarithm of the median seconds of an update and its deviation, after and before the measurements."""

    log_s: Array
    spread: Array
    before_log_s: Array
    before_spread: Array


@dataclass(frozen=True)
class _Nearness:
    """How near the points of two sets are to each other, each [one, other] and between 0 and 1."""

    machine: Array
    batch: Array  # smooth in m
    size: Array  # the same m
    placement: Array  # the same
    count: Array  # smooth in K, N and w
    sync_batch: Array


def _nearness(one: Points, other: Points, priors: Priors) -> _Nearness:
    """Returns how near two sets of points are, by the reaches of the priors."""
    p = priors.residual

    def apart(name: str) -> Array:
        logs: list[Array] = [np.log(getattr(points, name)) for points in (one, other)]
        return (logs[0][:, None] - logs[1][None]) ** 2

    batch = apart("micro")
    kind = np.minimum(one.machines, 3)[:, None] == np.minimum(other.machines, 3)[None]
    place = apart("workers") + apart("machines") + apart("most")
    return _Nearness(
        (one.machine[:, None] == other.machine[None]).astype(float),
        np.exp(-batch / 2 / p.compute_reach**2),
        (batch < SAME_SIZE**2).astype(float),
        (one.placement[:, None] == other.placement[None]).astype(float),
        np.exp(-place / 2 / p.sync_reach**2) * kind,
        np.exp(-batch / 2 / p.sync_batch_reach**2),
    )


class StepTime:
    """Model of log T of a job on some machines, fitted to measurements; see the module docstring.

    `machine_of` says by number on which of the machines each was taken.
    """

    def __init__(
        self,
        measurements: Sequence[Measurement],
        *,
        machine_of: Sequence[int],
        machines: Sequence[MachineKind],
        priors: Priors,
    ) -> None:
        self.machines = list(machines)
        self._priors = priors
        self._at = Points.of(measurements, machine_of)
        self._near = _nearness(self._at, self._at, priors)
        self._log: Array = np.log([each.step_s for each in measurements])
        self._factors = dict.fromkeys(FACTORS, 1.0)
        self._mean = np.concatenate([self._mean_of(each) for each in self.machines])
        self._shared = np.block([[self._shared_by(a, b) for b in self.machines] for a in self.machines])
        self.constants = self._mean.copy()
        self._extra: Array = np.ones(len(self._log))
        if len(self._log):
            self._fit()

    @property
    def noise(self) -> float:
        """The noise of these measurements, as a multiple of the prior's."""
        return self._factors["noise"]

    @property
    def misfit(self) -> float:
        """Median of |log| between each measurement and what the others predict; 0 without any."""
        if not len(self._log):
            return 0.0
        inverse: Array = cho_solve(self._factor, np.eye(len(self._log)))
        return float(np.median(np.abs(self._weights / np.diag(inverse))))

    def predict(self, settings: Sequence[StepSetting], machine: MachineKind) -> tuple[Array, Array]:
        """Returns the median seconds of an update and the deviation of their logarithm, per setting."""
        forecast = self.forecast(settings, machine)
        return np.exp(forecast.log_s), forecast.spread

    def forecast(self, settings: Sequence[StepSetting], machine: MachineKind) -> UpdateTimeForecast:
        """Returns what is expected after the measurements, and what was before, per setting."""
        known = next((k for k, each in enumerate(self.machines) if each == machine), -1)
        at = Points.of(settings, [known] * len(settings))
        mean, shared = self._mean_of(machine), self._shared_by(machine, machine)
        here = mean if known < 0 else self.constants[self._place(known)]
        fitted, share = form(np.broadcast_to(here, (len(settings), len(here))), at)
        steep = slopes(np.broadcast_to(here, (len(settings), len(here))), at)
        before = fitted if known < 0 else form(np.broadcast_to(mean, (len(settings), len(mean))), at)[0]
        loose = self._factors["constants"] ** 2
        by_constants = np.einsum("ij,jk,ik->i", steep, shared, steep)
        residual, anew = self._residual_variance(share), self._noise(share)
        doubt = _widening(squares=0.0, number=0) * np.sqrt(by_constants + residual + anew)
        log = fitted + steep @ (mean - here)
        if not len(self._log):
            return UpdateTimeForecast(log_s=log, spread=doubt, before_log_s=before, before_spread=doubt)
        across = np.hstack([self._shared_by(machine, each) for each in self.machines])
        common = steep @ (across * loose) @ self._slopes.T
        common += self._residual(_nearness(at, self._at, self._priors), share, self._share)
        explained = solve_triangular(self._factor[0], common.T, lower=True)
        whole = by_constants * loose + residual + anew
        variance = np.maximum(whole - anew - np.sum(np.square(explained), axis=0), 0.0) + anew
        bent = self._variance_by_constants(machine, np.broadcast_to(here, (len(settings), len(here))), at)
        bent = whole + np.maximum(0.0, bent - by_constants * loose)
        widening = _widening(squares=float(self._left @ self._weights), number=len(self._log))
        return UpdateTimeForecast(
            log_s=log + common @ self._weights,
            spread=_where_seen(widening, 1 - variance / whole) * np.sqrt(variance / whole * bent),
            before_log_s=before,
            before_spread=doubt,
        )

    def evidence(self, priors: Priors) -> float:
        """Returns minus the log evidence of the measurements under other priors and these constants."""
        self._priors, self._factors = priors, dict.fromkeys(FACTORS, 1.0)
        self._solve()
        return float(self._left @ self._weights / 2 + np.sum(np.log(np.diag(self._factor[0]))))

    def _variance_by_constants(self, machine: MachineKind, constants: Array, at: Points) -> Array:
        """Returns the variance of log T by what is not known of the constants, as bent as it is in each.

        A sum of gradients that is hidden by a pass may turn out to be longer, which derivatives do not show.
        Gauss-Hermite quadrature with three points for each constant (Julier & Uhlmann 1997, with kappa 2).
        """
        middle = form(constants, at)[0]
        far = np.sqrt(3 * self._squares_by(machine, machine)) * self._factors["constants"]
        moves = (MIX * far).T[:, None]
        up, down = (form(constants + way * moves, at)[0] - middle for way in (1, -1))
        variance: Array = ((up**2 + down**2) / 6 - np.square((up + down) / 6)).sum(axis=0)
        return variance

    def _place(self, machine: int) -> slice:
        return slice(machine * len(NAMES), (machine + 1) * len(NAMES))

    def _mean_of(self, machine: MachineKind) -> Array:
        """Returns the expected constants of a machine."""
        mean: Array = MIX @ np.array(self._priors.constants.mean) + np.array(machine.constants)
        return mean

    def _shared_by(self, one: MachineKind, other: MachineKind) -> Array:
        """Returns the covariance of the constants of two machines."""
        covariance: Array = MIX @ np.diag(self._squares_by(one, other)) @ MIX.T
        return covariance

    def _squares_by(self, one: MachineKind, other: MachineKind) -> Array:
        """Returns the covariance of the constants before they are mixed, each with the same of the other.

        What a roofline errs by from the device that was profiled is half the device's, so that a machine
        learns of it from another one with that device, and half the machine's own.
        """
        p = self._priors.constants
        squares: Array = np.square(p.laboratory) + np.square(p.job)
        if one.device == other.device and not (one.profiled or other.profiled):
            squares = squares + np.square(p.device) + np.multiply(one.errors, other.errors) / 2
        if one == other:
            own = np.square(one.errors) / (1 if one.profiled else 2)
            squares = squares + np.square(p.profiled if one.profiled else p.machine) + own
        return squares

    def _residual(self, near: "_Nearness", f: Array, g: Array) -> Array:
        """Returns the covariance of the form's residuals, [one, other], for shares of sync `f` and `g`."""
        p, noise = self._priors.residual, self.noise
        compute = p.compute**2 * near.batch
        compute += (self._factors["kernel"] * p.kernel) ** 2 * near.size
        compute += (noise * p.compute_offset) ** 2 * near.placement
        sync = (p.sync**2 * near.count + (noise * p.sync_offset) ** 2 * near.placement) * near.sync_batch
        covariance: Array = near.machine * (np.outer(1 - f, 1 - g) * compute + np.outer(f, g) * sync)
        return covariance

    def _residual_variance(self, f: Array) -> Array:
        p, noise = self._priors.residual, self.noise
        compute = p.compute**2 + (self._factors["kernel"] * p.kernel) ** 2 + (noise * p.compute_offset) ** 2
        variance: Array = np.square(1 - f) * compute + np.square(f) * (
            p.sync**2 + (noise * p.sync_offset) ** 2
        )
        return variance

    def _noise(self, share: Array) -> Array:
        """Returns the variance of the noise that is independent in each measurement."""
        p = self._priors.residual
        variance: Array = self.noise**2 * (p.noise**2 + np.square(p.sync_noise * share))
        return variance

    def _fit(self) -> None:
        self._choose_factors()
        apart = self._left_out()
        if np.any(np.abs(apart) > FAR):  # a disturbed step must not set the standard for the others
            self._extra = np.square(np.maximum(1, np.abs(apart) / FAR))
            self._choose_factors()

    def _choose_factors(self) -> None:
        """Sets the factors under which the measurements are most likely, given their priors."""
        self._factors = dict.fromkeys(FACTORS, 1.0)
        self._settle(rounds=25)
        for name, choices in FACTORS.items():
            start, best = self.constants, (np.inf, 1.0, self.constants)
            for factor in choices:
                self._factors[name], self.constants = factor, start
                try:
                    loss = self._settle(rounds=4) + (np.log(factor) / FACTOR_SPREAD[name]) ** 2 / 2
                except LinAlgError:
                    continue
                best = min(best, (loss, factor, self.constants), key=lambda each: each[0])
            _, self._factors[name], self.constants = best
        self._settle(rounds=10)

    def _settle(self, *, rounds: int) -> float:
        """Fits the constants by Gauss-Newton under the whole covariance; returns minus the log evidence."""
        for _ in range(rounds):
            self._solve()
            shared = self._shared * self._factors["constants"] ** 2
            step = self._mean + shared @ self._slopes.T @ self._weights - self.constants
            longest = float(np.max(np.abs(step)))
            self.constants = self.constants + step / max(1.0, longest)
            if longest < 1e-3:
                break
        self._solve()
        return float(self._left @ self._weights / 2 + np.sum(np.log(np.diag(self._factor[0]))))

    def _solve(self) -> None:
        by_machine = self.constants.reshape(len(self.machines), len(NAMES))
        here = by_machine[self._at.machine]
        fitted, self._share = form(here, self._at)
        steep = slopes(here, self._at)
        self._slopes = np.zeros((len(self._log), len(self.constants)))
        for k in range(len(self.machines)):
            self._slopes[self._at.machine == k, self._place(k)] = steep[self._at.machine == k]
        covariance = self._residual(self._near, self._share, self._share)
        covariance += self._slopes @ (self._shared * self._factors["constants"] ** 2) @ self._slopes.T
        covariance += np.diag(self._noise(self._share) * self._extra)
        self._left = self._log - fitted + self._slopes @ (self.constants - self._mean)
        self._factor = cho_factor(covariance, lower=True)
        self._weights: Array = cho_solve(self._factor, self._left)

    def _left_out(self) -> Array:
        """Returns deviations of the measurements from what the others predict, each left out by itself."""
        inverse: Array = cho_solve(self._factor, np.eye(len(self._log)))
        return np.asarray(self._weights / np.sqrt(np.diag(inverse)))


def _widening(*, squares: float, number: int) -> float:
    """Returns the factor of all deviations, by how far measurements were from what was expected of them.

    `squares` is the sum of their squared standardized deviations. The scale of the covariance has an inverse
    chi-square prior, so a forecast has Student's t distribution (Shah, Wilson & Ghahramani 2014); callers
    take intervals from a normal one, so the factor has the ratio of both 90 % intervals.
    """
    freedom = AS_EXPECTED + number
    scale = (AS_EXPECTED + squares) / freedom
    return float(np.sqrt(scale) * stdtrit(freedom, 0.95) / ndtri(0.95))


def _where_seen(widening: float, explained: Array) -> Array:
    """Returns the factor for each forecast, of whose variance measurements explain these shares.

    What they do not explain they could not have contradicted, so its scale is narrowed no further than the
    prior's, however many there are.
    """
    before = _widening(squares=0.0, number=0)
    return np.sqrt(before**2 + (1.0 if widening > before else explained) * (widening**2 - before**2))
