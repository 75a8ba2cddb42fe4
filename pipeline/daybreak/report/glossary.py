"""Explains words where they stand on a page, from the glossary that docs have as well (glossary.md).

The first place of a word on a page is a button; pressing it, by a tap or a key, shows its line of the
glossary beside it, without a script (HTML's popover).
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

FILE = Path(__file__).with_name("glossary.md")
USED = "explained_words"  # in the context of a page: its words that are explained, each with its line
# A page names these all over, so that explaining them would be in the way.
_EVERYDAY = {"gate", "home", "night", "record", "row", "sample", "stage", "state", "unit", "version"}


@cache
def lines() -> dict[str, str]:
    """Returns the glossary: each word with what it means, as plain text."""
    found = re.findall(r"^- \*\*(.+?)\*\*: (.+)$", FILE.read_text(), flags=re.MULTILINE)
    return {word: _plain(text) for word, text in found}


@pass_context
def explained(context: Context, text: str) -> Markup:
    """Returns a text with the words of the glossary as buttons, where they stand on the page first."""
    used: dict[str, str] = context[USED]
    parts, end = [], 0
    for match in _words().finditer(str(text)):
        word = match[1].lower()
        if word in used:
            continue
        used[word] = lines()[word]
        button = Markup('<button type="button" class="word" popovertarget="{0}">{1}</button>')
        parts += [escape(text[end : match.start()]), button.format(target(word), match[0])]
        end = match.end()
    return Markup("").join([*parts, escape(text[end:])])


def target(word: str) -> str:
    """Returns the id of the element on a page that has the line of a word."""
    return f"word-{word.replace(' ', '-')}"


@cache
def _words() -> re.Pattern[str]:
    words: Iterable[str] = sorted(set(lines()) - _EVERYDAY, key=len, reverse=True)
    return re.compile(rf"\b({'|'.join(map(re.escape, words))})\b(?!-)", flags=re.IGNORECASE)


def _plain(text: str) -> str:
    """Returns a line of Markdown without links and marks of code."""
    return re.sub(r" ?\(\[[^]]*\]\([^)]*\)\)|`", "", text)
