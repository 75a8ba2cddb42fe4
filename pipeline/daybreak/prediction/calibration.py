"""Corrects predicted update times by measurements of earlier nights, with the remaining uncertainty.

An earlier night records how much longer an update took than its own profile predicted: a ratio, so that it
stays valid when model or profile change. All nights on all machines are fitted together by the model of
throughput.py, around the prediction of profile and roofline for each machine. So new counts and batch sizes
are predicted from known ones, and new machines from known machines of the same job and kind of device.

Nights may be wrong. A physically impossible night (faster than its operations at the device's peak rate) is
left out, and so is a night that the newest others at the same setting contradict. Every other night counts,
and widens the interval where it contradicts the forecast: a single night may be a fluke, so the interval
reaches from its measurement back to the forecast, around the middle; after n nights it covers an n^2-th of
that way.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import exp, isfinite, log
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Protocol

from daybreak.machines.startup import Z90
from daybreak.prediction.measurements import Measurement, StepSetting
from daybreak.prediction.priors import NAMES, Priors, priors

if TYPE_CHECKING:
    from daybreak.prediction.efficiency import Reached
    from daybreak.prediction.throughput import MachineKind, StepTime
    from daybreak.prediction.time_budget import Decided

NIGHTS_AHEAD = 30  # nights that profit from what one taught; plan.explore_usd covers as many
NEWEST = 5  # nights at a setting that may contradict another there, of which most have to agree
CONTRADICTS = 5.0  # deviations of a night from the median of those
NEGLIGIBLE_S = 1e-9
LEAST_SHARE = 0.02  # of a pass, that either part of it is given


@dataclass(frozen=True, kw_only=True)
class PastUpdateTime:
    """Measured seconds of an update in an earlier night, relative to that night's prediction."""

    machine: str
    device: str
    measured_here: bool  # the profile was measured on that machine
    setting: StepSetting
    update: "Update"  # by profile and roofline of that night
    ratio: float  # seconds of an update / those predicted by profile and roofline, uncorrected
    least_ratio: float = 0.0  # of its operations at the device's peak rate; 0: not known


@dataclass(frozen=True, kw_only=True)
class Update:
    """An update by profile and roofline: seconds of a pass, and of summing two workers' gradients."""

    fixed_s: float
    per_sample_s: float
    within_s: float  # on one machine
    across_s: float  # on several
    fixed_error: float = 0.0  # deviation of the logarithm beyond the prior's, by the profile's line or a CPU
    per_sample_error: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Correction:
    """Logarithm of the actual over the predicted time of an update, and its deviation."""

    shift: float
    spread: float
    num_nights: int  # nights that the machine has run


class SpotHazard(Protocol):
    """How often spot machines are lost."""

    def mean_time_to_loss_s(self, *, num_machines: int, within_s: float) -> float:
        """Returns the mean seconds of use per loss of one of the machines, in jobs of `within_s` at most."""


