"""Draws a model's nights as small charts, SVG paths of a few bytes a night, without a drawing library.

A chart is a box of 1000 by 100 that the page stretches; strokes keep their width, and dots are strokes of no
length with round ends. Its words and limits are text of the page around it. What a chart shows is in the
table of nights as well.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup, escape

from daybreak.contract import formats
from daybreak.report.night_rows import NightRow

NIGHTS = 365  # the newest, that are drawn
WIDTH, HEIGHT = 1000.0, 100.0
ROOM = 0.06  # of the height, above and below


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart with the words around it."""

    title: str
    note: str
    svg: Markup
    top: str  # the value at its upper edge
    bottom: str
    first: str  # the day at its left edge
    last: str


def charts(rows: Sequence[NightRow]) -> list[Chart]:
    """Returns the charts of a model's nights that have something to show; `rows` newest first."""
    nights = [row for row in rows if not row.is_rollback][:NIGHTS][::-1]
    if len(nights) < 2:
        return []
    drawn = (
        _quality(nights),
        _ready(nights),
        _cost(nights),
        _predicted(nights),
        _rows(nights),
        _bound(nights),
    )
    return [chart for chart in drawn if chart]


def _quality(nights: Sequence[NightRow]) -> Chart | None:
    """Draws the score of what serves, on each night's samples, over the band that its chain may be in."""
    scores = [night.served_score for night in nights]
    if sum(score is not None for score in scores) < 2:
        return None
    band = [(n.anchor_floor, n.anchor_score) for n in nights]
    low, high, y = _scale([*scores, *(v for pair in band for v in pair)])
    return _chart(
        nights,
        "Quality of what serves",
        "Score of the version that serves, on each night's held-out samples. Band: from the anchor's score "
        "down to the least that its chain may score. Dots: promoted. Rings: champion kept. Below: failed.",
        [
            _area(band, y),
            _line([floor for floor, _ in band], y, "floor"),
            _line(scores, y, "line"),
            *_dots(
                [
                    y(s) if s is not None and n.outcome == "kept" else None
                    for n, s in zip(nights, scores, strict=True)
                ],
                "ring",
            ),
            *_dots(
                [
                    y(s) if s is not None and n.outcome == "promoted" else None
                    for n, s in zip(nights, scores, strict=True)
                ],
                "dot",
            ),
            _bars([4.0 if n.outcome == "failed" else None for n in nights], lambda v: HEIGHT - v, "strong"),
        ],
        top=formats.score(high),
        bottom=formats.score(low),
    )


def _ready(nights: Sequence[NightRow]) -> Chart | None:
    return _against(
        nights,
        "Ready, against the deadline",
        "Time from the opening of a night to its decision. Line: the deadline. Coloured: late.",
        [(n.decided_s, n.decide_within_s or None) for n in nights],
        formats.duration,
    )


def _cost(nights: Sequence[NightRow]) -> Chart | None:
    return _against(
        nights,
        "Cost, against the budget",
        "Dollars of a night. Line: its budget. Coloured: over it.",
        [(n.usd, None if n.usd is None else n.budget_usd) for n in nights],
        formats.dollars,
    )


def _against(
    nights: Sequence[NightRow],
    title: str,
    note: str,
    pairs: Sequence[tuple[float | None, float | None]],
    show: Callable[[float], str],
) -> Chart | None:
    """Draws bars and the limit of each; a limit far above all bars is only told, as no bar would be seen."""
    values, limits = zip(*pairs, strict=True)
    highest = formats.top_of(values)
    if highest is None:
        return None
    note += _cut(nights, values, highest, show)
    nearest = min((v for v in limits if v is not None), default=0.0)
    shown: Sequence[float | None] = limits if nearest <= 5 * highest else [None] * len(limits)
    top = max(highest, *(v for v in shown if v is not None), 1e-9) if any(shown) else highest or 1.0
    y = _linear(0.0, top)
    over = [v is not None and m is not None and v > m for v, m in zip(values, limits, strict=True)]
    if not any(shown) and nearest:
        note += f" It is {show(nearest)} or more, beyond this chart."
    return _chart(
        nights,
        title,
        note,
        [
            _bars([None if bad else v for v, bad in zip(values, over, strict=True)], y, "bar"),
            _bars([v if bad else None for v, bad in zip(values, over, strict=True)], y, "strong"),
            _line(shown, y, "limit"),
        ],
        top=show(top),
        bottom="0",
    )


