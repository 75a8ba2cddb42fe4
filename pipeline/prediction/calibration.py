"""Corrects predicted update times by what earlier nights measured, and says how uncertain they remain.

An earlier night records how much longer an update took than its own profile predicted: a ratio, so that it
stays valid when model or profile change. On a machine that has run, tonight's form (step_time.py, with its
constants from the profile and the roofline) is fitted to those ratios, so counts and batch sizes that were
never tried are predicted from those that were. A machine that has not run takes its ratio from what it has in
common with those that have: the job, and the kind of device (Sia, SOSP'23: what one device does alone carries
over to any number of them).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot, log
from typing import TYPE_CHECKING

from pipeline.prediction.measurements import Measurement, Setting, believable

if TYPE_CHECKING:
    from pipeline.prediction.efficiency import Reached
    from pipeline.prediction.step_time import Array, Prior
    from pipeline.prediction.throughput import StepTime
    from pipeline.prediction.time_budget import Decided
    from pipeline.spot.hazard import Hazard

# Deviations of log(actual / predicted), before any night: of the job on all machines, of a kind of device
# and of a machine against the roofline, and from night to night.
JOB, DEVICE, MACHINE, NIGHT = 0.10, 0.30, 0.28, 0.06
NETWORK = 0.25  # deviation of log(time to sum gradients)
NO_OVERLAP = (-3.0, 0.5)  # log(g - 1): here gradients are summed after the pass that computed them
PSEUDO_NIGHTS = 4  # weight of NIGHT as a prior, in nights
NIGHTS_AHEAD = 30  # nights that profit from what one taught; plan.explore_usd covers as many
BELIEVED = 20.0  # times too fast or too slow; beyond that, something else was measured
NEGLIGIBLE_S = 1e-9


@dataclass(frozen=True, kw_only=True)
class Past:
    """What a night's updates took, relative to what the profile of that night predicted."""

    machine: str
    device: str
    measured_here: bool  # the profile was measured on that machine
    setting: Setting
    ratio: float  # seconds of an update / those predicted by profile and roofline, uncorrected


@dataclass(frozen=True, kw_only=True)
class Update:
    """An update by profile and roofline: seconds of a pass, and of summing two workers' gradients."""

    fixed_s: float
    per_sample_s: float
    within_s: float  # on one machine
    across_s: float  # on several


@dataclass(frozen=True, kw_only=True)
class Correction:
    """Logarithm of the actual over the predicted time of an update, and its deviation."""

    shift: float
    spread: float
    num_nights: int  # nights that the machine has run


