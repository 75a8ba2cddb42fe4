"""Draws the pictures of a plan: its options by time and cost, and what both consist of.

Plans of earlier nights have no options; a picture that lacks its figures is left out.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator

from daybreak.contract import formats
from daybreak.contract.record_parts import Option, Portion
from daybreak.contract.record_types import Night, Plan
from daybreak.contract.units import HOUR_S
from daybreak.report.charts import canvas, rows_of
from daybreak.report.svg import ACCENT, FILL, INK, MUTED, PAPER, inline, styled

TIMES_S = [  # ticks of an axis
    *(1, 3, 10, 30, 60, 180, 600, 1800),
    *(hours * HOUR_S for hours in (1, 3, 10, 30, 100)),
]
NEAR = 5.0  # a limit of more than this many times everything else is left out


def pictures(plan: Plan, night: Night) -> dict[str, str | None]:
    """Returns the pictures by name, None where the plan does not allow one."""
    return {
        "options": options(plan.reasons.options, night=night),
        "portions": portions((*plan.forecast.portions, *plan.after)),
    }


@styled
def options(weighed: Sequence[Option], *, night: Night) -> str | None:
    """Draws dollars over time, both logarithmic: the plan with its interval, the frontier, the limits."""
    if len({(option.expected_s, option.expected_usd) for option in weighed}) < 2:
        return None
    figure, axes = canvas(height=3.4, left=0.09, right=0.985, bottom=0.5, top=0.2)
    axes.set_xscale("log")
    least_usd = min((o.expected_usd for o in weighed if o.expected_usd > 0), default=1.0)
    axes.set_yscale("symlog", linthresh=least_usd)  # linear near 0, for options that cost nothing
    curve = sorted((o for o in weighed if o.frontier), key=lambda option: option.expected_s)
    axes.plot(*_places(curve), color=MUTED, lw=1, zorder=1)
    marks: list[tuple[list[Option], dict[str, Any]]] = [
        ([o for o in weighed if not o.feasible], {"marker": "x", "mec": MUTED}),
        ([o for o in weighed if o.feasible and not o.frontier], {"marker": "o", "mfc": PAPER, "mec": MUTED}),
        ([o for o in weighed if o.feasible and o.frontier], {"marker": "o", "mfc": INK, "mec": INK}),
    ]
    for chosen, style in marks:
        axes.plot(*_places(chosen), ls="", ms=5.5, mew=1.2, **style)
    plan = next((option for option in weighed if not option.why_not), None)
    if plan:
        axes.plot(plan.interval, [plan.expected_usd] * 2, color=ACCENT, lw=2, zorder=3)
        axes.plot([plan.expected_s], [plan.expected_usd], "o", color=ACCENT, ms=9, zorder=4)
    _limits(axes, weighed, night)
    axes.set_xlabel("time")
    axes.set_ylabel("cost")
    axes.xaxis.set_major_locator(FixedLocator(TIMES_S))
    axes.xaxis.set_major_formatter(lambda x, _: formats.duration(x))
    axes.yaxis.set_major_formatter(lambda y, _: formats.dollars(float(f"{y:.3g}")))
    axes.minorticks_off()
    axes.tick_params(axis="y", labelcolor=MUTED, labelsize=9)
    label = f"Time and cost of {len(weighed)} options, {sum(o.feasible for o in weighed)} of them feasible"
    if plan:
        amounts = f"{formats.duration(plan.expected_s)}, {formats.dollars(plan.expected_usd)}"
        label += f"; the plan is {plan.rental}, {amounts}"
    return inline(figure, name="options", label=label)


def _places(weighed: Sequence[Option]) -> tuple[list[float], list[float]]:
    return [option.expected_s for option in weighed], [option.expected_usd for option in weighed]


def _limits(axes: Axes, weighed: Sequence[Option], night: Night) -> None:
    """Draws deadline and budget as dashed lines, where they are near enough to matter."""
    limit_s = (night.train_until - night.started_at).total_seconds()
    dashed: dict[str, Any] = {"color": INK, "lw": 1, "ls": (0, (2, 2)), "zorder": 0}
    if limit_s <= NEAR * max(option.expected_s for option in weighed):
        axes.axvline(limit_s, **dashed)
        axes.text(
            limit_s, 1.01, "deadline", ha="center", va="bottom", size=9, transform=axes.get_xaxis_transform()
        )
    if 0 < night.budget_usd <= NEAR * max(option.expected_usd for option in weighed):
        axes.axhline(night.budget_usd, **dashed)
        axes.text(
            0.995,
            night.budget_usd,
            "budget",
            ha="right",
            va="bottom",
            size=9,
            transform=axes.get_yaxis_transform(),
        )


@styled
def portions(parts: Sequence[Portion]) -> str | None:
    """Draws a bar for each part of the time, each beginning where the one before ends, with its dollars."""
    total_s = sum(portion.expected_s for portion in parts)
    if not total_s:
        return None
    figure, axes = canvas(height=0.16 + 0.36 * len(parts), left=0.19, right=0.74)
    begin_s = 0.0
    most = max(portion.expected_s for portion in parts)
    for y, portion in zip(reversed(range(len(parts))), parts, strict=True):
        axes.barh(y, total_s, height=0.5, color=FILL)
        strong = portion.expected_s == most
        axes.barh(
            y,
            max(portion.expected_s, total_s / 500),
            left=begin_s,
            height=0.5,
            color=ACCENT if strong else MUTED,
        )
        axes.text(total_s * 1.03, y, _amounts(portion), va="center")
        begin_s += portion.expected_s
    rows_of(axes, [portion.name for portion in parts])
    axes.set_xlim(0, total_s * 1.01)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    amounts = "; ".join(f"{portion.name} {_amounts(portion)}" for portion in parts)
    return inline(figure, name="portions", label=f"What the plan consists of: {amounts}")


def _amounts(portion: Portion) -> str:
    return f"{formats.duration(portion.expected_s)}, {formats.dollars(portion.expected_usd)}"
