"""Reads numbers that were delivered as text: `$1,234.50`, `1.234,50`, `12 %`, `(5)`, and `NA` for no value.

Only texts in columns that the table declares as numbers are parsed here. The decimal sign, the separator of
thousands and further words for a missing value are the same in all columns of a source, so the source marks
its columns of text with them (`marked`). A symbol beside the number is declared for a column:
`Float(symbol="$")`.

A text that is not a number by that format stays a text that is none: where the comma is the decimal sign,
`1.234` is not 1.234.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from daybreak.contract import records
from daybreak.contract.record_parts import Record

# In columns of numbers and times; elsewhere they may be a value, as NA is a country.
WORDS_FOR_NULL = (
    "",
    "NA",
    "N/A",
    "#N/A",
    "<NA>",
    "na",
    "n/a",
    "n.a.",
    "NULL",
    "Null",
    "null",
    "(null)",
    "None",
    "none",
    "NaN",
    "nan",
    "\\N",
    "-",
    "--",
    "?",
    ".",
)
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?(inf|Inf|nan|NaN)$"  # as Arrow reads it
BLANKS = "[ \u00a0\u2009\u202f]"  # of any width, between thousands
MINUS = "\u2212"  # beside the hyphen
KEY = b"numbers"


@dataclass(frozen=True, kw_only=True)
class NumberFormat(Record):
    """How a source writes numbers as text."""

    decimal: Literal[".", ","] = "."
    thousands: Literal["", ",", ".", " ", "'"] = ""
    nulls: tuple[str, ...] = ()  # words for no value, beside those that are known

    def pattern(self, symbol: str = "") -> str:
        """Returns a regular expression that a text with a number matches, with `symbol` before or after."""
        point = re.escape(self.decimal)
        whole = rf"[1-9]\d{{0,2}}(?:{self._between}\d{{3}})+|\d+" if self.thousands else r"\d+"
        number = rf"(?:(?:{whole})(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?"
        if symbol:
            sign, blank = re.escape(symbol), f"{BLANKS}*"
            number = f"(?:{sign}{blank}[+-]?{number}|{number}{blank}{sign})"
        return rf"^(?:[+{MINUS}-]?{number}|\({number}\))$"

    def example(self, symbol: str = "") -> str:
        """Returns a number in this format.

        >>> NumberFormat(decimal=",", thousands=".").example("EUR")
        'EUR 1.000,5'
        """
        return f"{symbol} 1{self.thousands}000{self.decimal}5".strip()

    @property
    def _between(self) -> str:
        """What stands between thousands, as a regular expression."""
        return {" ": BLANKS, "'": "['\u2019]"}.get(self.thousands, re.escape(self.thousands))


def marked(rows: pa.Table, form: NumberFormat) -> pa.Table:
    """Returns the rows with the number format recorded in the metadata of each column of text."""
    if form == NumberFormat():
        return rows
    note = {KEY: records.dumps(form).encode()}
    fields = [field.with_metadata(note) if is_text(field.type) else field for field in rows.schema]
    return rows.cast(pa.schema(fields))


def format_of(field: pa.Field) -> NumberFormat:
    """Returns the number format that the source recorded for a column, or the default."""
    note = (field.metadata or {}).get(KEY)
    return records.loads(NumberFormat, note.decode()) if note else NumberFormat()


def without_words(
    texts: pa.ChunkedArray, form: NumberFormat | None = None, *, but: Collection[str] = ()
) -> pa.ChunkedArray:
    """Returns texts with null for the words that stand for no value, `but` those that are one here."""
    known = {*WORDS_FOR_NULL, *(form.nulls if form else ())}
    words = pa.array(sorted(known.difference(but)), texts.type)
    is_word = pc.is_in(texts, words)
    return pc.if_else(is_word, pa.scalar(None, texts.type), texts) if pc.any(is_word).as_py() else texts


def plain(texts: pa.ChunkedArray, form: NumberFormat, symbol: str = "") -> pa.ChunkedArray:
    """Returns texts with each number as Arrow reads it, and null for no value.

    With a symbol, a number without it is none. What is not a number in this format cannot be read as one.
    """
    texts = without_words(texts, form)
    if form.decimal == "." and not form.thousands and not symbol:
        return pc.replace_substring_regex(texts, r"^\+(\d)", r"\1")
    written = pc.match_substring_regex(texts, form.pattern(symbol))
    short = pc.replace_substring(texts, symbol, "") if symbol else texts
    if form.thousands:
        short = pc.replace_substring_regex(short, form._between, "")
    short = pc.replace_substring_regex(short, f"{BLANKS}+", "")
    short = pc.replace_substring_regex(short, r"^\((.*)\)$", r"-\1")
    short = pc.replace_substring_regex(short, f"^{MINUS}", "-")
    short = pc.replace_substring_regex(short, r"^\+", "")
    short = pc.replace_substring(short, form.decimal, ".")
    return pc.if_else(
        written, short, pc.replace_substring_regex(texts, "$", f" (not as {form.example(symbol)})")
    )


def is_text(kind: pa.DataType) -> bool:
    """Returns whether a type is text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
