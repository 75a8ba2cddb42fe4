"""Turns the log of an experiment into independent observations: a unit, each time its arm is left to chance.

Exposures of a user are correlated, and a ramp turns users of the champion into users of the challenger. Both
are solved by asking what was still left to chance. A unit's place in [0, 1) is drawn once; it meets the
challenger where its place is below the share. Before its first exposure the place may be anywhere; after
an exposure at share s it is known to be below s (challenger) or not (champion). So where all that was seen
leaves [low, high), the chance to meet the challenger at share s is

    (s - low) / (high - low), within [0, 1]

An exposure with a chance between 0 and 1 opens an observation, which takes in the unit's exposures within the
window after it; other exposures were certain, so they are no evidence about the models. A user who saw the
champion at 5 % so counts anew at 25 %, with chance 20/95: in order of time the arms are a sequence of coins
with known chances, which is all that `e_process`, `srm` and `unpaired` need.

Later visits are in the same arm, but a model may fail from the second visit on. So an observation keeps the
unit's exposures at the same share after the window (`later`), and units that come back at a later share S, in
their first arm at share s, are separate observations (`returned`). Among units that did not change arms in
between, a unit met the challenger with the chance s / (s + 1 - S); each is still one coin, the same as
before. Pure.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from daybreak.contract.units import DAY_S
from daybreak.extensions.live_test.live_score import LISTS, LiveScore, ShownExposure

CHALLENGER = "challenger"
Floats = NDArray[np.float64]


@dataclass
class Observation:
    """Exposures of a unit that count together; the arm of the first was left to chance."""

    treated: bool  # met the challenger
    chance: float  # to meet it
    share: float
    time: float  # of the first exposure
    exposures: list[ShownExposure] = field(default_factory=list)  # within the window
    later: list[ShownExposure] = field(
        default_factory=list
    )  # after it, at the same share and in the same arm
    returned_at: float = math.inf  # when the unit first came after the window, to whichever arm
    window_s: float = math.inf
    novelty_s: float = 0.0  # after the first exposure, before exposures are scored

    @property
    def judged(self) -> list[ShownExposure]:
        """Returns the exposures that are scored: those within a window after the novelty has worn off."""
        if not self.novelty_s:
            return self.exposures
        begins = self.time + self.novelty_s
        shown = (*self.exposures, *self.later)
        return [one for one in shown if begins <= one.time <= begins + self.window_s]

    @property
    def attributes(self) -> Sequence[tuple[str, str]]:
        """Returns the attributes that a client sent before the unit met its arm, by name."""
        return self.exposures[0].attributes

    def until(self, after_s: float) -> list[ShownExposure]:
        """Returns the exposures within so many seconds of the first."""
        shown = (*self.exposures, *self.later)
        return [one for one in shown if one.time <= self.time + after_s]

    def score(self, by: LiveScore = LISTS, *, window_s: float) -> float | None:
        """Score of the exposures by their outcomes; None: there is none."""
        return by.of(judged, window_s=window_s) if (judged := self.judged) else None

    def answered(self, by: LiveScore = LISTS, *, window_s: float) -> float:
        """Returns the share of the exposures with an outcome."""
        return by.answered(self.judged, window_s=window_s)

    def came_back(self, *, after_s: float, until_s: float) -> bool:
        """Returns whether the unit came again so many seconds after the first exposure, to whichever arm."""
        times = (*(one.time for one in self.exposures), self.returned_at)
        return any(self.time + after_s < time <= self.time + until_s for time in times)


@dataclass(frozen=True, kw_only=True)
class ObservationLog:
    """All observations of an experiment, in order of time."""

    observations: tuple[Observation, ...]
    impossible: int  # exposures in an arm that the unit could not be in
    # of a unit's first answer at the last share above 0, by whether the challenger gave it
    latencies_s: dict[bool, Floats]
    returned: tuple[Observation, ...] = ()
    frequent: tuple[Observation, ...] = ()  # of units that come too often, which are left out of the others
    max_visits: int = 0  # of a unit in a day

    @property
    def swapped(self) -> "ObservationLog":
        """The same with the arms exchanged: is the champion worse than the challenger?"""

        def swapped(observations: tuple[Observation, ...]) -> tuple[Observation, ...]:
            return tuple(replace(one, treated=not one.treated, chance=1 - one.chance) for one in observations)

        return ObservationLog(
            observations=swapped(self.observations),
            impossible=self.impossible,
            latencies_s={not ours: values for ours, values in self.latencies_s.items()},
            returned=swapped(self.returned),
            frequent=swapped(self.frequent),
            max_visits=self.max_visits,
        )

    def counts(self, share: float | None = None) -> tuple[int, int]:
        """Observations of challenger and champion; at one share only, if given."""
        at = [one.treated for one in self.observations if share is None or one.share == share]
        return sum(at), len(at) - sum(at)


def observe(
    exposures: Iterable[ShownExposure], *, window_s: float, novelty_s: float = 0.0, max_visits: int = 0
) -> ObservationLog:
    """Returns the observations among an experiment's exposures, which come oldest first.

    Args:
        exposures: of the experiment.
        window_s: seconds after its first exposure in which those of a unit count together.
        novelty_s: seconds after its first exposure in which a unit is not scored.
        max_visits: of a unit in a day, above which it is left out; 0: none is.
    """
    visits: Counter[tuple[str, float]] = Counter()
    places: dict[str, tuple[float, float]] = {}
    first: dict[str, Observation] = {}
    opened: dict[str, Observation] = {}
    again: dict[tuple[str, float], Observation] = {}
    observations: list[Observation] = []
    latencies: dict[bool, dict[str, float]] = {True: {}, False: {}}
    waited_for: dict[str, list[Observation]] = {}  # of units that have not returned yet
    impossible, share = 0, 0.0
    for shown in exposures:
        ours = shown.arm == CHALLENGER
        visits[shown.unit, shown.time // DAY_S] += 1
        if shown.share > 0:
            if shown.share != share:  # the hours of another share may have been busier ones
                share, latencies = shown.share, {True: {}, False: {}}
            latencies[ours].setdefault(shown.unit, shown.latency_s)
        low, high = places.get(shown.unit, (0.0, 1.0))
        chance = min(max((shown.share - low) / (high - low), 0.0), 1.0)
        if chance == (0.0 if ours else 1.0) or math.isnan(shown.share):
            impossible += 1
            continue
        waited_for[shown.unit] = _still_gone(waited_for.get(shown.unit, []), shown.time, window_s=window_s)
        last = opened.get(shown.unit)
        if 0 < chance < 1:
            last = Observation(
                treated=ours,
                chance=chance,
                share=shown.share,
                time=shown.time,
                window_s=window_s,
                novelty_s=novelty_s,
            )
            opened[shown.unit] = last
            observations.append(last)
            waited_for[shown.unit].append(last)
            places[shown.unit] = (low, shown.share) if ours else (shown.share, high)
        if last and last.treated == ours and last.share == shown.share:
            (last.exposures if shown.time <= last.time + window_s else last.later).append(shown)
        began = first.setdefault(shown.unit, last) if last else None
        if began and began.treated == ours and began.share < shown.share < 1:
            back = again.get((shown.unit, shown.share))
            if back is None:
                coin = began.share / (began.share + 1 - shown.share)
                back = Observation(treated=ours, chance=coin, share=shown.share, time=shown.time)
                again[shown.unit, shown.share] = back
            (back.exposures if shown.time <= back.time + window_s else back.later).append(shown)
    frequent = {unit for (unit, _), number in visits.items() if max_visits and number > max_visits}
    return ObservationLog(
        observations=tuple(one for one in observations if one.exposures[0].unit not in frequent),
        impossible=impossible,
        latencies_s={
            ours: np.array([s for unit, s in of.items() if unit not in frequent], dtype=np.float64)
            for ours, of in latencies.items()
        },
        returned=tuple(one for (unit, _), one in again.items() if unit not in frequent),
        frequent=tuple(one for one in observations if one.exposures[0].unit in frequent),
        max_visits=max_visits,
    )


def arms(observations: Sequence[Observation]) -> NDArray[np.bool_]:
    """Returns which observations met the challenger, shape [n]."""
    return np.array([one.treated for one in observations], dtype=bool)


def chances(observations: Sequence[Observation]) -> Floats:
    """Returns the chance of each to meet the challenger, shape [n]."""
    return np.array([one.chance for one in observations], dtype=np.float64)


def settled(observations: Sequence[Observation], after_s: float, now: float) -> list[Observation]:
    """Returns the observations that began so many seconds ago, or earlier."""
    return [one for one in observations if one.time + after_s <= now]


def _still_gone(waiting: list[Observation], now: float, *, window_s: float) -> list[Observation]:
    """Notes a visit at the time `now`; returns the observations whose first window is not over yet.

    Whether a unit comes is decided before it meets an arm, so any later exposure is a return.
    """
    for one in waiting:
        if now > one.time + window_s:
            one.returned_at = now
    return [one for one in waiting if now <= one.time + window_s]
