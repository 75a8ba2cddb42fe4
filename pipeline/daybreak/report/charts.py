"""Draws the charts of a page, by matplotlib, as svg elements.

What a chart shows is always also in a table or a sentence beside it; the chart itself gets a label for
readers who cannot see it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import matplotlib.dates
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import blended_transform_factory

from daybreak.contract import formats
from daybreak.contract.record_parts import Trend
from daybreak.contract.units import HOUR_S
from daybreak.report.night_rows import NightRow
from daybreak.report.svg import ACCENT, FILL, INK, MUTED, PAPER, RULE, WIDTH, inline, styled

NARROW = 4.8  # inches: of a chart that a phone shows whole
LONGEST = 40  # letters of a label; the table beside the chart has all of it


@dataclass(frozen=True, kw_only=True)
class Used:
    """What was used of something limited, all figures in one unit, with the text that is shown."""

    label: str
    used: float | None
    planned: float | None
    limit: float | None
    text: str
    limit_text: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar of a chart, with a label and a text behind."""

    label: str
    value: float
    text: str
    strong: bool = False


@dataclass(frozen=True, kw_only=True)
class Score:
    """Mean score of a model on some samples, and the champion's on the same ones where it is known."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    champion: float | None = None
    rule: bool = False  # a baseline, not a model


@styled
def used(rows: Sequence[Used]) -> str:
    """Draws bars of used amounts, a tick for the plan with an interval, and a line for the limit.

    Each bar has a scale of its own. A limit more than five times everything else is named at the
    edge instead of drawn: against 18 hours nobody sees whether 80 s or 90 s were used.
    """
    figure, axes = canvas(height=0.16 + 0.44 * len(rows), left=0.1, right=0.74)
    for y, row in enumerate(reversed(rows)):
        known = [v for v in (row.used, row.planned, row.high) if v]
        most = max(known, default=0) or row.limit or 1.0
        near = row.limit is not None and row.limit <= 5 * most
        scale = max([most, row.limit or 0] if near else [most * 1.25])
        axes.barh(y, 1, height=0.34, color=FILL)
        if row.used is not None:
            axes.barh(y, row.used / scale, height=0.34, color=ACCENT)
        if row.low is not None and row.high is not None and row.high > row.low:
            axes.plot([row.low / scale, row.high / scale], [y, y], color=INK, lw=1.2)
        if row.planned is not None:
            axes.plot([row.planned / scale] * 2, [y - 0.3, y + 0.3], color=INK, lw=2)
        if near and row.limit is not None:
            axes.plot([row.limit / scale] * 2, [y - 0.3, y + 0.3], color=INK, lw=1, ls=(0, (2, 2)))
        elif row.limit is not None:
            axes.text(0.99, y, f"{row.limit_text} →", ha="right", va="center", color=MUTED, size=9)
        axes.text(1.02, y, row.text, va="center")
    rows_of(axes, [row.label for row in rows])
    axes.set_xlim(0, 1.005)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    label = "Used: " + "; ".join(f"{row.label} {row.text}" for row in rows)
    return inline(figure, name="used", label=label)


@styled
def bars(rows: Sequence[Bar], *, name: str, label: str, limit: float | None = None) -> str:
    """Draws horizontal bars on one scale, the strong ones in the accent, a line at `limit`."""
    figure, axes = canvas(height=0.16 + 0.32 * len(rows), left=_margin(row.label for row in rows), right=0.72)
    most = max([row.value for row in rows] + [limit or 0.0]) or 1.0
    for y, row in enumerate(reversed(rows)):
        axes.barh(y, most, height=0.44, color=FILL)
        axes.barh(y, row.value, height=0.44, color=ACCENT if row.strong else MUTED)
        axes.text(most * 1.03, y, row.text, va="center")
    if limit is not None:
        axes.axvline(limit, color=INK, lw=1, ls=(0, (2, 2)))
    rows_of(axes, [row.label for row in rows])
    axes.set_xlim(0, most * 1.01)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    values = "; ".join(f"{row.label} {row.text}" for row in rows)
    return inline(figure, name=name, label=f"{label}: {values}")


@styled
def effect(*, value: float, low: float, high: float, margin: float | None) -> str:
    """Draws the difference to the champion with its interval, beside zero and the margin."""
    figure, axes = canvas(height=0.95, left=0.04, right=0.96, bottom=0.3, top=0.25, width=NARROW)
    reach = 1.15 * max(abs(low), abs(high), margin or 0.0) or 1.0
    axes.plot([low, high], [0, 0], color=ACCENT, lw=7, alpha=0.45)
    axes.plot([value], [0], "o", color=ACCENT, ms=9)
    axes.axvline(0, color=INK, lw=1)
    across = axes.get_xaxis_transform()  # x in data, y as a share of the axes
    near = margin is not None and margin < 0.25 * reach  # the two labels would overlap
    above: dict[str, Any] = {"va": "bottom", "size": 9, "transform": across}
    axes.text(0, 1.02, "no difference", ha="left" if near else "center", **above)
    if margin is not None:
        axes.axvline(-margin, color=INK, lw=1, ls=(0, (2, 2)))
        text = f"margin {formats.effect(-margin)}"
        at_the_edge = margin > 0.6 * reach  # where half of it would be cut off
        axes.text(-margin, 1.02, text, ha="right" if near else "left" if at_the_edge else "center", **above)
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-1, 1)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda x, _: formats.effect(x) if abs(x) > 1e-9 * reach else "0")
    label = f"Effect {formats.effect(value)}, from {formats.effect(low)} to {formats.effect(high)}"
    return inline(figure, name="effect", label=label)


@styled
def scores(rows: Sequence[Score]) -> str:
    """Draws a dot with its interval for each slice, and a ring for the champion on the same samples."""
    figure, axes = canvas(
        height=0.5 + 0.28 * len(rows), left=_margin(row.label for row in rows), right=0.985, bottom=0.3
    )
    for y, row in enumerate(reversed(rows)):
        axes.axhline(y, color=RULE, lw=0.6, zorder=0)
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [y, y], color=MUTED if row.rule else ACCENT, lw=2)
        if row.champion is not None:
            axes.plot([row.champion], [y], "o", ms=8, mfc=PAPER, mec=INK, mew=1.3, clip_on=False)
        mark, color = ("D", MUTED) if row.rule else ("o", ACCENT)
        axes.plot([row.value], [y], mark, ms=5.5 if row.rule else 6.5, color=color, clip_on=False)
    rows_of(axes, [row.label for row in rows])
    axes.set_xlim(left=min(0.0, *(row.value for row in rows)))
    axes.xaxis.set_major_formatter(lambda x, _: formats.quantity(float(f"{x:.6g}")))
    values = "; ".join(f"{row.label} {formats.score(row.value)}" for row in rows)
    return inline(figure, name="scores", label=f"Scores: {values}")


@styled
def trend(nights: Sequence[NightRow]) -> str:
    """Draws score, time and dollars of each night, with its verdict, the best simple rule and the plan."""
    figure = Figure(figsize=(WIDTH, 4.3))
    heights = {"height_ratios": [2.4, 1, 1], "hspace": 0.28}
    panels: list[Axes] = list(figure.subplots(3, 1, sharex=True, gridspec_kw=heights))
    figure.subplots_adjust(left=0.07, right=0.985, top=0.97, bottom=0.09)
    _trend_of_scores(panels[0], nights)
    days: list[Any] = [date.fromisoformat(night.day) for night in nights]
    times, planned = ([night.trained_s for night in nights], [night.predicted_s for night in nights])
    short = (formats.top_of(times) or 0) < 0.5 * HOUR_S
    unit = (60 if short else 1) / HOUR_S
    _trend_of_bars(panels[1], days, _known(times, unit), _known([p and p[1] for p in planned], unit))
    costs, budgets = [night.usd for night in nights], [night.predicted_usd for night in nights]
    _trend_of_bars(panels[2], days, _known(costs), _known(budgets))
    titles = ("score", "minutes" if short else "hours", "dollars")
    for panel, title in zip(panels, titles, strict=True):
        panel.set_ylabel(title)
        panel.yaxis.set_major_locator(MaxNLocator(3 if panel is not panels[0] else 5))
        panel.tick_params(axis="y", labelcolor=MUTED, labelsize=9)
        panel.grid(axis="y", color=RULE, lw=0.5)
        panel.set_axisbelow(True)
        panel.spines["left"].set_visible(False)
        panel.tick_params(axis="x", length=0)
    figure.align_ylabels()
    _with_few_dates(panels[2])
    promoted = sum(night.outcome == "promoted" for night in nights)
    failed = sum(night.outcome == "failed" for night in nights)
    label = f"Trend over {len(nights)} nights: {promoted} promoted, {failed} failed"
    return inline(figure, name="trend", label=label)


@styled
def slow_drift(trends: Sequence[Trend]) -> str:
    """Draws the figures that drift slowly below each other: a dot for each day, and the fitted line."""
    height = 0.6 + 1.4 * len(trends)
    figure = Figure(figsize=(WIDTH, height))
    panels: Any = figure.subplots(len(trends), 1, squeeze=False)
    figure.subplots_adjust(left=0.09, right=0.985, top=1 - 0.25 / height, bottom=0.4 / height, hspace=0.75)
    for axes, trend in zip(panels[:, 0], trends, strict=True):
        axes.plot(trend.days, trend.values, "o", ms=3.5, color=MUTED)
        axes.plot([trend.days[0], trend.days[-1]], [trend.began, trend.ended], color=ACCENT, lw=2)
        axes.set_title(trend.figure, loc="left", fontsize=10)
        _with_few_dates(axes)
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.grid(axis="y", color=RULE, lw=0.5)
    return inline(figure, name="slow_drift", label=f"Slow drift: {'; '.join(one.words for one in trends)}")


def _with_few_dates(axes: Axes) -> None:
    dates: Any = matplotlib.dates  # has no types
    locator = dates.AutoDateLocator(minticks=4, maxticks=12)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))


def _trend_of_bars(axes: Axes, days: list[Any], values: Sequence[float], planned: Sequence[float]) -> None:
    """Draws bars with a mark for the plan; cuts a bar far beyond the others and prints the value beside."""
    axes.bar(days, [0 if math.isnan(value) else value for value in values], color=MUTED, width=0.6, alpha=0.6)
    axes.plot(days, planned, "_", color=INK, ms=5, mew=1.2)
    known = [value for value in (*values, *planned) if not math.isnan(value)]
    top = 1.08 * (formats.top_of(known) or 1.0)
    axes.set_ylim(bottom=0, top=top)
    for day, value in zip(days, values, strict=True):
        if value > top:
            axes.annotate(
                f" {formats.quantity(value)}", (day, top), va="top", ha="left", color=MUTED, fontsize=8
            )


def _trend_of_scores(axes: Axes, nights: Sequence[NightRow]) -> None:
    days: list[Any] = [date.fromisoformat(night.day) for night in nights]
    scores, rules = [night.score for night in nights], [night.rule_score for night in nights]
    axes.plot(days, _known(scores), color=RULE, lw=1.2, zorder=1)
    axes.plot(days, _known(rules), color=MUTED, lw=1.2, ls=(0, (2, 2)), zorder=1)
    floor = min((value for value in (*scores, *rules) if value is not None), default=0.0)
    styles: dict[str, dict[str, Any]] = {
        "promoted": {"marker": "o", "mfc": ACCENT, "mec": ACCENT},
        "kept": {"marker": "o", "mfc": PAPER, "mec": INK},
        "failed": {"marker": "x", "mfc": INK, "mec": INK},
    }
    for outcome, style in styles.items():
        chosen = [at for at, night in enumerate(nights) if night.outcome == outcome]
        x: list[Any] = [days[at] for at in chosen]
        y = [floor if (score := scores[at]) is None else score for at in chosen]
        axes.plot(x, y, ls="", ms=6, mew=1.3, **style)


def _known(values: Iterable[float | None], unit: float = 1) -> list[float]:
    """Returns the values in a unit, NaN where one is not known."""
    return [float("nan") if value is None else value * unit for value in values]


def canvas(
    *, height: float, left: float, right: float, bottom: float = 0.06, top: float = 0.02, width: float = WIDTH
) -> tuple[Figure, Axes]:
    """Returns a figure with one axes; width, height, bottom and top in inches."""
    figure = Figure(figsize=(width, height))
    axes: Axes = figure.add_subplot()
    figure.subplots_adjust(left=left, right=right, bottom=bottom / height, top=1 - top / height)
    return figure, axes


def _margin(labels: Iterable[str]) -> float:
    """Returns the share of the width that the labels need, so that none runs into the bars."""
    return 0.03 + 0.0092 * max((len(_cut(label)) for label in labels), default=0)


def _cut(label: str) -> str:
    return label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"


def rows_of(axes: Axes, labels: Sequence[str]) -> None:
    """Sets up one row a label from the top, with the labels flush with the text of the page."""
    axes.set_yticks([])
    axes.set_ylim(-0.6, len(labels) - 0.4)
    axes.spines["left"].set_visible(False)
    figure = axes.get_figure()
    flush = blended_transform_factory(figure.transFigure, axes.transData) if figure else axes.transAxes
    for y, label in enumerate(reversed(labels)):
        axes.text(0, y, _cut(label), va="center", transform=flush)
