"""Draws the pictures of a profile: an update before and after the remedies, its roofline, its timeline.

Profiles of earlier nights have less evidence; a picture that lacks its figures is left out. What binds the
job is in the accent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from matplotlib.patches import Patch

from daybreak.contract import formats
from daybreak.contract.record_types import Profile
from daybreak.report.charts import canvas, rows_of
from daybreak.report.svg import ACCENT, INK, MUTED, PAPER, RULE, inline, styled

STRONG = {
    "io": ("loading", "waiting for data"),
    "compute": ("compute", "step"),
    "memory": ("memory traffic",),
}


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Seconds of an update, part after part."""

    label: str
    parts: Mapping[str, float]
    text: str


def pictures(profile: Profile, *, num_samples: int) -> dict[str, str | None]:
    """Returns the pictures by name, None where the evidence does not allow one; `num_samples` in a batch."""
    return {
        "update": None
        if profile.is_estimator  # one bar of one part
        else update(stacks(profile, num_samples=num_samples), bound=profile.bound),
        "roofline": roofline(_part(profile, "roofline"), device=profile.device),
        "timeline": timeline(_part(profile, "timeline"), bound=profile.bound),
    }


def stacks(profile: Profile, *, num_samples: int) -> list[Stack]:
    """Returns an update before the remedies, and after those that were kept."""
    evidence, improved = profile.evidence, _part(profile, "tuned")
    load_s, step_s = profile.load_s(num_samples), profile.step_s(num_samples)
    before_s = improved.get("before_s") or load_s + step_s
    shares = {"loading": load_s / (load_s + step_s or 1.0)}
    if "compute_share" in evidence:
        shares = {
            "loading": evidence["load_share"],
            "memory traffic": evidence["memory_share"],
            "compute": evidence["compute_share"],
        }
    else:
        shares["step"] = 1 - shares["loading"]
    parts = {name: share * before_s for name, share in shares.items()}
    updates = [Stack(label="Before", parts=parts, text=formats.duration(before_s))]
    after_s, rows = improved.get("after_s"), _part(profile, "timeline").get("after", [])
    if after_s and len(rows) > 1:
        waiting = median(max(0.0, later[2] - earlier[3]) for earlier, later in pairwise(rows))
        stepping = median(row[3] - row[2] for row in rows)
        share = waiting / (waiting + stepping or 1.0)
        parts = {"waiting for data": share * after_s, "step": (1 - share) * after_s}
        saved = f"{formats.duration(after_s)}, {formats.percent(1 - after_s / before_s)} saved"
        updates.append(Stack(label="After", parts=parts, text=saved))
    return updates


@styled
def update(rows: Sequence[Stack], *, bound: str) -> str | None:
    """Draws stacked bars of an update on one scale, a key above them."""
    most = max((sum(row.parts.values()) for row in rows), default=0.0)
    if not most:
        return None
    figure, axes = canvas(height=0.52 + 0.44 * len(rows), left=0.09, right=0.74, top=0.36)
    fills = _fills([name for row in rows for name in row.parts], bound)
    for y, row in enumerate(reversed(rows)):
        start = 0.0
        for name, seconds in row.parts.items():
            axes.barh(y, seconds, left=start, height=0.44, **fills[name])
            start += seconds
        axes.text(most * 1.03, y, row.text, va="center")
    rows_of(axes, [row.label for row in rows])
    axes.set_xlim(0, most * 1.01)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    key = [Patch(label=name, **fill) for name, fill in fills.items()]
    axes.legend(
        handles=key,
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=len(key),
        frameon=False,
        borderaxespad=0,
        handlelength=1,
        handleheight=1,
        columnspacing=1.4,
        fontsize=9,
    )
    values = "; ".join(
        f"{row.label} {row.text}, of which "
        + ", ".join(f"{name} {formats.duration(seconds)}" for name, seconds in row.parts.items())
        for row in rows
    )
    return inline(figure, name="update", label=f"An update: {values}")


def _fills(names: Sequence[str], bound: str) -> dict[str, dict[str, Any]]:
    """Returns the fill of each part: what binds in the accent, the others distinct without colours."""
    others: list[dict[str, Any]] = [
        {"color": MUTED},
        {"color": RULE},
        {"facecolor": PAPER, "edgecolor": MUTED, "hatch": "///"},
        {"facecolor": PAPER, "edgecolor": MUTED, "hatch": "..."},
    ]
    fills: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(names):
        fills[name] = {"color": ACCENT} if name in STRONG[bound] else others.pop(0)
    return fills