def _predicted(nights: Sequence[NightRow]) -> Chart | None:
    """Draws actual over predicted time, on a logarithmic scale, with the interval that was predicted."""
    known = [(n.predicted_s, n.compared_s) for n in nights]
    ratios = [a / p[1] if p and a else None for p, a in known]
    spans = [(p[0] / p[1], p[2] / p[1]) if p and a else None for p, a in known]
    values = [v for v in (*ratios, *(v for s in spans if s for v in s)) if v]
    if len(values) < 6:
        return None
    reach = min(max(abs(math.log(v)) for v in values), math.log(10)) or 0.1

    def y(ratio: float) -> float:
        share = min(max(math.log(ratio) / reach, -1.0), 1.0)
        return HEIGHT * (0.5 - share * (0.5 - ROOM))

    places = [y(ratio) if ratio else None for ratio in ratios]
    inside, outside = (
        [place if (n.held is False) == missed else None for n, place in zip(nights, places, strict=True)]
        for missed in (False, True)
    )
    return _chart(
        nights,
        "Actual time, against the plan's",
        "Actual over predicted time of training; of nights that moved to other machines, at their rate "
        "before. Bars: the plan's 90 % interval. Coloured: outside of it.",
        [
            _spans(spans, y),
            _line([1.0] * len(nights), y, "limit"),
            *_dots(inside, "plain"),
            *_dots(outside, "dot"),
        ],
        top=f"{math.exp(reach):.2g} ×",
        bottom=f"{math.exp(-reach):.2g} ×",
    )


def _rows(nights: Sequence[NightRow]) -> Chart | None:
    values = [n.num_rows for n in nights]
    top = formats.top_of(values)
    if not top:
        return None
    cut = _cut(nights, values, top, formats.count)
    y = _linear(0.0, top)
    return _chart(
        nights,
        "Rows, and those in quarantine",
        f"Rows of a night. Coloured: those that were quarantined.{cut}",
        [_bars(values, y, "bar"), _bars([n.num_quarantined for n in nights], y, "strong")],
        top=formats.count(top),
        bottom="0",
    )


def _bound(nights: Sequence[NightRow]) -> Chart | None:
    """Draws what binds the training of each night, one of three rows."""
    levels = {"compute": 18.0, "memory": 50.0, "io": 82.0}
    if not any(n.bound for n in nights):
        return None
    return _chart(
        nights,
        "What binds training",
        "Above: compute. In the middle: memory. Below: reading the samples (I/O).",
        [
            *(_line([level] * len(nights), float, "rule") for level in levels.values()),
            *_dots([levels.get(n.bound) for n in nights], "plain"),
        ],
        top="compute",
        bottom="I/O",
    )


def loss_curve(points: Sequence[tuple[float, float]], *, end: float) -> Markup:
    """Draws the loss over the samples seen, of `end` in all; "" before there are two."""
    if len(points) < 2:
        return Markup("")
    _, _, y = _scale([loss for _, loss in points])
    places = [(min(seen / max(end, 1.0), 1.0) * WIDTH, y(loss)) for seen, loss in points]
    path = "M" + "L".join(f"{_n(x)} {_n(from_above)}" for x, from_above in places)
    label = f"Loss from {points[0][1]:.4g} to {points[-1][1]:.4g}"
    return _svg([f'<path class="line" d="{path}"/>'], label)


def _chart(
    nights: Sequence[NightRow], title: str, note: str, parts: Iterable[str], *, top: str, bottom: str
) -> Chart:
    label = f"{title}: {formats.counted(len(nights), 'night')}, {nights[0].day} to {nights[-1].day}"
    return Chart(
        title=title,
        note=note,
        svg=_svg(parts, label),
        top=top,
        bottom=bottom,
        first=nights[0].day,
        last=nights[-1].day,
    )


