"""Renders the templates of this folder, with the formats of figures as filters; loads no drawing library."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.contract import formats

_FORMATS = (
    "count", "duration", "dollars", "size", "score", "effect", "percent", "quantity", "operations", "clock",
)  # fmt: skip


@cache
def environment() -> Environment:
    """Returns the templates of this folder: everything is escaped, the number formats are filters."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update({name: partial(_unbroken, getattr(formats, name)) for name in _FORMATS})
    return made


def render(name: str, **shown: Any) -> str:
    """Returns a page made from the template of that name."""
    return environment().get_template(name).render(shown)


def _unbroken(show: Callable[[Any], str], value: Any) -> str:
    """Returns the figure and its unit with spaces that do not break, so that both stay on one line."""
    return show(value).replace(" ", "\N{NO-BREAK SPACE}")