@styled
def roofline(measured: Mapping[str, Any], *, device: str) -> str | None:
    """Draws FLOP/s over FLOP per byte, both logarithmic: the measured roof, and the job below it."""
    names = ("flops_per_s", "flops_per_byte", "peak_flops_per_s", "peak_bytes_per_s")
    rate, intensity, peak, stream = (float(measured.get(name) or 0.0) for name in names)
    if min(rate, intensity, peak, stream) <= 0:
        return None
    ridge, roof = peak / stream, min(peak, stream * intensity)
    low, high = min(intensity, ridge) / 12, max(intensity, ridge) * 12
    figure, axes = canvas(height=3.1, left=0.09, right=0.985, bottom=0.5, top=0.1)
    axes.loglog([low, ridge, high], [low * stream, peak, peak], color=INK, lw=1.6)
    axes.loglog([intensity, intensity], [rate, roof], color=ACCENT, lw=1, ls=(0, (2, 2)))
    axes.loglog([intensity], [rate], "o", color=ACCENT, ms=9)
    floor = min(rate, low * stream) / 3
    gathered = float(measured.get("peak_gather_bytes_per_s") or 0.0)
    if gathered:
        floor = min(floor, low * gathered)
        end = min(high, peak / gathered)
        axes.loglog([low, end], [low * gathered, end * gathered], color=MUTED, lw=1, ls=(0, (5, 2)))
    axes.set_xlim(low, high)
    axes.set_ylim(floor, peak * 4)
    axes.text(high / 1.15, peak * 1.2, f"{formats.operations(peak)}FLOP/s", ha="right", va="bottom")
    slopes = f"Slope: a copy, {formats.size(stream)}/s" + (
        f". Dashed: random rows, {formats.size(gathered)}/s" if gathered else ""
    )
    axes.text(low * 1.15, peak * 1.2, slopes, ha="left", va="bottom", size=9, color=MUTED)
    share = f"this job: {formats.operations(rate)}FLOP/s, {formats.percent(rate / roof)} of its roof"
    right = intensity < (low * high) ** 0.5
    axes.annotate(
        share,
        (intensity, rate),
        xytext=(10 if right else -10, -9),
        textcoords="offset points",
        va="center",
        ha="left" if right else "right",
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1},
    )
    axes.set_xlabel("FLOP per byte")
    axes.set_ylabel("FLOP/s")
    axes.xaxis.set_major_formatter(lambda x, _: formats.quantity(float(x)))
    axes.yaxis.set_major_formatter(lambda y, _: formats.operations(float(y)))
    axes.minorticks_off()
    axes.tick_params(axis="y", labelcolor=MUTED, labelsize=9)
    return inline(figure, name="roofline", label=f"Roofline of {device}: {share}")


@styled
def timeline(runs_by_name: Mapping[str, Any], *, bound: str) -> str | None:
    """Draws lanes of loads and of steps, before and after the remedies, on one scale."""
    runs = {name: rows for name in ("before", "after") if (rows := runs_by_name.get(name))}
    if not runs:
        return None
    lanes = [
        (f"{name}: {what}", [(row[first], row[first + 1]) for row in rows], what == strong)
        for name, rows in runs.items()
        for what, first in (("loads", 0), ("steps", 2))
        for strong in ("loads" if bound == "io" else "steps",)
    ]
    most = max(end for _, spans, _ in lanes for _, end in spans) or 1.0
    figure, axes = canvas(height=0.5 + 0.4 * len(lanes), left=0.13, right=0.985, bottom=0.36, top=0.04)
    for y, (_, spans, strong) in enumerate(reversed(lanes)):
        places = _apart(spans)
        height = 0.6 / (max(places) + 1)
        for (start, end), place in zip(spans, places, strict=True):
            axes.barh(
                y + 0.3 - height * (place + 0.5),
                max(end - start, most / 2000),
                left=start,
                height=height,
                color=ACCENT if strong else MUTED,
                edgecolor=PAPER,
                lw=0.6,
            )
    rows_of(axes, [label.capitalize() for label, _, _ in lanes])
    axes.set_xlim(0, most * 1.005)
    axes.xaxis.set_major_formatter(lambda x, _: formats.duration(float(f"{x:.6g}")))
    ends = "; ".join(
        f"{name} {formats.duration(rows[-1][3])} for {len(rows)} updates" for name, rows in runs.items()
    )
    return inline(figure, name="timeline", label=f"Timeline of loads and steps: {ends}")


def _apart(spans: Sequence[tuple[float, float]]) -> list[int]:
    """Returns a place for each span, so that spans that overlap have different places."""
    free_at: list[float] = []
    places = []
    for start, end in spans:
        place = next((n for n, free in enumerate(free_at) if free <= start), len(free_at))
        free_at[place : place + 1] = [end]
        places.append(place)
    return places


def _part(profile: Profile, name: str) -> Mapping[str, Any]:
    part = profile.evidence.get(name)
    return part if isinstance(part, Mapping) else {}