def _svg(parts: Iterable[str], label: str) -> Markup:
    inner = "".join(parts)
    return Markup(
        f'<svg class="chart" role="img" aria-label="{escape(label)}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" '
        f'preserveAspectRatio="none">{inner}</svg>'
    )


def _cut(
    nights: Sequence[NightRow], values: Sequence[float | None], top: float, show: Callable[[float], str]
) -> str:
    """Returns a sentence, after a space, on bars that go on beyond the top of a chart; "" where none does."""
    beyond = [f"{show(v)} on {n.day}" for n, v in zip(nights, values, strict=True) if v and v > top]
    more = f" and {len(beyond) - 2} more" if len(beyond) > 2 else ""
    return f" Beyond this chart: {', '.join(beyond[:2])}{more}." if beyond else ""


def _scale(values: Iterable[float | None]) -> tuple[float, float, Callable[[float], float]]:
    """Returns the limits of the values, and their place from above, with some room."""
    known = [v for v in values if v is not None]
    low, high = min(known), max(known)
    if high <= low:
        low, high = low - 0.5 * abs(low or 1.0), high + 0.5 * abs(high or 1.0)
    inner = _linear(low, high)
    return low, high, lambda v: HEIGHT * ROOM + inner(v) * (1 - 2 * ROOM)


def _linear(low: float, high: float) -> Callable[[float], float]:
    return lambda v: HEIGHT * (1 - (v - low) / (high - low))


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _x(at: int, num: int) -> str:
    return _n(WIDTH * (at + 0.5) / num)


def _line(values: Sequence[float | None], y: Callable[[float], float], style: str) -> str:
    """Returns a line through the values that are known."""
    points = [f"{_x(at, len(values))} {_n(y(v))}" for at, v in enumerate(values) if v is not None]
    return f'<path class="{style}" d="M{"L".join(points)}"/>' if len(points) > 1 else ""


def _area(pairs: Sequence[tuple[float | None, float | None]], y: Callable[[float], float]) -> str:
    """Returns the area between two values, where both are known."""
    path = ""
    known = [(at, *pair) for at, pair in enumerate(pairs)]
    for is_known, part in groupby(known, key=lambda one: None not in one):
        run = list(part)
        if is_known and len(run) > 1:
            below = [f"{_x(at, len(pairs))} {_n(y(low))}" for at, low, _ in run if low is not None]
            above = [f"{_x(at, len(pairs))} {_n(y(high))}" for at, _, high in run if high is not None]
            path += f"M{'L'.join(below + above[::-1])}Z"
    return f'<path class="band" d="{path}"/>' if path else ""


def _bars(values: Sequence[float | None], y: Callable[[float], float], style: str) -> str:
    num = len(values)
    bars = [f"M{_x(at, num)} {_n(HEIGHT)}V{_n(max(y(v), 0.0))}" for at, v in enumerate(values) if v]
    width = max(1.0, min(12.0, 0.7 * 560 / num))  # in pixels of a chart that is about 560 wide
    return f'<path class="{style}" stroke-width="{_n(width)}" d="{"".join(bars)}"/>' if bars else ""


def _spans(spans: Sequence[tuple[float, float] | None], y: Callable[[float], float]) -> str:
    num = len(spans)
    lines = [f"M{_x(at, num)} {_n(y(s[0]))}V{_n(y(s[1]))}" for at, s in enumerate(spans) if s]
    return f'<path class="span" d="{"".join(lines)}"/>' if lines else ""


def _dots(places: Sequence[float | None], style: str) -> list[str]:
    """Returns dots at these places from above; a ring is a dot with another of the paper on it."""
    num = len(places)
    path = "".join(f"M{_x(at, num)} {_n(place)}h0" for at, place in enumerate(places) if place is not None)
    if not path:
        return []
    size = 4.0 if num > 150 else 5.5 if num > 80 else 7.0
    if style == "ring":
        return [
            f'<path class="plain" stroke-width="{size:g}" d="{path}"/>',
            f'<path class="hole" stroke-width="{size - 2.6:g}" d="{path}"/>',
        ]
    return [f'<path class="{style}" stroke-width="{size:g}" d="{path}"/>']
