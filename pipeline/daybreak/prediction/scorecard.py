"""Scores the predictions of earlier nights, and widens the interval where it held too rarely.

An interval of 90 % should hold on nine of ten nights. If it held on fewer than 85 % of the last 60, it was
too narrow, and is widened by the factor that would have made it hold on 90 % of them (split conformal
prediction, Vovk 2005), but never beyond the width of those widened intervals: tonight's may be wider already.
Plans record their own widening, so the factor always applies to the plain interval.

A job that went on to other machines, such as cheaper ones since it was ahead, took a time of which no
interval was given. Such a night is compared by the time that it would have taken at its rate on the planned
machines, or not at all where that rate is unknown.

Where it held on more than 95 %, and more often than an interval of 90 % does by chance, it is too wide. That
is noted without a warning and not corrected: a steady machine is not a fault, and early costs less than late.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import ceil, comb, log
from statistics import median

from daybreak.contract.formats import percent, percents
from daybreak.contract.record_parts import JobSpan, Rental
from daybreak.contract.record_types import Plan, Training
from daybreak.machines.startup import IN_RUN_S, Z90, num_devices
from daybreak.storage.ledger import Entry

NIGHTS = 60  # most that are scored
LEAST_NIGHTS = 10  # fewer say nothing about one in ten
NOMINAL, COVERED = 0.9, (0.85, 0.95)
UNLIKELY = 0.05
LEAST_S = 120.0  # before a restart, from which a rate is learned


@dataclass(frozen=True, kw_only=True)
class PredictionOutcome:
    """What was predicted for a night's training, and what happened."""

    night: str
    predicted_s: float
    low_s: float
    high_s: float
    actual_s: float  # of a night that moved to other machines: by its rate before
    finished: bool = True  # otherwise it was stopped, and would have taken longer
    widened: float = 1.0  # multiple of the plain interval

    @property
    def held(self) -> bool:
        """Whether the actual time lies in the interval."""
        return self.finished and self.low_s <= self.actual_s <= self.high_s

    @property
    def deviation(self) -> float:
        """Deviation of the logarithm that the plain interval implies, on the side of the actual time."""
        late = self.actual_s > self.predicted_s or not self.finished
        bound_s = self.high_s if late else self.low_s
        return abs(log(bound_s / self.predicted_s)) / Z90 / self.widened

    @property
    def apart(self) -> float:
        """Deviations of the plain interval between predicted and actual, on a scale of logarithms."""
        difference = log(self.actual_s / self.predicted_s)
        if not self.finished:
            difference = max(difference, log(self.high_s / self.predicted_s))
        return difference / self.deviation if self.deviation > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Scorecard:
    """How good the predictions of the last nights were."""

    outcomes: tuple[PredictionOutcome, ...]  # oldest first
    coverage: float  # share of nights whose interval held
    error: float  # median of |actual / predicted - 1|
    bias: float  # median of actual / predicted - 1
    widen: float  # factor for the next plain interval; 1: none
    needed: float  # deviation of the logarithm that is wide enough without widening
    warning: str  # "" where nothing is wrong
    note: str = ""  # on what is not a fault

    @property
    def num_nights(self) -> int:
        """Number of nights that were scored."""
        return len(self.outcomes)


@dataclass(frozen=True, kw_only=True)
class FirstRun:
    """The updates of a night until its first restart, or all of them, and the machines that took them."""

    rental: Rental
    device: str  # that the workers had, "2 x NVIDIA L4"; "" where nobody told
    elapsed_s: float
    num_updates: int


def first_rental(plan: Plan, training: Training) -> Rental | None:
    """Returns the machines that a night first trained on; None where its requests for them are forgotten."""
    began_at = training.ended_at and training.ended_at - timedelta(seconds=training.elapsed_s)
    ran = [one for one in _ran(training) if not began_at or one.asked_at <= began_at]
    if training.attempts and not ran:
        return None
    return ran[-1].rental if ran else plan.rental


def first_run(plan: Plan, training: Training) -> FirstRun | None:
    """Returns the first run of a night.

    None where its machines are not known, some of them never came, or it was too short to tell a rate.
    """
    rental = first_rental(plan, training)
    device = training.first_device if training.num_restarts else training.device
    if rental is None or (device and num_devices(device) < rental.num_machines):
        return None
    elapsed_s, num_updates = training.elapsed_s, training.num_updates
    if training.num_restarts:
        elapsed_s, num_updates = training.before_restart or (0.0, 0)
        if elapsed_s < LEAST_S or not num_updates:
            return None
    return FirstRun(rental=rental, device=device, elapsed_s=elapsed_s, num_updates=num_updates)


def alike(one: Rental, other: Rental) -> bool:
    """Returns whether rentals have the same machines, as many of them, in whatever region."""
    return (one.machine, one.num_machines, one.others) == (other.machine, other.num_machines, other.others)


