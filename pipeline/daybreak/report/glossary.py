"""Explains words where they stand on a page, from the glossary that docs have as well (glossary.md).

The first place of a word in each part of a page, which may be folded, is a button; pressing it, by a tap or a
key, shows its line of the glossary beside it, without a script (HTML's popover).
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

FILE = Path(__file__).with_name("glossary.md")
USED = "explained_words"  # in the context of a page: its `ExplainedWords`
# A page names these all over, so that explaining them would be in the way.
_EVERYDAY = {"gate", "home", "night", "record", "row", "sample", "stage", "state", "unit", "version"}


class ExplainedWords:
    """The words that a page explains."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}  # of the glossary, by word
        self._in_part: set[str] = set()

    def begin_part(self) -> str:
        """Begins a part of the page, which explains its words anew; returns "", as templates call it."""
        self._in_part.clear()
        return ""

    def add(self, word: str) -> bool:
        """Adds a word, and returns whether the part at hand had not explained it."""
        if word in self._in_part:
            return False
        self._in_part.add(word)
        self.lines[word] = lines()[word]
        return True


@cache
def lines() -> dict[str, str]:
    """Returns the glossary: each word with what it means, as plain text."""
    found = re.findall(r"^- \*\*(.+?)\*\*: (.+)$", FILE.read_text(), flags=re.MULTILINE)
    return {word: _plain(text) for word, text in found}


@pass_context
def explained(context: Context, text: str) -> Markup:
    """Returns a text with the words of the glossary as buttons, where they stand in the part first."""
    used: ExplainedWords = context[USED]
    parts, end = [], 0
    for match in _words().finditer(str(text)):
        word = match[1].lower()
        if not used.add(word):
            continue
        button = Markup('<button type="button" class="word" popovertarget="{0}">{1}</button>')
        shown = button.format(target(word), match[1])
        if match[0] != match[1]:  # else a line might begin with the comma after a button
            shown = Markup('<span class="nb">{0}{1}{2}</span>').format(
                text[match.start() : match.start(1)], shown, text[match.end(1) : match.end()]
            )
        parts += [escape(text[end : match.start()]), shown]
        end = match.end()
    return Markup("").join([*parts, escape(text[end:])])


def target(word: str) -> str:
    """Returns the id of the element on a page that has the line of a word."""
    return f"word-{word.replace(' ', '-')}"


@cache
def _words() -> re.Pattern[str]:
    words: Iterable[str] = sorted(set(lines()) - _EVERYDAY, key=len, reverse=True)
    # Not the verb, as in "too few to bound it".
    any_word = "|".join(map(re.escape, words))
    return re.compile(rf"\(?(?<!to )\b({any_word})\b(?!-)(?:'s\b)?[.,;:)]*", flags=re.IGNORECASE)


def _plain(text: str) -> str:
    """Returns a line of Markdown without links and marks of code."""
    return re.sub(r" ?\(\[[^]]*\]\([^)]*\)\)|`", "", text)