@dataclass
class Calibration:
    """What earlier nights taught; `widen` and `needed` come from the scorecard."""

    past: Sequence[Past] = ()
    widen: float = 1.0
    needed: float = float("inf")
    runs: Mapping[tuple[str, int, int], int] = field(default_factory=dict)  # machine, batch size, count
    starts: Mapping[str, Sequence[float]] = field(default_factory=dict)  # by machine, times the prior
    hazard: "Hazard | None" = None  # of spot machines; None: the prior
    reached: Sequence["Reached"] = ()  # quality by samples and batch size
    decided: Sequence["Decided"] = ()  # what followed training
    left_out: list[str] = field(default_factory=list)  # why a night was ignored, one sentence each
    _fits: dict[tuple[str, Update], tuple["StepTime", "StepTime", float]] = field(default_factory=dict)
    _corrections: dict[tuple[str, Setting, Update], Correction] = field(default_factory=dict)
    _shared: dict[str, Correction] = field(default_factory=dict)
    _kin: "Array | None" = None

    def __post_init__(self) -> None:
        odd = [each for each in self.past if not 1 / BELIEVED < each.ratio < BELIEVED]
        self.past = [each for each in self.past if each not in odd]
        self.left_out.extend(
            f"{each.machine}: an update of {each.ratio:.3g} times the predicted time is left out; at more "
            f"than {BELIEVED:g} times too fast or too slow, something else was measured"
            for each in odd
        )

    def widened(self, spread: float) -> float:
        """Returns the factor for an interval of that spread: the scorecard's, but no more than needed."""
        return min(self.widen, max(1.0, self.needed / spread)) if spread > 0 else 1.0

    def correction(self, machine: str, device: str, setting: Setting, update: Update) -> Correction:
        """Returns how a machine differs from profile and roofline; computed once per setting."""
        nights = [each for each in self.past if each.machine == machine]
        if not nights:
            if machine not in self._shared:
                self._shared[machine] = self._by_kinship(machine, device)
            return self._shared[machine]
        key = (machine, setting, update)
        if key not in self._corrections:
            plain, fitted, night = self._fitted(machine, nights, update)
            before, (seconds, spread) = plain.predict([setting])[0], fitted.predict([setting], noisy=False)
            self._corrections[key] = Correction(
                shift=log(float(seconds[0]) / float(before[0])),
                spread=hypot(float(spread[0]), night),
                num_nights=len(nights),
            )
        return self._corrections[key]

    def _fitted(
        self, machine: str, nights: Sequence[Past], update: Update
    ) -> tuple["StepTime", "StepTime", float]:
        """Returns tonight's form before and after fitting this machine's nights, and their random spread."""
        import numpy as np

        from pipeline.prediction.throughput import StepTime

        if (machine, update) not in self._fits:
            prior = _prior(update, measured_here=nights[0].measured_here)
            plain = StepTime([], prior)
            by_form = plain.predict([each.setting for each in nights])[0]
            measurements, left_out = believable(
                [
                    Measurement(
                        workers=each.setting.workers,
                        micro_batch_size=each.setting.micro_batch_size,
                        num_passes=each.setting.num_passes,
                        step_s=float(seconds) * each.ratio,
                    )
                    for each, seconds in zip(nights, by_form, strict=True)
                ]
            )
            self.left_out.extend(f"{machine}: {each}" for each in left_out)
            fitted = StepTime(measurements, prior)
            apart = np.log([each.step_s for each in measurements] / fitted.predict(measurements)[0])
            squares = PSEUDO_NIGHTS * NIGHT**2 + float(apart @ apart)
            night = (squares / (PSEUDO_NIGHTS + len(measurements) - 1)) ** 0.5
            self._fits[machine, update] = plain, fitted, night
        return self._fits[machine, update]

    def _by_kinship(self, machine: str, device: str) -> Correction:
        """Returns the mean correction of the machines that have run, each weighted by what it has in common.

        A Gaussian with components of the job, the device and the machine, conditioned on the nights.
        """
        doubt = hypot(JOB, DEVICE, MACHINE)
        if not self.past:
            return Correction(shift=0.0, spread=doubt, num_nights=0)
        import numpy as np

        if self._kin is None:
            common = np.array([[_common(one, other) for one in self.past] for other in self.past])
            self._kin = np.asarray(np.linalg.inv(common + NIGHT**2 * np.eye(len(self.past))), np.float64)
        kin = np.array([each.device == device and not each.measured_here for each in self.past], float)
        own = JOB**2 + DEVICE**2 * kin
        weights: Array = self._kin @ own
        return Correction(
            shift=float(weights @ np.log([each.ratio for each in self.past])),
            spread=max(doubt**2 - float(weights @ own), NIGHT**2) ** 0.5,
            num_nights=0,
        )


def _common(one: Past, other: Past) -> float:
    """Returns the covariance of the logarithms of two nights' ratios."""
    device = one.device == other.device and not (one.measured_here or other.measured_here)
    machine = one.machine == other.machine and not one.measured_here
    return JOB**2 + DEVICE**2 * device + MACHINE**2 * machine


def _prior(update: Update, *, measured_here: bool) -> "Prior":
    """Returns the constants of the form by profile and roofline, and how far they may be off."""
    from pipeline.prediction import step_time

    off = JOB if measured_here else hypot(JOB, DEVICE, MACHINE)
    across = log(max(update.across_s, NEGLIGIBLE_S))
    within = log(max(update.within_s, NEGLIGIBLE_S)) - across
    return step_time.LEARNED.scaled(
        {
            step_time.FIXED: (log(max(update.fixed_s, NEGLIGIBLE_S)), off),
            step_time.PER_SAMPLE: (log(max(update.per_sample_s, NEGLIGIBLE_S)), off),
            step_time.ONE: (within, NETWORK),
            step_time.TWO: (0.0, NETWORK),
            step_time.MANY: (across, NETWORK),
            step_time.OVERLAP: NO_OVERLAP,
        }
    )


def ratio(*, elapsed_s: float, start_s: float, num_updates: int, update_s: float) -> float | None:
    """Returns the measured over the predicted seconds of an update; None where the start-up dominates.

    >>> ratio(elapsed_s=110, start_s=10, num_updates=100, update_s=0.8)
    1.25
    """
    if num_updates < 1 or elapsed_s <= 3 * start_s or update_s < NEGLIGIBLE_S:  # mostly start-up
        return None
    return (elapsed_s - start_s) / num_updates / update_s
