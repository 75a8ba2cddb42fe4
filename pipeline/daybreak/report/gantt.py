"""Draws the stages of a night over the time of day, against its deadlines."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import matplotlib.dates
from matplotlib.axes import Axes

from daybreak.contract import formats
from daybreak.contract.record_types import Night
from daybreak.report.charts import canvas, rows_of
from daybreak.report.stage_times import StageTime
from daybreak.report.svg import ACCENT, INK, MUTED, RULE, inline, styled

NEAR = 1.6  # a deadline of more than this many times the night's length is only told
LEAST = 0.004  # share of the width that a bar has at least, to be seen


@styled
def gantt(times: Sequence[StageTime], night: Night) -> str | None:
    """Draws a row a stage: full work, hollow waiting, crosses failures; None without times."""
    if not times:
        return None
    height = 0.75 + 0.27 * len(times)
    figure, axes = canvas(height=height, left=0.2, right=0.84, bottom=0.4, top=0.3)
    began, ended = min(one.began_at for one in times), max(one.ended_at for one in times)
    length = max(ended - began, timedelta(seconds=1))
    limits = {"train until": night.train_until, "decide until": night.decide_until}
    near = {name: at for name, at in limits.items() if began < at <= began + NEAR * length}
    last = max([began + length, *near.values()])
    room = 0.02 * (last - began)
    axes.set_xlim(_x(began), _x(last + room))
    for y, one in enumerate(reversed(times)):
        _row(axes, y, one, least=LEAST * (last - began))
    _deadlines(axes, near)
    rows_of(axes, [f"↳ {one.name}" if one.of else one.name for one in times])
    dates: Any = matplotlib.dates  # has no types
    locator = dates.AutoDateLocator(minticks=4, maxticks=9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, show_offset=False))
    axes.grid(axis="x", color=RULE, lw=0.5)
    axes.set_axisbelow(True)
    longer = [one.name for one in times if one.why]
    amounts = "; ".join(f"{one.name} {formats.duration(one.took_s)}" for one in times if not one.of)
    told = f"; longer than planned: {', '.join(longer)}" if longer else ""
    return inline(figure, name="gantt", label=f"Stages in time: {amounts}{told}")


def _x(at: datetime) -> Any:
    dates: Any = matplotlib.dates
    return dates.date2num(at)


def _row(axes: Axes, y: int, one: StageTime, *, least: timedelta) -> None:
    color = ACCENT if one.why else MUTED
    for bar in one.bars:
        lasted = max(bar.ended_at - bar.began_at, least)
        span = (_x(bar.began_at), _x(bar.began_at + lasted) - _x(bar.began_at))
        if bar.kind == "wait":
            axes.barh(y, span[1], left=span[0], height=0.34, facecolor="none", edgecolor=color, lw=0.9)
        else:
            axes.barh(y, span[1], left=span[0], height=0.5, color=color, alpha=0.55 if one.of else 1)
        if bar.kind == "failed":
            axes.plot([_x(bar.ended_at)], [y], "x", color=INK, ms=6, mew=1.4)
    for mark in one.marks:
        style = ("|", 13) if mark.what == "restart" else (">", 6)
        axes.plot([_x(mark.at)], [y], style[0], color=INK, ms=style[1], mew=1.4)
    usd = f", {formats.dollars(one.usd)}" if one.usd is not None else ""
    beside = axes.get_yaxis_transform()
    axes.text(1.01, y, f"{formats.duration(one.took_s)}{usd}", va="center", size=9, transform=beside)


def _deadlines(axes: Axes, near: dict[str, datetime]) -> None:
    above: dict[str, Any] = {"va": "bottom", "size": 9, "transform": axes.get_xaxis_transform()}
    by_time: dict[datetime, list[str]] = {}
    for name, at in near.items():
        by_time.setdefault(at, []).append(name)
    for at, names in by_time.items():
        axes.axvline(_x(at), color=INK, lw=1, ls=(0, (2, 2)))
        side = (
            "right" if "train until" in names and len(by_time) > 1 else "left"
        )  # so that none runs into another
        axes.text(_x(at), 1.0, " and ".join(names), ha=side, **above)
