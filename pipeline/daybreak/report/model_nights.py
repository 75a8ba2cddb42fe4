"""Tells what became of a model over the nights: effects, the chain, metrics by slice. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from math import sqrt
from statistics import fmean, stdev

from daybreak.contract.record_types import Training
from daybreak.storage.ledger import Entry

Z = 1.96  # standard errors to either side that hold 95 % of a normal distribution


@dataclass(frozen=True, kw_only=True)
class NightEffect:
    """What a night was judged by, and where it left its chain; None where that was not known."""

    day: date
    mean: float
    low: float | None
    high: float | None
    promoted: bool
    margin: float | None
    level: float | None = None  # of the chain against its anchor
    half_width: float | None = None
    budget: float | None = None  # that the chain may lose


def effects(entry: Entry, history: Sequence[Entry], *, most: int) -> list[NightEffect]:
    """Returns the effects of the newest nights up to this one, oldest first, of those against a champion."""
    nights = _until(entry, history)
    judged = [one for one in nights if one.verdict and one.verdict.champion and one.verdict.effect]
    found = []
    for one in sorted(judged[:most], key=lambda night: night.night.started_at):
        assert one.verdict and one.verdict.effect
        chain, effect = one.verdict.chain, one.verdict.effect
        found.append(
            NightEffect(
                day=one.night.day,
                mean=effect.mean,
                low=effect.low,
                high=effect.high,
                promoted=one.release is not None,
                margin=one.verdict.margin,
                level=chain.level if chain else None,
                half_width=chain.half_width if chain else None,
                budget=chain.margin if chain else None,
            )
        )
    return found


def pooled(nights: Sequence[NightEffect]) -> tuple[float, float] | None:
    """Returns the mean effect and half of its 95 % interval, by the spread of nights; None of fewer than 3.

    >>> day = date(2011, 9, 1)
    >>> one = NightEffect(day=day, mean=0.25, low=None, high=None, promoted=True, margin=None)
    >>> pooled([one, one, one])
    (0.25, 0.0)
    """
    means = [night.mean for night in nights]
    if len(means) < 3:
        return None
    return fmean(means), Z * stdev(means) / sqrt(len(means))


@dataclass(frozen=True, kw_only=True)
class Point:
    """A metric in a night: its mean, and half of its 95 % interval."""

    day: date
    mean: float
    half: float


def slices_over_nights(
    entry: Entry, history: Sequence[Entry], *, most: int
) -> dict[str, dict[str, list[Point]]]:
    """Returns tonight's metrics by slice, "" for all samples, over the last nights, oldest first."""
    kept = [one for one in _until(entry, history) if one.evaluation and one.evaluation.by_slice][:most]
    tonight = entry.evaluation.by_slice if entry.evaluation else {}

    def points(metric: str, name: str) -> Iterator[Point]:
        for one in sorted(kept, key=lambda night: night.night.day):
            value = one.evaluation.by_slice.get(metric, {}).get(name) if one.evaluation else None
            if value:
                yield Point(day=one.night.day, mean=value[0], half=Z * value[1])

    return {
        metric: {name: list(points(metric, name)) for name in slices} for metric, slices in tonight.items()
    }


def _until(entry: Entry, history: Sequence[Entry]) -> list[Entry]:
    """Returns tonight and the nights before it, newest first."""
    before = [one for one in history if one.night.id != entry.night.id and not one.rollback]
    return [entry, *(one for one in before if one.night.started_at <= entry.night.started_at)]


def trained_before(entry: Entry, history: Sequence[Entry]) -> Training | None:
    """Returns the training of the champion that tonight's model is held against; None where unknown."""
    if entry.champion is None:
        return None
    made = next(
        (
            one
            for one in history
            if one.release and not one.rollback and one.release.version == entry.champion.version
        ),
        None,
    )
    return made.training if made else None
