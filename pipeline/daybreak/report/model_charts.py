"""Draws a model's learning curve, the reliability of its chances, and its metrics over the nights."""

from collections.abc import Mapping, Sequence
from math import ceil, nan
from typing import Any

import matplotlib.dates
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from daybreak.contract import formats
from daybreak.contract.record_parts import ColumnUse, Reliability
from daybreak.contract.record_types import Training
from daybreak.report.charts import NARROW, canvas, rows_of
from daybreak.report.model_nights import NightEffect, Point, pooled
from daybreak.report.svg import ACCENT, FILL, INK, MUTED, PAPER, RULE, WIDTH, inline, styled

PANELS = 4  # side by side
MOST_COLUMNS = 12


@styled
def effect_over_nights(nights: Sequence[NightEffect]) -> str | None:
    """Draws each night's effect with its interval, their mean as a band, and the chain with its budget."""
    if len(nights) < 2:
        return None
    chained = any(night.level is not None for night in nights)
    figure = Figure(figsize=(WIDTH, 4.2 if chained else 2.4))
    panels: Any = figure.subplots(1 + chained, 1, squeeze=False, sharex=True)
    figure.subplots_adjust(left=0.09, right=0.985, top=0.97, bottom=0.12 if chained else 0.18, hspace=0.2)
    top = panels[0, 0]
    days: list[Any] = [night.day for night in nights]
    for day, night in zip(days, nights, strict=True):
        if night.low is not None and night.high is not None:
            top.plot([day, day], [night.low, night.high], color=MUTED, lw=1.6)
        top.plot([day], [night.mean], "o", ms=5, mec=ACCENT, mfc=ACCENT if night.promoted else PAPER)
    together = pooled(nights)
    if together:
        top.axhspan(together[0] - together[1], together[0] + together[1], color=FILL, lw=0, zorder=0)
        top.axhline(together[0], color=MUTED, lw=1, zorder=0)
    top.plot(days, [nan if n.margin is None else -n.margin for n in nights], color=INK, lw=1, ls=(0, (2, 2)))
    top.axhline(0, color=INK, lw=0.8)
    top.set_ylabel("effect")
    if chained:
        _chain(panels[1, 0], days, nights)
    for axes in panels[:, 0]:
        _quiet(axes, most=5)
        axes.yaxis.set_major_formatter(
            lambda value, _: formats.effect(float(f"{value:.3g}")) if value else "0"
        )
    _dates(panels[-1, 0], most=9)
    last = nights[-1]
    words = f", together {formats.effect(together[0])}" if together else ""
    label = f"Effect over {len(nights)} nights, the last {formats.effect(last.mean)}{words}"
    return inline(figure, name="effects", label=label)


def _chain(axes: Axes, days: list[Any], nights: Sequence[NightEffect]) -> None:
    """Draws where the chain stood, with its interval, above the budget that it may lose."""
    level = [nan if night.level is None else night.level for night in nights]
    width = [night.half_width or 0.0 for night in nights]
    low, high = ([at + side * half for at, half in zip(level, width, strict=True)] for side in (-1, 1))
    axes.fill_between(days, low, high, color=FILL, lw=0)
    axes.plot(days, level, "-o", color=ACCENT, lw=1.4, ms=3)
    axes.plot(days, [nan if n.budget is None else -n.budget for n in nights], color=INK, lw=1, ls=(0, (2, 2)))
    axes.axhline(0, color=INK, lw=0.8)
    axes.set_ylabel("chain, from anchor")


@styled
def learning(new: Training, old: Training | None, *, scores_alike: bool) -> str | None:
    """Draws loss and validation over the samples seen; None where none was kept.

    The old model's curves are in ink, and the best validation is marked. Its scores are left out unless they
    are `scores_alike`, of the same unit.
    """
    curves = [("loss", new.losses, old.losses if old else ())]
    curves += [("validation score", new.validations, old.validations if old and scores_alike else ())]
    curves = [curve for curve in curves if len(curve[1]) > 1]
    if not curves:
        return None
    figure = Figure(figsize=(WIDTH, 0.5 + 1.7 * len(curves)))
    panels: Any = figure.subplots(len(curves), 1, squeeze=False, sharex=True)
    figure.subplots_adjust(left=0.09, right=0.985, top=0.96, bottom=0.3 / len(curves), hspace=0.2)
    for axes, (name, ours, theirs) in zip(panels[:, 0], curves, strict=True):
        if len(theirs) > 1:
            axes.plot(*zip(*theirs, strict=True), color=INK, lw=1.1, ls=(0, (3, 1.5)))
        axes.plot(
            *zip(*ours, strict=True), color=ACCENT, lw=1.6, marker="o" if len(ours) < 12 else "", ms=3.5
        )
        if name == "validation score":
            axes.plot(*max(ours, key=lambda each: each[1]), "o", ms=6, color=ACCENT)
        axes.set_ylabel(name)
        _quiet(axes, most=4)
        axes.yaxis.set_major_formatter(lambda value, _: formats.quantity(float(f"{value:.4g}")))
    panels[-1, 0].set_xlabel("samples trained on")
    panels[-1, 0].xaxis.set_major_formatter(lambda value, _: formats.count(value))
    ends = "; ".join(f"{name} from {ours[0][1]:.4g} to {ours[-1][1]:.4g}" for name, ours, _ in curves)
    return inline(figure, name="learning", label=f"How it learned: {ends}")


