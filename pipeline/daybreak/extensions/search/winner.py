"""Finds the settings that did better than today's over several nights, by what was tried.

A try is a run with some settings on the samples of a night. Its gain is the mean score of the newest samples
minus that of today's settings, trained on the same samples on the same night, so that days which are easy or
hard for all settings cancel out. Settings win where the lower end of the 90 % interval of their mean gain is
above zero (Student's t over nights); of several, those with the highest lower end. Chosen from many, they may
still be no better: the gate judges them by days that no try has seen. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

TAIL = 0.05  # on either side of the interval
Values = dict[str, Any]  # settings by key of params.yaml


@dataclass(frozen=True, kw_only=True)
class Try:
    """A run to the end with some settings."""

    values: Values
    night: str
    gain: float


@dataclass(frozen=True, kw_only=True)
class Winner:
    """Settings that did better, and by how much."""

    values: Values
    gain: float
    low: float
    num_nights: int


def winner(tries: Sequence[Try], *, nights: int) -> Winner | None:
    """Returns the settings that did better on at least so many nights; None where none did.

    >>> tries = [Try(values={"a": 1}, night=night, gain=0.1) for night in "xyz"]
    >>> winner(tries, nights=3).values, winner(tries[:2], nights=3)
    ({'a': 1}, None)
    """
    found = [_judged(values, gains) for values, gains in by_values(tries) if len(gains) >= nights]
    return max((each for each in found if each.low > 0), key=lambda each: each.low, default=None)


def by_values(tries: Sequence[Try]) -> list[tuple[Values, dict[str, float]]]:
    """Returns the gains by night, of each settings that were tried."""
    groups: list[tuple[Values, dict[str, float]]] = []
    for each in tries:
        gains = next((gains for values, gains in groups if values == each.values), None)
        if gains is None:
            groups.append((each.values, {each.night: each.gain}))
        else:
            gains[each.night] = each.gain
    return groups


def _judged(values: Values, gains: dict[str, float]) -> Winner:
    from scipy.special import stdtrit

    num = len(gains)
    center = mean(gains.values())
    half = float(stdtrit(num - 1, 1 - TAIL)) * stdev(gains.values()) / num**0.5
    return Winner(values=values, gain=center, low=center - half, num_nights=num)
