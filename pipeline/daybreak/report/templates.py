"""Renders templates, with the formats of figures as filters; loads no drawing library."""

import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from daybreak import hooks
from daybreak.contract import formats
from daybreak.report import glossary

_FORMATS = (
    "count",
    "duration",
    "dollars",
    "size",
    "score",
    "effect",
    "percent",
    "quantity",
    "operations",
    "clock",
)


@cache
def environment(*, hover: bool = False) -> Environment:
    """Returns the templates of this folder, and of extensions as `NAME/FILE`.

    Everything is escaped, and the number formats are filters. With `hover`, a figure that
    is shown rounded has the one on record under the pointer.
    """
    made = Environment(
        loader=FileSystemLoader([Path(__file__).parent, hooks.FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = _hovered if hover else _unbroken
    made.filters.update({name: partial(shown, getattr(formats, name)) for name in _FORMATS})
    made.filters |= {"days": formats.days, "counted": formats.counted, "explained": glossary.explained}
    made.filters["markdown"] = markdown
    made.globals |= {
        "word_id": glossary.target,
        "night_name": formats.night_name,
        "short_id": formats.short_id,
    }
    return made


def render(name: str, *, hover: bool = False, **shown: Any) -> str:
    """Returns a page made from the template of that name; `hover` is that of `environment`."""
    words = glossary.ExplainedWords()
    return environment(hover=hover).get_template(name).render(shown | {glossary.USED: words})


def markdown(text: str) -> Markup:
    """Returns Markdown as HTML, in which HTML of the text is shown as it is written, and no image is fetched.

    Its headings are below those of a page.
    """
    from markdown_it import MarkdownIt  # which few pages need

    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    tokens = parser.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = "h4"
    return Markup(parser.renderer.render(tokens, parser.options, {}))


def _unbroken(show: Callable[[Any], str], value: Any) -> str:
    """Returns the figure and its unit with spaces that do not break, so that both stay on one line."""
    return show(value).replace(" ", "\N{NO-BREAK SPACE}")


def _hovered(show: Callable[[Any], str], value: Any) -> str:
    """Returns the figure as `_unbroken` does, with the whole of it for a pointer and for programs."""
    text = _unbroken(show, value)
    if not isinstance(value, float) or not math.isfinite(value) or text == f"{value:g}":
        return text
    return Markup('<data value="{0!r}" title="{0!r}">{1}</data>').format(value, text)
