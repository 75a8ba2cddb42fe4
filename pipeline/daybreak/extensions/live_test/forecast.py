"""Forecasts what tonight's traffic can show, and how long that takes, from the traffic of the last days.

A user of a day counts once, as in an experiment (`observations`); how many come in an hour and how much their
scores differ give the smallest effect that is shown at 80 % power (`unpaired.detectable`). Pure.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from daybreak.contract.formats import decimals
from daybreak.contract.units import DAY_S, HOUR_S
from daybreak.extensions.live_test.live_score import LISTS, LiveScore, ShownExposure
from daybreak.extensions.live_test.looks import NUM_LOOKS, last_bound
from daybreak.extensions.live_test.ramp import Pace, clock_by
from daybreak.statistics import unpaired
from daybreak.statistics.paired import POWER

PRECISION_H = 0.05
LEAST_POWER = 0.5  # a test that more likely than not ends without a proof is not worth hours of training


@dataclass(frozen=True, kw_only=True)
class Volume:
    """How many users came in the last days, and how much their scores differed."""

    users_per_hour: float
    sd: float  # of a user's score, as its effect is measured; NaN where none is known
    days: float  # looked at


def volume(exposures: Iterable[ShownExposure], *, now: float, days: float, by: LiveScore = LISTS) -> Volume:
    """Returns users an hour and the spread of their scores, by exposures of the last `days`, oldest first.

    Of users who are shown predictions, only those with a label count, as in `readout`.
    """
    scores: dict[tuple[str, int], list[float | None]] = {}
    first = now
    for shown in exposures:
        first = min(first, shown.time)
        score = by.of([shown], window_s=math.inf)
        scores.setdefault((shown.unit, int((now - shown.time) // DAY_S)), []).append(score)
    if by.of_lists:  # a list without an outcome scores 0
        means = np.array(
            [sum(score or 0.0 for score in answers) / len(answers) for answers in scores.values()]
        )
        rates = [sum(score is not None for score in answers) / len(answers) for answers in scores.values()]
    else:
        users = [[score for score in answers if score is not None] for answers in scores.values()]
        means = np.array([sum(known) / len(known) for known in users if known])
        rates = [1.0] * len(means)
    rate = sum(rates) / len(rates) if rates else 0.0
    hours = min(max((now - first) / HOUR_S, 1.0), days * 24)
    return Volume(
        users_per_hour=len(means) / hours,
        sd=float(means.std()) / rate if rate else math.nan,
        days=hours / 24,
    )


def forecast(before: Volume, *, pace: Pace, hours: float, alpha: float, margin: float) -> str:
    """Returns what so many hours can show, in words."""
    least = detectable(before, pace=pace, hours=hours, alpha=alpha)
    if math.isinf(least):
        return "no outcomes of the last days tell how much users differ, so what can be shown is not known"
    text = (
        f"at {before.users_per_hour:,.0f} users an hour, as in the last {before.days:.1f} days, "
        f"{hours:.1f} hours show {decimals(least)[0]} at 80 % power"
    )
    if least > margin:
        text += f", more than the margin {margin:g}, so that it may stay inconclusive"
    return text


def detectable(before: Volume, *, pace: Pace, hours: float, alpha: float, power: float = POWER) -> float:
    """Returns the smallest true effect that so many hours show with this power; infinity if nothing tells."""
    shares = [number / NUM_LOOKS for number in range(1, NUM_LOOKS + 1)]
    clocks = [clock_by(pace, units_per_hour=before.users_per_hour, hours=hours * share) for share in shares]
    known = [place for place, clock in enumerate(clocks) if clock > max([0.0, *clocks[:place]])]
    if not known or not before.sd > 0:
        return math.inf
    bound = last_bound([clocks[place] for place in known], [shares[place] for place in known], alpha=alpha)
    return unpaired.detectable(sd=before.sd, clock=clocks[-1], alpha=alpha, power=power, bound=bound)


def hours_needed(before: Volume, *, pace: Pace, alpha: float, margin: float, longest: float) -> float:
    """Returns the hours within which a test shows one margin at 80 % power, at most `longest`.

    Returns `longest` where even all these hours give less power, but at least `LEAST_POWER`. Returns 0 where
    the power is below that, or where the spread among users is unknown.
    """

    def shows(hours: float, power: float) -> bool:
        return detectable(before, pace=pace, hours=hours, alpha=alpha, power=power) <= margin

    if not shows(longest, POWER):
        return longest if shows(longest, LEAST_POWER) else 0.0
    low, high = 0.0, longest
    while high - low > PRECISION_H:
        middle = (low + high) / 2
        low, high = (low, middle) if shows(middle, POWER) else (middle, high)
    return high


def scores_before(exposures: Iterable[ShownExposure], *, by: LiveScore = LISTS) -> dict[str, float]:
    """Returns the mean score of each unit that has one; of lists, that is 0 where nothing was taken."""
    scores: dict[str, list[float]] = {}
    for shown in exposures:
        score = by.of([shown], window_s=math.inf)
        if score is None and by.of_lists:
            score = 0.0
        if score is not None:
            scores.setdefault(shown.unit, []).append(score)
    return {unit: sum(known) / len(known) for unit, known in scores.items()}
