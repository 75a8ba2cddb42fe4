"""Forecasts what tonight's traffic can show, from the traffic of the last days.

A user of a day counts once, as in an experiment (`observations`); how many come in an hour and how much their
scores differ give the smallest effect that is shown at 80 % power (`unpaired.detectable`). Pure.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipeline.contract.units import DAY_S, HOUR_S
from pipeline.experiment.live_score import LISTS, LiveScore, Shown
from pipeline.experiment.ramp import Pace, clock_by
from pipeline.statistics import unpaired


@dataclass(frozen=True, kw_only=True)
class Volume:
    """How many users came in the last days, and how much their scores differed."""

    users_per_hour: float
    sd: float  # of a user's score, as its effect is measured; NaN where none is known
    days: float  # looked at


def volume(exposures: Iterable[Shown], *, now: float, days: float, by: LiveScore = LISTS) -> Volume:
    """Returns users an hour and the spread of their scores, by exposures of the last `days`, oldest first.

    Of users who are shown predictions, only those with a label count, as in `readout`.
    """
    scores: dict[tuple[str, int], list[float | None]] = {}
    first = now
    for shown in exposures:
        first = min(first, shown.time)
        score = by.of([shown], until=math.inf)
        scores.setdefault((shown.unit, int((now - shown.time) // DAY_S)), []).append(score)
    users = [[score for score in answers if score is not None] for answers in scores.values()]
    users = users if by.of_lists else [known for known in users if known]
    means = np.array([sum(known) / len(known) if known else 0.0 for known in users])
    rate = sum(map(bool, users)) / len(users) if users else 0.0
    hours = min(max((now - first) / HOUR_S, 1.0), days * 24)
    return Volume(
        users_per_hour=len(users) / hours,
        sd=float(means.std()) / rate if rate else math.nan,
        days=hours / 24,
    )


def forecast(before: Volume, *, pace: Pace, hours: float, alpha: float, margin: float) -> tuple[str, float]:
    """Returns what so many hours can show, in words, and the clock that `unpaired.effect` is tuned at."""
    clock = clock_by(pace, units_per_hour=before.users_per_hour, hours=hours)
    if clock <= 0 or not before.sd > 0:
        text = "no outcomes of the last days tell how much users differ, so what can be shown is not known"
        return text, max(clock, unpaired.TUNED_AT)
    least = unpaired.detectable(sd=before.sd, clock=clock, alpha=alpha)
    text = (
        f"at {before.users_per_hour:,.0f} users an hour, as in the last {before.days:.1f} days, "
        f"{hours:.1f} hours show {least:.4f} at 80 % power"
    )
    if least > margin:
        text += f", more than the margin {margin:g}, so that it may stay inconclusive"
    return text, clock
