"""Draws what a day's columns and figures look like beside the days before, one chart each.

A chart is narrow, so that a phone shows it whole; the table behind it has its numbers.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.dates
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import blended_transform_factory

from daybreak.contract import formats
from daybreak.contract.record_parts import ColumnDistribution, FigureSeries
from daybreak.report.charts import NARROW, canvas
from daybreak.report.svg import ACCENT, FILL, INK, MUTED, RULE, inline, styled

MOST_DIGITS = 10  # of a mean label; longer ones leave no room for bars
ROOM = 1.5  # times the range of the values that limits may take; wider ones end at the edge


@styled
def distribution(column: ColumnDistribution, *, name: str) -> str:
    """Draws the shares of a column's values as bars, those before as lines across or steps around them."""
    draw = _histogram if column.edges else _shares
    return inline(draw(column), name=name, label=f"{column.column}: {_most(column)}")


def _most(column: ColumnDistribution) -> str:
    """Returns the most frequent value tonight and its share before, for readers who cannot see the chart."""
    at = max(range(len(column.tonight)), key=lambda place: column.tonight[place], default=None)
    if at is None:
        return "no value tonight"
    before = f", before {formats.percent(column.before[at])}" if column.before else ""
    label = column.label_tonight[at] if column.label_tonight else None
    mean = f"; its mean label {formats.quantity(label)}" if label is not None else ""
    return f"most often {column.values[at]}, {formats.percent(column.tonight[at])}{before}{mean}"


def _histogram(column: ColumnDistribution) -> Any:
    """Draws a bar for each range of numbers, with the mean label of each below, where it is known."""
    labels = (column.label_tonight, column.label_before)
    num, has_labels = len(column.values), any(any(v is not None for v in one) for one in labels)
    height = 2.3 if has_labels else 1.5
    figure, axes = canvas(height=height, left=0.13, right=0.97, bottom=0.25, top=0.08, width=NARROW)
    if has_labels:
        axes.set_position((0.13, 0.5, 0.84, 0.46))
        below = figure.add_axes((0.13, 0.11, 0.84, 0.3), sharex=axes)
        earlier: dict[str, Any] = {"mfc": "none", "mec": INK, "ms": 4.5}
        tonight: dict[str, Any] = {"color": ACCENT, "ms": 4}
        for values, style in ((labels[1], earlier), (labels[0], tonight)):
            known = [(at, value) for at, value in enumerate(values) if value is not None]
            below.plot([at for at, _ in known], [value for _, value in known], "o", clip_on=False, **style)
        below.margins(y=0.2)
        _marked(below, formats.quantity, most=2)
        axes.tick_params(axis="x", labelbottom=False)
    places = range(num)
    axes.bar(places, column.tonight or [0.0] * num, width=0.86, color=ACCENT, alpha=0.55)
    if column.before:
        axes.step([-0.5, *places, num - 0.5], [0, *column.before, 0], where="mid", color=INK, lw=1.1)
    axes.set_ylim(bottom=0)
    _marked(axes, formats.percent, most=3)
    _make_room(*figure.axes)
    marks = sorted({round(place * (num - 2) / 3) for place in range(4)})
    lowest = figure.axes[-1]
    lowest.set_xticks([mark + 0.5 for mark in marks], [formats.quantity(column.edges[one]) for one in marks])
    lowest.set_xlim(-0.6, num - 0.4)
    return figure