@styled
def reliability(shown: Reliability) -> str:
    """Draws how often what was given a chance happened, against that chance."""
    figure, axes = canvas(height=3.4, left=0.14, right=0.97, bottom=0.5, top=0.1, width=NARROW)
    sides: list[tuple[Any, dict[str, Any]]] = [
        (shown.champion, {"color": INK, "ls": (0, (3, 1.5)), "mfc": PAPER}),
        (shown.challenger, {"color": ACCENT}),
    ]
    most = max(max(one.predicted, one.observed) for bins, _ in sides for one in bins)
    axes.plot([0, most], [0, most], color=MUTED, lw=0.8)
    for bins, style in sides:
        axes.plot([b.predicted for b in bins], [b.observed for b in bins], marker="o", ms=4, lw=1.2, **style)
    axes.set_xlabel("chance predicted")
    axes.set_ylabel("share observed")
    _quiet(axes, most=4)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: formats.percent(float(f"{value:.4g}")))
    worst = max(shown.challenger, key=lambda one: abs(one.predicted - one.observed))
    told = f"{formats.percent(worst.observed)} where {formats.percent(worst.predicted)} was predicted"
    return inline(figure, name="reliability", label=f"Reliability of chances, farthest off: {told}")


@styled
def importance(columns: Sequence[ColumnUse]) -> str:
    """Draws by how much the score falls without each column: a bar, and a ring for the champion."""
    rows = sorted(columns, key=lambda row: -row.challenger)[:MOST_COLUMNS]
    longest = max(len(row.column) for row in rows)
    figure, axes = canvas(
        height=0.45 + 0.28 * len(rows), left=min(0.35, 0.03 + 0.0092 * longest), right=0.97, bottom=0.3
    )
    for y, row in enumerate(reversed(rows)):
        axes.barh(y, row.challenger, height=0.44, color=ACCENT, alpha=0.6)
        if row.champion is not None:
            axes.plot([row.champion], [y], "o", ms=7, mfc=PAPER, mec=INK, mew=1.3, clip_on=False)
    axes.axvline(0, color=INK, lw=0.8)
    rows_of(axes, [row.column for row in rows])
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda value, _: formats.quantity(float(f"{value:.4g}")))
    values = "; ".join(f"{row.column} {formats.effect(row.challenger)}" for row in rows)
    return inline(figure, name="importance", label=f"Importance of columns: {values}")


@styled
def metric_by_slice(metric: str, slices: Mapping[str, Sequence[Point]], *, name: str) -> str | None:
    """Draws a metric over the nights with its 95 % interval, a panel for all samples and for each slice."""
    drawn = {one: points for one, points in slices.items() if len(points) > 1}
    if not drawn:
        return None
    rows = ceil(len(drawn) / PANELS)
    height = 0.35 + 1.35 * rows
    figure = Figure(figsize=(WIDTH, height))
    panels: Any = figure.subplots(rows, PANELS, squeeze=False, sharex=True, sharey=True)
    figure.subplots_adjust(
        left=0.07, right=0.985, top=1 - 0.25 / height, bottom=0.35 / height, hspace=0.35, wspace=0.08
    )
    flat = list(panels.flat)
    for axes, (one, points) in zip(flat, drawn.items(), strict=False):
        days: list[Any] = [each.day for each in points]
        low, high = ([each.mean + side * each.half for each in points] for side in (-1, 1))
        axes.fill_between(days, low, high, color=FILL, lw=0)
        axes.plot(days, [each.mean for each in points], color=MUTED, lw=1.2)
        axes.plot(days[-1:], [points[-1].mean], "o", ms=4.5, color=ACCENT)
        axes.set_title(_short(one or "all samples"), loc="left", fontsize=9, color=INK)
        _quiet(axes, most=3)
        axes.yaxis.set_major_formatter(lambda value, _: formats.quantity(float(f"{value:.4g}")))
        axes.set_xticks([days[0], days[-1]], [f"{day:%-d %b}" for day in (days[0], days[-1])])
    for axes in flat[len(drawn) :]:
        axes.set_visible(False)
    ends = "; ".join(
        f"{one or 'all samples'} {formats.score(points[-1].mean)}" for one, points in drawn.items()
    )
    return inline(figure, name=name, label=f"{metric} over the nights: {ends}")


def _short(name: str, most: int = 30) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _quiet(axes: Axes, *, most: int) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(most))
    axes.tick_params(axis="y", labelcolor=MUTED, labelsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", color=RULE, lw=0.5)
    axes.set_axisbelow(True)


def _dates(axes: Axes, *, most: int) -> None:
    dates: Any = matplotlib.dates  # has no types
    locator = dates.AutoDateLocator(minticks=2, maxticks=most)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, show_offset=False))