@dataclass
class CostCalibration:
    """What earlier nights taught, by `of`; `widen` and `needed` come from the scorecard."""

    past: Sequence[PastUpdateTime] = ()  # that are believed
    widen: float = 1.0
    needed: float = float("inf")
    runs: Mapping[tuple[str, int, int], int] = field(default_factory=dict)  # machine, batch size, count
    starts: Mapping[str, Sequence[float]] = field(default_factory=dict)  # by machine, times the prior
    hazard: SpotHazard | None = None  # None: the mean of machines/losses.py
    reached: Sequence["Reached"] = ()  # quality by samples and batch size
    decided: Sequence["Decided"] = ()  # what followed training
    left_out: list[str] = field(default_factory=list)  # why a night was ignored, one sentence each
    priors: Priors | None = None  # None: priors.json
    overlapped: bool = False  # gradients are summed while others are still computed
    night: float | None = None  # deviation from night to night; None: that of the priors
    _corrections: dict[tuple[str, StepSetting, Update], Correction] = field(default_factory=dict)
    _fit: "StepTime | None" = None

    @classmethod
    def of(cls, past: Sequence[PastUpdateTime], **known: Any) -> "CostCalibration":
        """Returns what nights taught that may be true, and why others are left out."""
        kept, left_out = believed(past)
        return cls(past=kept, left_out=left_out, **known)

    def widened(self, spread: float) -> float:
        """Returns the factor for an interval of that spread: the scorecard's, but no more than needed."""
        return min(self.widen, max(1.0, self.needed / spread)) if spread > 0 else 1.0

    def correction(
        self, machine: str, device: str, setting: StepSetting, update: Update, *, here: bool
    ) -> Correction:
        """Returns how a machine differs from profile and roofline in a setting.

        `here` says that the profile was measured on that machine.
        """
        return self.corrections(machine, device, [setting], update, here=here)[0]

    def corrections(
        self, machine: str, device: str, settings: Sequence[StepSetting], update: Update, *, here: bool
    ) -> list[Correction]:
        """Returns how a machine differs from profile and roofline; computed once per setting."""
        new = [each for each in settings if (machine, each, update) not in self._corrections]
        if new:
            corrected = self._corrected(machine, device, new, update, here=here)
            self._corrections |= {(machine, setting, update): each for setting, each in corrected.items()}
        return [self._corrections[machine, each, update] for each in settings]

    def _corrected(
        self, name: str, device: str, settings: Sequence[StepSetting], update: Update, *, here: bool
    ) -> dict[StepSetting, Correction]:
        import numpy as np

        model, num_nights = self._fitted(), self._num_nights[name]
        ran = next((each for each in model.machines if each.name == name), None)
        kinds: dict[MachineKind, list[StepSetting]] = {}
        for setting in settings:
            there = ran or _machine(name, device, update, setting.micro_batch_size, profiled=here)
            kinds.setdefault(there, []).append(setting)
        corrections = {}
        for there, alike in kinds.items():
            forecast = model.forecast(alike, there)
            shifts = forecast.log_s - forecast.before_log_s
            beyond = np.sign(shifts) * np.maximum(0.0, np.abs(shifts) - Z90 * forecast.before_spread)
            halfway = beyond / 2 / max(1, num_nights) ** 2
            shifts, spreads = shifts - halfway, np.hypot(forecast.spread, np.abs(halfway) / Z90)
            for setting, shift, spread in zip(alike, shifts, spreads, strict=True):
                corrections[setting] = Correction(
                    shift=float(shift), spread=float(spread), num_nights=num_nights
                )
        return corrections

    @cached_property
    def _num_nights(self) -> Counter[str]:
        """Nights by machine."""
        return Counter(each.machine for each in self.past)

    def _fitted(self) -> "StepTime":
        """Returns the model of all machines that have run."""
        if self._fit is None:
            from daybreak.prediction.throughput import StepTime

            newest = {each.machine: each for each in self.past}
            names = list(newest)
            micro = exp(fmean(log(each.setting.micro_batch_size) for each in self.past)) if self.past else 1.0
            machines = [
                _machine(each.machine, each.device, each.update, micro, profiled=each.measured_here)
                for each in newest.values()
            ]
            measurements: list[Measurement] = []
            machine_of = [names.index(each.machine) for each in self.past]
            for place, machine in enumerate(machines):
                plain = StepTime([], machine_of=[], machines=[machine], priors=self.prior)
                there = [each for each in self.past if each.machine == names[place]]
                by_form = plain.predict([each.setting for each in there], machine)[0]
                measurements += [
                    Measurement(
                        workers=each.setting.workers,
                        micro_batch_size=each.setting.micro_batch_size,
                        num_passes=each.setting.num_passes,
                        sync=each.setting.sync,
                        step_s=float(seconds) * each.ratio,
                    )
                    for each, seconds in zip(there, by_form, strict=True)
                ]
            machine_of = sorted(machine_of)
            self._fit = StepTime(measurements, machine_of=machine_of, machines=machines, priors=self.prior)
        return self._fit

    @property
    def misfit(self) -> float:
        """Median of |log| between nights and what the others predict for them; 0 without nights."""
        return self._fitted().misfit

    @cached_property
    def prior(self) -> Priors:
        """Returns the priors of update times, with how gradients are summed."""
        before = self.priors or priors()
        night = before.assumed.night if self.night is None else self.night
        with_noise = replace(before, residual=replace(before.residual, noise=night))
        return with_noise if self.overlapped else with_noise.without_overlap()


