"""Turns a drawing into a part of a page: inline SVG, in the colours of the page around it.

A chart is drawn in stand-in colours that become CSS variables afterwards, so that one drawing serves
light, dark and print; its text stays text. Ids are prefixed with the name of the chart, since a page holds
many charts; metadata and namespaces, which name hosts, are left out.
"""

import io
import re
from collections.abc import Callable
from functools import wraps
from html import escape
from typing import Any, ParamSpec, TypeVar

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

INK, MUTED, RULE, ACCENT, FILL, PAPER = (f"#01020{n}" for n in range(6))
_VARIABLES = {
    INK: "currentColor",
    MUTED: "var(--muted)",
    RULE: "var(--rule)",
    ACCENT: "var(--accent)",
    FILL: "var(--fill)",
    PAPER: "var(--paper)",
}
_LIGHT = {  # of base.html
    "paper": "#fff",
    "ink": "#1b1d21",
    "muted": "#6a7079",
    "rule": "#d9dce1",
    "fill": "#eef0f3",
    "accent": "#b4470f",
}
WIDTH = 10.0  # inches; the page scales it
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 10,
    "text.parse_math": False,  # "$0.42 of $50.00" is not a formula
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 10,
    "ytick.major.size": 0,
    "lines.solid_capstyle": "butt",
}

P = ParamSpec("P")
R = TypeVar("R")


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Makes `draw` use our style, and leaves matplotlib's own settings as they were."""

    @wraps(draw)
    def drawn(*args: P.args, **named: P.kwargs) -> R:
        with rc_context(_STYLE):
            return draw(*args, **named)

    return drawn


def alone(element: str) -> str:
    """Returns an element of `inline` as a file that another page can show as a picture, in light colours.

    >>> alone('<svg viewBox="0 0 72 9"><path style="stroke: var(--rule)"/></svg>').partition("><")[2]
    'path style="stroke: #d9dce1"/></svg>'
    """
    element = re.sub(r"var\(--(\w+)\)", lambda m: _LIGHT[m[1]], element)
    size = re.search(r'viewBox="[\d.]+ [\d.]+ ([\d.]+) ([\d.]+)"', element)
    dimensions = f' width="{size[1]}" height="{size[2]}"' if size else ""
    look = f"background: {_LIGHT['paper']}; color: {_LIGHT['ink']}; font-family: sans-serif"
    head, _, rest = element.removeprefix("<svg").partition(">")
    return f'<svg xmlns="http://www.w3.org/2000/svg"{dimensions}{head} style="{look}">{rest}'


def inline(figure: Figure, *, name: str, label: str) -> str:
    """Returns the figure as an svg element of a page: no prolog, no metadata, own ids, CSS colours."""
    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
    file = io.StringIO()
    with rc_context({"svg.hashsalt": name}):
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(file, metadata={"Date": None, "Creator": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    used_ids = set(re.findall(r'(?:href="#|url\(#)([\w.-]+)', svg))
    svg = re.sub(r' id="([\w.-]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used_ids else "", svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"#01020\d", lambda m: _VARIABLES[m[0]], svg)
    svg = re.sub(r"font-family: [^;\"]*(; )?", "", svg)
    box = re.search(r'viewBox="[^"]*"', svg)
    head = f'<svg role="img" aria-label="{escape(label)}" {box[0] if box else ""}>'
    return head + re.sub(r"\n\s*", "\n", svg[svg.index(">") + 1 :]).strip()
