"""Chooses how many days a night prepares and how wide a model it trains, by the scores of earlier nights.

Data are prepared and the model is profiled before a plan is made, so `open` chooses, from earlier nights
alone. The first value that `plan.quality_choices` lists for a key is the recipe's. While `plan.explore_usd`
has dollars left, every other night tries the next value. After `MOST_TRIES` nights that value is judged,
once, since a test after each night would soon take chance for a gain. If the lower end of the 90 % interval
of the gain is above zero, and the last nights with the value were done within tonight's hours and dollars, it
is kept from then on, and the next value is tried.

Only nights are compared that began the same way, warm or cold, and agree in everything else that makes the
model; nights with other lengths, or other values of another key, are compared among themselves
(learning_curve.py). Weights of one model do not fit another, so arguments of the workload change only on
nights that begin cold; other nights keep the arguments of the version that serves. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median_high

from daybreak.contract.formats import dollars, duration
from daybreak.contract.record_parts import Chosen
from daybreak.contract.units import HOUR_S
from daybreak.extensions.exploration.learning_curve import Gain, LearningCurve, QualityNight, length_of
from daybreak.extensions.exploration.quality import MOST_TRIES
from daybreak.prediction.efficiency import Choices, complete

OF_THE_WORKLOAD = "workload."  # how keys begin that change the model
LOOKED_AT = 3  # last nights with the same values, of which most must have been done in time
Values = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Tonight:
    """What is known of a night when its values are chosen."""

    values: Mapping[str, int]  # by key, as params.yaml has them
    set_by_person: frozenset[str]  # keys that are left alone
    serving: Mapping[str, int]  # values of the version that serves, of arguments of the workload
    rest: str  # digest of all else that decides the model
    warm: bool
    passes: float  # over the samples, by the recipe
    hours: float  # from its opening to the end of training, at most
    budget_usd: float
    left_usd: float  # of `plan.explore_usd`


def choose(choices: Choices, tonight: Tonight, nights: Sequence[QualityNight]) -> Chosen:
    """Returns the values of tonight, and why; `nights` are those before, oldest first."""
    alike = [
        night for night in nights if night.chosen.rest == tonight.rest and night.warm in (tonight.warm, None)
    ]
    values, reasons, free = dict(tonight.values), {}, []
    for key in choices:
        if key in tonight.set_by_person:
            reasons[key] = "as a person set it"
            continue
        values[key] = tonight.serving.get(key, values[key])
        if tonight.warm and key.startswith(OF_THE_WORKLOAD):
            reasons[key] = "and changes only where a night begins cold"
        else:
            free.append(key)
    for key in free:
        values[key], reasons[key] = _best(key, choices, values, tonight, alike)
    chosen = Chosen(values=values, rest=tonight.rest)
    for key in free:
        if trial := _trial(key, choices, values, tonight, alike):
            more_usd, usual_usd = trial.usd - trial.usual_usd, trial.usual_usd
            reasons[key] = (
                f"not {values[key]}, to learn what it adds, for about {dollars(max(0, more_usd))} more"
            )
            chosen = Chosen(
                values={**values, key: trial.value}, rest=tonight.rest, tried=key, usual_usd=usual_usd
            )
            break
    says = (f"{key} is {chosen.values[key]}, {reasons[key]}" for key in choices)
    return replace(chosen, reason="; ".join(says))


@dataclass(frozen=True, kw_only=True)
class _NightCost:
    """Hours until training ended, and what it cost."""

    hours: float
    usd: float

    def fits(self, tonight: Tonight) -> bool:
        return self.hours <= tonight.hours and self.usd <= tonight.budget_usd


@dataclass(frozen=True, kw_only=True)
class _TriedValue:
    """A value that tonight may try, the dollars of such a night, and those of a usual night."""

    value: int
    usd: float
    usual_usd: float


def _best(
    key: str, choices: Choices, values: Values, tonight: Tonight, nights: Sequence[QualityNight]
) -> tuple[int, str]:
    """Returns the value of a key that is known to be best, beside those of the others, and why."""
    value, curve = values[key], _curve(key, choices, tonight, nights)
    why = "as in the version that serves" if value != choices[key][0] else ""
    for larger in [each for each in choices[key] if each > value]:
        took, gain = _took(nights, {**values, key: larger}, choices), _judged(curve, larger, value)
        too_much = _too_much(took, tonight)
        if gain is None and too_much:
            return value, why or f"as nights with {larger} {too_much}"
        if gain is None:
            num = curve.num_nights[larger]
            return value, why or f"as {num} of the {MOST_TRIES} nights that judge {larger} have been"
        adds = _adds(gain, larger, value)
        if gain.low <= 0:
            return value, why or f"as {larger} may add nothing: {adds}"
        if took is None or too_much:
            return value, why or f"as {adds}, but {too_much or 'none beside the other values of tonight'}"
        value, why = larger, f"not {value}, as {adds}"
    return value, why or "the largest"


def _trial(
    key: str, choices: Choices, values: Values, tonight: Tonight, nights: Sequence[QualityNight]
) -> _TriedValue | None:
    """Returns the value of a key that tonight may find out about; None where there is none, or none tonight.

    A value that no night has had is expected to take as many times as long as it is larger; of the arguments
    of the workload, the square of that.
    """
    now, curve = values[key], _curve(key, choices, tonight, nights)
    larger = next((each for each in choices[key] if each > now), None)
    usual = _took(nights, values, choices)
    if larger is None or usual is None or tonight.left_usd <= 0:
        return None
    num_tries, gain = curve.num_nights[larger], curve.gain(larger, base=now)
    is_settled = num_tries >= MOST_TRIES or (gain is not None and gain.high < 0)
    was_usual = complete(nights[-1].chosen.values, choices) == values
    if is_settled or not was_usual or num_tries >= curve.num_nights[now]:
        return None
    times = (larger / now) ** (2 if key.startswith(OF_THE_WORKLOAD) else 1)
    expected = _NightCost(hours=usual.hours * times, usd=usual.usd * times)
    takes = _took(nights, {**values, key: larger}, choices) or expected
    if not takes.fits(tonight) or takes.usd - usual.usd > tonight.left_usd:
        return None
    return _TriedValue(value=larger, usd=takes.usd, usual_usd=usual.usd)


def _curve(key: str, choices: Choices, tonight: Tonight, nights: Sequence[QualityNight]) -> LearningCurve:
    """Returns the scores of nights by the value of a key, and what else differed among them."""
    levels, scores, others = [], [], []
    for night in nights:
        length = length_of(night.passes / tonight.passes) if night.passes else None
        if night.score is not None and night.warm is not None and length is not None:
            values = complete(night.chosen.values, choices)
            levels.append(float(values.pop(key)))
            scores.append(night.score)
            others.append((length, *values.items()))
    return LearningCurve(levels=tuple(levels), scores=tuple(scores), others=tuple(others))


def _judged(curve: LearningCurve, value: int, base: int) -> Gain | None:
    """Returns what a value adds by the nights until it had been tried often enough; None before that."""
    if curve.num_nights[value] < MOST_TRIES:
        return None
    return curve.until(value, MOST_TRIES).gain(value, base=base)


def _took(nights: Sequence[QualityNight], values: Values, choices: Choices) -> _NightCost | None:
    """Returns what most of the last nights with these values took, at most; None where there were none."""
    last = [night for night in nights if complete(night.chosen.values, choices) == values][-LOOKED_AT:]
    if not last:
        return None
    hours, usd = median_high(night.hours for night in last), median_high(night.usd for night in last)
    return _NightCost(hours=hours, usd=usd)


def _too_much(took: _NightCost | None, tonight: Tonight) -> str:
    """Returns what nights did that took more than tonight has; "" if they did not."""
    if took is None or took.fits(tonight):
        return ""
    if took.hours == inf:
        return "did not train to the end"
    if took.hours > tonight.hours:
        had, lasted = duration(tonight.hours * HOUR_S), duration(took.hours * HOUR_S)
        return f"took {lasted} until training ended, of {had}"
    return f"cost {dollars(took.usd)}, of {dollars(tonight.budget_usd)}"


def _adds(gain: Gain, value: int, base: int) -> str:
    return f"{MOST_TRIES} nights with {value} added {gain} to the score of those with {base}"