def believed(past: Sequence[PastUpdateTime]) -> tuple[list[PastUpdateTime], list[str]]:
    """Returns the nights that may be true, oldest first as given, and a sentence for each that may not."""
    kept: list[PastUpdateTime] = []
    left_out: list[str] = []
    for each in past:
        if not (isfinite(each.ratio) and each.ratio > each.least_ratio):
            left_out.append(
                f"{each.machine}: an update of {each.ratio:.3g} times the predicted time is left out; "
                + (
                    f"its operations alone take {each.least_ratio:.3g} times at the device's peak rate"
                    if 0 < each.ratio < float("inf")
                    else "it is not a valid time"
                )
            )
        else:
            kept.append(each)
    believed_: list[PastUpdateTime] = []
    for each in kept:
        others = [other for other in kept if other is not each and _same_setting(each, other)][-NEWEST:]
        reason = _contradicted(each, others)
        if reason:
            left_out.append(f"{each.machine}: {reason}")
        else:
            believed_.append(each)
    return believed_, left_out


def _same_setting(one: PastUpdateTime, other: PastUpdateTime) -> bool:
    return one.machine == other.machine and one.setting == other.setting


def _contradicted(night: PastUpdateTime, others: Sequence[PastUpdateTime]) -> str:
    """Returns in words that the newest others at the same setting contradict a night; or ""."""
    if len(others) < 3:
        return ""
    night_to_night = priors().assumed.night
    middle = median(log(other.ratio) for other in others)
    spread = max(night_to_night, 1.4826 * median(abs(log(other.ratio) - middle) for other in others))
    agree = sum(abs(log(other.ratio) - middle) <= CONTRADICTS / 2 * night_to_night for other in others)
    # Most of all nights there, itself among them: of two against two nobody knows which were true.
    if 2 * agree <= len(others) + 1 or abs(log(night.ratio) - middle) <= CONTRADICTS * spread:
        return ""
    return (
        f"an update of {night.ratio:.3g} times the predicted time is left out; {agree} newer nights in the "
        f"same setting took {exp(middle):.3g} times"
    )


def _machine(name: str, device: str, update: Update, micro: float, *, profiled: bool) -> "MachineKind":
    """Returns a machine as the model sees it: the constants of the form by profile and roofline.

    `micro` is about how many samples a pass has: a fixed part that is nothing beside them is not nothing.
    """
    from daybreak.prediction.step_time import FIXED, MANY, ONE, PER_SAMPLE, TWO
    from daybreak.prediction.throughput import MachineKind

    whole = update.fixed_s + update.per_sample_s * micro
    constants, errors = [0.0] * len(NAMES), [0.0] * len(NAMES)
    constants[FIXED] = log(max(update.fixed_s, LEAST_SHARE * whole, NEGLIGIBLE_S))
    constants[PER_SAMPLE] = log(max(update.per_sample_s, LEAST_SHARE * whole / micro, NEGLIGIBLE_S))
    constants[ONE] = log(max(update.within_s, NEGLIGIBLE_S))
    constants[TWO] = constants[MANY] = log(max(update.across_s, NEGLIGIBLE_S))
    errors[FIXED], errors[PER_SAMPLE] = update.fixed_error, update.per_sample_error
    return MachineKind(
        name=name, device=device, profiled=profiled, constants=tuple(constants), errors=tuple(errors)
    )


def ratio(*, elapsed_s: float, start_s: float, num_updates: int, update_s: float) -> float | None:
    """Returns the measured over the predicted seconds of an update; None where the start-up dominates.

    >>> ratio(elapsed_s=110, start_s=10, num_updates=100, update_s=0.8)
    1.25
    """
    if num_updates < 1 or elapsed_s <= 3 * start_s or update_s < NEGLIGIBLE_S:  # mostly start-up
        return None
    return (elapsed_s - start_s) / num_updates / update_s


@cache
def nothing() -> CostCalibration:
    """Returns what is known without nights."""
    return CostCalibration()
