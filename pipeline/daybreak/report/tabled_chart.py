"""Holds a chart together with what it shows in words and numbers."""

from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True, kw_only=True)
class TabledChart:
    """A chart with a title, a sentence, and a table of the numbers."""

    title: str
    words: str
    chart: Markup
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
