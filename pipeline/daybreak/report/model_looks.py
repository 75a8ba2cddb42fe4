"""Lays out the charts of a model for the page of a night, each with a sentence and a table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from daybreak.contract import formats
from daybreak.contract.record_parts import Confusion
from daybreak.contract.record_types import Training
from daybreak.report import model_charts, model_nights
from daybreak.report.model_nights import NightEffect, Point, TrainedBefore
from daybreak.report.tabled_chart import TabledChart
from daybreak.storage.ledger import Entry

NIGHTS = 60  # of effects
SLICE_NIGHTS = 28  # of a metric by slice, since there are many of these charts
METRICS = ("", "b", "c", "d")  # endings of names of charts, which an svg element needs to be unlike


@dataclass(frozen=True, kw_only=True)
class ModelLooks:
    """The charts of a model: how it learned, how far its chances hold, and both over the nights."""

    learning: TabledChart | None
    reliability: TabledChart | None
    confusion: Confusion | None
    importance: Markup | None
    nights: tuple[TabledChart, ...]


def model_looks(entry: Entry, history: Sequence[Entry]) -> ModelLooks:
    """Returns the charts that the records of the night and of those before, newest first, allow."""
    evaluation = entry.evaluation
    columns = evaluation.differences.columns if evaluation and evaluation.differences else ()
    return ModelLooks(
        learning=_learning(entry, history),
        reliability=_reliability(entry),
        confusion=evaluation.confusion if evaluation else None,
        importance=Markup(model_charts.importance(columns)) if columns else None,
        nights=tuple((*_effects(entry, history), *_slices(entry, history))),
    )


def _learning(entry: Entry, history: Sequence[Entry]) -> TabledChart | None:
    new, before = entry.training, model_nights.trained_before(entry, history)
    old = before.training if before else None
    alike = before is not None and before.are_scores_alike
    drawn = model_charts.learning(new, old, scores_alike=alike) if new else None
    if new is None or drawn is None:
        return None
    curves = ["mean loss of the samples since the point before"] * (len(new.losses) > 1)
    curves += ["the validation scores"] * (len(new.validations) > 1)
    words = ", and ".join(curves)
    sentences = [f"{words[:1].upper()}{words[1:]}."]
    if before and entry.champion:
        sentences += _of_champion(new, before, version=entry.champion.version)
    rows = [(formats.count(seen), formats.score(score), "validation") for seen, score in new.validations]
    rows += [(formats.count(seen), formats.quantity(loss), "loss") for seen, loss in _few(new.losses)]
    return TabledChart(
        title="How it learned",
        words=" ".join(sentences),
        chart=Markup(drawn),
        head=("Samples", "value", "of"),
        rows=tuple(rows),
    )


def _of_champion(new: Training, before: TrainedBefore, *, version: int) -> Iterator[str]:
    """Yields sentences on the champion's curves: which are drawn, and which may be in another unit."""
    old = before.training
    has_losses = min(len(old.losses), len(new.losses)) > 1
    has_scores = min(len(old.validations), len(new.validations)) > 1
    drawn = ["the loss"] * has_losses
    drawn += ["validation scores"] * (has_scores and before.are_scores_alike)
    if drawn:
        yield f"Dashed: {' and '.join(drawn)} of version {version}, the champion."
    if has_losses and not before.is_same_recipe:
        yield "Its recipe is not known to be tonight's, so that the two losses may be in different units."
    if has_scores and not before.are_scores_alike:
        whose = "Its validation scores" if drawn else f"Validation scores of version {version}, the champion,"
        yield f"{whose} are left out, as they may be in another unit than tonight's."


def _few(points: Sequence[tuple[int, float]], most: int = 12) -> list[tuple[int, float]]:
    """Returns about as many points, the last one among them."""
    step = max(1, len(points) // most)
    return list(points[::-1][::step][::-1])


def _reliability(entry: Entry) -> TabledChart | None:
    shown = entry.evaluation.reliability if entry.evaluation else None
    if shown is None:
        return None
    other = " Dashed: the champion." if shown.champion else ""
    return TabledChart(
        title="Are its chances right?",
        words=f"Of samples given like chances, the share it happened to; on the line both agree.{other}",
        chart=Markup(model_charts.reliability(shown)),
        head=("Chance", "happened", "samples"),
        rows=tuple(
            (formats.percent(one.predicted), formats.percent(one.observed), formats.count(one.num_samples))
            for one in shown.challenger
        ),
    )


def _effects(entry: Entry, history: Sequence[Entry]) -> Iterator[TabledChart]:
    nights, num_left_out = model_nights.effects(entry, history, most=NIGHTS)
    drawn = model_charts.effect_over_nights(nights)
    if drawn is None:
        return
    together = model_nights.pooled(nights)
    words = "Challenger minus champion, with the gate's interval. Filled: promoted."
    if any(night.margin is not None for night in nights):
        words += " Dashed: the margin."
    if together:
        ends = (formats.effect(together[0] + side * together[1]) for side in (-1, 1))
        words += (
            f" Together {formats.effect(together[0])} ({' to '.join(ends)}, 95 %, by the spread of nights)."
        )
    if num_left_out:
        words += (
            f" Left out: {formats.counted(num_left_out, 'night')} judged by users or by another first metric,"
            f" whose effects are in other units."
        )
    if any(night.level is not None for night in nights):
        words += " Below: where the chain stands against its anchor, and what it may lose."
    yield TabledChart(
        title="Effect over the nights",
        words=words,
        chart=Markup(drawn),
        head=("Day", "effect", "interval", "margin", "chain"),
        rows=tuple(_effect_row(night) for night in reversed(nights)),
    )


def _effect_row(night: NightEffect) -> tuple[str, ...]:
    interval = "–"
    if night.low is not None and night.high is not None:
        interval = f"{formats.effect(night.low)} to {formats.effect(night.high)}"
    margin = "–" if night.margin is None else formats.quantity(night.margin)
    chain = (
        "–" if night.level is None else f"{formats.effect(night.level)} ± {formats.score(night.half_width)}"
    )
    return str(night.day), formats.effect(night.mean), interval, margin, chain


def _slices(entry: Entry, history: Sequence[Entry]) -> Iterator[TabledChart]:
    by_metric = model_nights.slices_over_nights(entry, history, most=SLICE_NIGHTS)
    for (metric, slices), ending in zip(by_metric.items(), METRICS, strict=False):
        drawn = model_charts.metric_by_slice(metric, slices, name=f"slices{ending}")
        if drawn is None:
            continue
        yield TabledChart(
            title=f"{metric}, by slice over the nights",
            words="Mean of the night's challenger on its held-out samples, with a 95 % interval, to look at.",
            chart=Markup(drawn),
            head=("Slice", "tonight", "95 % interval", "nights"),
            rows=tuple(
                _slice_row(name or "all samples", points) for name, points in slices.items() if points
            ),
        )


def _slice_row(name: str, points: Sequence[Point]) -> tuple[str, ...]:
    last = points[-1]
    ends = f"{formats.score(last.mean - last.half)} to {formats.score(last.mean + last.half)}"
    return name, formats.score(last.mean), ends, formats.count(len(points))
