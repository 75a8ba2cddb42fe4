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


def effects(entry: Entry, history: Sequence[Entry], *, most: int) -> tuple[list[NightEffect], int]:
    """Returns the effects of the newest nights up to this one, oldest first, of those against a champion.

    The second is how many nights are left out, as their effects are in other units: users judged them, or
    another first metric than tonight's did.
    """
    nights = _until(entry, history)
    judged = [one for one in nights if one.verdict and one.verdict.champion and one.verdict.effect][:most]
    alike = [one for one in judged if not _by_users(one) and _first_metric(one) == _first_metric(entry)]
    found = []
    for one in reversed(alike):
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
    return found, len(judged) - len(alike)


def _by_users(entry: Entry) -> bool:
    verdict = entry.verdict
    return verdict is not None and verdict.live is not None and verdict.effect == verdict.live.effect


def _first_metric(entry: Entry) -> str:
    return entry.evaluation.judged[0].name if entry.evaluation and entry.evaluation.judged else ""


def pooled(nights: Sequence[NightEffect]) -> tuple[float, float] | None:
    """Returns the mean effect and half of its 95 % interval, by the spread of nights; None of fewer than 3.

    The interval is Student's, as the spread of a few nights is itself known roughly.

    >>> day = date(2011, 9, 1)
    >>> one = NightEffect(day=day, mean=0.25, low=None, high=None, promoted=True, margin=None)
    >>> pooled([one, one, one])
    (0.25, 0.0)
    """
    means = [night.mean for night in nights]
    if len(means) < 3:
        return None
    from scipy import stats  # which takes a second to import

    return fmean(means), float(stats.t.ppf(0.975, len(means) - 1)) * stdev(means) / sqrt(len(means))


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
        for one in reversed(kept):
            value = one.evaluation.by_slice.get(metric, {}).get(name) if one.evaluation else None
            if value:
                yield Point(day=one.night.day, mean=value[0], half=Z * value[1])

    return {
        metric: {name: list(points(metric, name)) for name in slices} for metric, slices in tonight.items()
    }


def _until(entry: Entry, history: Sequence[Entry]) -> list[Entry]:
    """Returns tonight and the nights that came before it, of no later day, newest day first.

    A night may have been made up for later, after nights of days that follow its own.
    """
    before = [
        one
        for one in history
        if one.night.id != entry.night.id
        and not one.rollback
        and one.night.started_at <= entry.night.started_at
        and one.night.day <= entry.night.day
    ]
    return [entry, *sorted(before, key=lambda one: (one.night.day, one.night.started_at), reverse=True)]


@dataclass(frozen=True, kw_only=True)
class TrainedBefore:
    """The training of the champion that tonight's model is held against."""

    training: Training
    is_same_recipe: bool  # as tonight's, as far as is known
    are_scores_alike: bool  # are the scores of both on validation known to have one unit?


def trained_before(entry: Entry, history: Sequence[Entry]) -> TrainedBefore | None:
    """Returns the training of the champion that tonight's model is held against; None where unknown.

    Samples are validated by the first metric, or by `score` where that is a metric of a set or there is none
    (daybreak/training/validation_score.py). `score` may be anything, such as minus the loss, so that it has
    one unit in one recipe alone.
    """
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
    if made is None or made.training is None:
        return None
    recipe = entry.verdict.recipe if entry.verdict else ""
    is_same = bool(recipe and recipe == entry.champion.lineage.get("recipe"))
    return TrainedBefore(
        training=made.training,
        is_same_recipe=is_same,
        are_scores_alike=is_same or _by_the_same_metric(made, entry),
    )


def _by_the_same_metric(first: Entry, second: Entry) -> bool:
    """Returns whether both nights validated by one metric that has values of single samples."""
    evaluations = [one.evaluation for one in (first, second) if one.evaluation and one.evaluation.judged]
    if len(evaluations) < 2:
        return False
    ours, theirs = (one.judged[0] for one in evaluations)
    has_values = all(ours.name in one.by_slice for one in evaluations)
    return has_values and (ours.name, ours.higher_is_better) == (theirs.name, theirs.higher_is_better)