def _shares(column: ColumnDistribution) -> Any:
    """Draws a bar for each value, a tick for its share before, and its mean labels, where they are known."""
    num = len(column.values)
    tonight, before = (side or (0.0,) * num for side in (column.tonight, column.before))
    labels = [side or (None,) * num for side in (column.label_tonight, column.label_before)]
    has_labels = any(value is not None for side in labels for value in side)
    means = [[_short(value) for value in side] for side in labels]
    shares = [formats.percent(share) for share in tonight]
    # Of the figure's width: a column for the shares, and one for each mean.
    room, step = _room(shares), _room([*means[0], *means[1]])
    height, right = 0.1 + 0.24 * (num + has_labels), (0.965 - 2 * step if has_labels else 0.975) - room
    figure, axes = canvas(height=height, left=0.36, right=right, width=NARROW)
    most = max(*tonight, *before, 1e-9)
    at_right: dict[str, Any] = {
        "transform": blended_transform_factory(figure.transFigure, axes.transData),
        "size": 9,
    }
    columns = ((0.985 - step, means[0], ACCENT, "label"), (0.985, means[1], MUTED, "before"))
    for y, at in enumerate(reversed(range(num))):
        axes.barh(y, most, height=0.5, color=FILL)
        axes.barh(y, tonight[at], height=0.5, color=ACCENT, alpha=0.55)
        if column.before:
            axes.plot([before[at]] * 2, [y - 0.38, y + 0.38], color=INK, lw=1.6)
        axes.text(right + 0.02, y, shares[at], va="center", **at_right)
        for x, values, color, _ in columns if has_labels else ():
            axes.text(x, y, values[at], va="center", ha="right", color=color, **at_right)
        value = column.values[at]
        axes.text(0.0, y, value if len(value) <= 20 else f"{value[:19]}…", va="center", **at_right)
    for x, _, color, head in columns if has_labels else ():
        axes.text(x, num, head, va="center", ha="right", color=color, **at_right)
    axes.set_xlim(0, most)
    axes.set_ylim(-0.6, num - 0.4 + has_labels)
    axes.axis("off")
    return figure


def _room(texts: Sequence[str]) -> float:
    """Returns the share of the chart's width that a column of texts needs, its head "before" included."""
    return max(0.115, 0.018 * max(map(len, texts)))  # a digit takes 0.017


def _short(value: float | None) -> str:
    """Returns a mean as `quantity` does, and one of too many digits with three and its exponent."""
    plain = formats.quantity(value)
    return plain if value is None or len(plain) <= MOST_DIGITS else f"{value:.3g}".replace("-", "−")


def _marked(axes: Axes, show: Callable[[float], str], *, most: int) -> None:
    """Marks few values of the vertical axis, in small letters."""
    axes.yaxis.set_major_locator(MaxNLocator(most))
    axes.yaxis.set_major_formatter(lambda value, _: show(float(f"{value:.6g}")))
    axes.tick_params(axis="y", labelcolor=MUTED, labelsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", color=RULE, lw=0.5)
    axes.set_axisbelow(True)


def _make_room(*panels: Axes) -> None:
    """Moves the left edge of charts to the right where the marks of a vertical axis are long."""
    marks = [
        mark
        for each in panels
        for mark in each.yaxis.get_major_formatter().format_ticks(list(each.get_yticks()))
    ]
    left = max(0.13, 0.02 + 0.015 * max(map(len, marks)))  # of the width, of which a digit takes that
    for each in panels:
        box = each.get_position()
        each.set_position((left, box.y0, box.x1 - left, box.height))


@styled
def series(figure_of_days: FigureSeries, *, name: str) -> str:
    """Draws a figure over the days on the band of its limits, in the accent where it is outside."""
    figure, axes = canvas(height=1.5, left=0.13, right=0.97, bottom=0.28, top=0.08, width=NARROW)
    days: Sequence[Any] = figure_of_days.days
    values = figure_of_days.values
    low, high = min(values), max(values)
    room = ROOM * ((high - low) or abs(high) or 1.0)
    ends = low - room, high + room
    lows, highs = (
        [math.nan if one is None else min(max(one, ends[0]), ends[1]) for one in side]
        for side in (figure_of_days.lows, figure_of_days.highs)
    )
    axes.fill_between(days, lows, highs, color=FILL, lw=0)
    for side in (lows, highs):
        axes.plot(days, side, color=MUTED, lw=0.8, ls=(0, (2, 2)))
    axes.plot(days, values, color=INK, lw=1.1)
    beyond = [
        at for at, value in enumerate(values) if value < lows[at] or value > highs[at]
    ]  # not of limits that are not known
    axes.plot([days[at] for at in beyond], [values[at] for at in beyond], "X", ms=6, color=ACCENT)
    axes.plot(days[-1:], values[-1:], "o", ms=4.5, color=ACCENT)
    show = formats.percent if figure_of_days.is_share else formats.quantity
    _marked(axes, show, most=3)
    _make_room(axes)
    dates: Any = matplotlib.dates  # has no types
    locator = dates.AutoDateLocator(minticks=3, maxticks=5)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, show_offset=False))
    return inline(figure, name=name, label=figure_of_days.words)