def has_moved(plan: Plan, training: Training) -> bool:
    """Returns whether any of the training was on other machines than the plan's, in whatever region."""
    return any(not alike(one.rental, plan.rental) for one in _ran(training))


def within_interval(plan: Plan, training: Training) -> bool | None:
    """Returns whether training came to its end within the plan's interval.

    None where it moved to other machines, for which there was no interval.
    """
    if has_moved(plan, training):
        return None
    low_s, high_s = plan.forecast.interval
    return training.stopped_by == "finished" and low_s <= training.took_s <= high_s


def outcome(night: str, plan: Plan, training: Training) -> PredictionOutcome | None:
    """Returns what was predicted and what happened; None where there is nothing to compare."""
    forecast = plan.forecast
    if min(forecast.expected_s, *forecast.interval, training.elapsed_s) <= 0:
        return None
    ended = training.stopped_by == "finished" and not plan.sizes and training.num_samples < plan.num_samples
    if ended or training.stopped_by == "validation":  # the rest was never run, as nothing would get better
        return None
    moved = has_moved(plan, training)
    actual_s = _at_first_rate_s(plan, training) if moved else training.took_s
    if actual_s is None:
        return None
    return PredictionOutcome(
        night=night,
        predicted_s=forecast.expected_s,
        low_s=forecast.interval[0],
        high_s=forecast.interval[1],
        actual_s=actual_s,
        finished=moved or training.stopped_by == "finished",
        widened=forecast.widened,
    )


def card_of(entries: Sequence[Entry]) -> Scorecard | None:
    """Returns the scorecard of some nights, given oldest first; None without any that can be scored."""
    outcomes = [outcome(e.night.id, e.plan, e.training) for e in entries if e.plan and e.training]
    return scorecard([each for each in outcomes if each])


def scorecard(outcomes: Sequence[PredictionOutcome]) -> Scorecard | None:
    """Returns the scorecard of the last nights, given oldest first; None without any."""
    last = tuple(outcomes)[-NIGHTS:]
    if not last:
        return None
    ratios = [each.actual_s / each.predicted_s - 1 for each in last]
    coverage = sum(each.held for each in last) / len(last)
    widen, warning, note = 1.0, "", ""
    if len(last) >= LEAST_NIGHTS:
        widen = _widen([abs(each.apart) for each in last])
        warning, note = _warning(coverage, widen, len(last)), _note(coverage, len(last))
    return Scorecard(
        outcomes=last,
        coverage=coverage,
        error=median(abs(ratio) for ratio in ratios),
        bias=median(ratios),
        widen=widen,
        needed=widen * median(each.deviation for each in last),
        warning=warning,
        note=note,
    )


def _ran(training: Training) -> list[JobSpan]:
    return [one for one in training.attempts if one.ran_at]


def _at_first_rate_s(plan: Plan, training: Training) -> float | None:
    """Returns the seconds that training would have taken at its first rate, on the plan's machines.

    None where that is unknown, or where the batch may grow.
    """
    first = first_run(plan, training)
    if first is None or not alike(first.rental, plan.rental) or plan.sizes:
        return None
    num_updates = ceil(plan.num_samples / plan.batch_size)
    work_s = (first.elapsed_s - IN_RUN_S) * num_updates / first.num_updates
    return (training.start_s or 0.0) + IN_RUN_S + work_s


def _widen(apart: Sequence[float]) -> float:
    """Returns the factor that widens the plain interval to hold on 90 % of nights; 1 if it nearly did."""
    plain = sum(each <= Z90 for each in apart) / len(apart)
    if plain >= COVERED[0]:
        return 1.0
    place = min(len(apart), ceil(0.9 * (len(apart) + 1))) - 1
    return max(1.0, sorted(apart)[place] / Z90)


def _warning(coverage: float, widen: float, num_nights: int) -> str:
    if coverage < COVERED[0]:
        share, least = percents(coverage, COVERED[0])
        held = f"the 90 % interval held on {share} of the last {num_nights} nights"
        change = f"it is {widen:.2g} times as wide from now on" if widen > 1 else "it has been widened since"
        return f"{held}, fewer than {least}; {change}: look at what changed on the machine"
    return ""


def _note(coverage: float, num_nights: int) -> str:
    held = round(coverage * num_nights)
    by_chance = sum(
        comb(num_nights, k) * NOMINAL**k * (1 - NOMINAL) ** (num_nights - k)
        for k in range(held, num_nights + 1)
    )
    if coverage <= COVERED[1] or by_chance > UNLIKELY:
        return ""
    return (
        f"the 90 % interval held on {percent(coverage)} of the last {num_nights} nights, so it is wider than "
        f"it has to be; deadlines are kept with more to spare than asked for"
    )
