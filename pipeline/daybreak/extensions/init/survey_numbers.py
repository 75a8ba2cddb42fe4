"""Finds how a team's texts write numbers: the decimal sign, thousands, symbols, and words for no value.

The result is written into params.yaml (`decimal`, `thousands`, `nulls` of the source) and into the table
(`symbol` of a column), so that every night reads the same way; `as_numbers` notes guesses in a sentence.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from daybreak.contract.errors import DataError
from daybreak.contract.formats import count, counted
from daybreak.contract.table import Float, Int, Table
from daybreak.data.bad_cells import TOO_BAD
from daybreak.data.numbers import (
    BLANKS,
    MINUS,
    NUMBER,
    NumberFormat,
    format_of,
    is_text,
    plain,
    without_words,
)

# In order of trial: the first format that reads all columns of numbers is taken.
FORMATS = (
    NumberFormat(),
    NumberFormat(thousands=","),
    NumberFormat(thousands=" "),
    NumberFormat(thousands="'"),
    NumberFormat(decimal=","),
    NumberFormat(decimal=",", thousands="."),
    NumberFormat(decimal=",", thousands=" "),
    NumberFormat(decimal=",", thousands="'"),
)
CURRENCIES = {
    "AUD",
    "BRL",
    "CAD",
    "CHF",
    "CNY",
    "CZK",
    "DKK",
    "EUR",
    "GBP",
    "HKD",
    "HUF",
    "INR",
    "JPY",
    "KRW",
    "MXN",
    "NOK",
    "NZD",
    "PLN",
    "RON",
    "RUB",
    "SEK",
    "SGD",
    "TRY",
    "USD",
    "ZAR",
    "Rs",
    "Rs.",
    "kr",
}
UNIT = r"[A-Za-z\u00b5\u03bc\u03a9\u00b0%\u2030/\u00b2\u00b3]{2,6}"  # after a number, as kg or km/h
NUM_TEXTS = 1000  # distinct texts of a column from which symbol and format are detected
MOST_ODD = 0.05  # share of values in a column of numbers that are not numbers, with at most so many texts:
MOST_ODD_TEXTS = 3
MOST_SHOWN, PEEK = 3, 100_000
FEW_TEXTS = 20  # that are no numbers, beside numbers; of more the column is codes


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A column of texts as numbers, or the reason why the texts are not numbers."""

    texts: pa.ChunkedArray | None  # as Arrow reads numbers, null for other texts; None: not numbers
    symbol: str = ""
    note: str = ""  # guesses, and values that may be read otherwise, in a sentence


def number_format(columns: Iterable[pa.ChunkedArray], *, given: NumberFormat, delimiter: str) -> NumberFormat:
    """Returns the format by which most columns of numbers among the texts are read, the plainest of equals.

    Where `1,000` may be 1000 or 1.000, it is 1000 in a file with commas between fields, which is usual in
    English; in other files the plain format is taken, by which `1,000` is not a number.

    Args:
        columns: texts of each column.
        given: the words for no value, and what stands between thousands, if somebody says so.
        delimiter: of the file.
    """
    fits: Counter[NumberFormat] = Counter()
    for texts in columns:
        fits.update(_fitting(pc.unique(without_words(texts, given).drop_null()).slice(0, NUM_TEXTS)))
    formats = [form for form in FORMATS if not given.thousands or form.thousands == given.thousands]
    most = max(fits[form] for form in formats)
    best = next(form for form in formats if fits[form] == most)
    is_either = best == NumberFormat(thousands=",") and fits[NumberFormat(decimal=",")] == most
    if is_either and not given.thousands and delimiter != ",":
        best = NumberFormat()
    return replace(best, nulls=given.nulls)


def _fitting(texts: pa.Array) -> list[NumberFormat]:
    """Returns the formats in which most of some different texts are numbers; none where all of them do."""
    if not len(texts) or all_match(texts, r"^[+-]?\d+$") or not all_match(texts.slice(0, FEW_TEXTS), r"\d"):
        return []
    if all_match(texts, NUMBER):
        grouped = all_match(texts, r"^[+-]?([1-9]\d{0,2}(\.\d{3})+|\d+)$")
        return [form for form in FORMATS if form.decimal == "." or (grouped and form.thousands == ".")]
    symbol = symbol_of(texts)
    return [form for form in FORMATS if _share(texts, form, symbol) >= 1 - MOST_ODD]


def as_numbers(
    values: pa.ChunkedArray, name: str, *, form: NumberFormat, place: Callable[[int], str]
) -> Reading:
    """Returns how texts are read as numbers; `place` names a row by its number."""
    known = without_words(values, form)
    if known.null_count == len(known):
        return Reading(texts=None)
    some = pc.unique(known.slice(0, PEEK).drop_null()).slice(0, NUM_TEXTS)
    symbol = symbol_of(some)
    if _share(some, form, symbol) < MOST_ODD:
        return Reading(texts=None)
    made = plain(known, form, symbol)
    is_number = pc.match_substring_regex(made, NUMBER)
    numbers = pc.if_else(is_number, made, pa.scalar(None, made.type))
    if pc.any(pc.match_substring_regex(numbers, r"^[+-]?0\d")).as_py():  # 007 is not 7
        return Reading(texts=None)
    odd = known.filter(pc.invert(is_number)).drop_null()
    num, num_known = len(values), len(known) - known.null_count
    notes = []
    if words := _counted(values.filter(pc.and_(values.is_valid(), known.is_null()))):
        notes.append(f"{words} of {num:,} values, read as null")
    if symbol:
        notes.append(f"numbers with {symbol}, which is left out")
    if not len(odd):
        return Reading(texts=numbers, symbol=symbol, note=f"{name}: {'; '.join(notes)}" if notes else "")
    texts = pc.unique(odd).to_pylist()
    first = pc.fill_null(pc.invert(is_number), False).index(pa.scalar(True)).as_py()
    such = f"such as {texts[0]!r} in {place(first)}"
    if len(odd) <= MOST_ODD * num_known and len(texts) <= MOST_ODD_TEXTS:
        notes.append(
            f"a number in all but {len(odd):,} of {num:,} rows, {such}, which go to quarantine; if it stands "
            f"for no value, write --nulls {texts[0]!r}"
        )
        return Reading(texts=numbers, symbol=symbol, note=f"{name}: {'; '.join(notes)}")
    return Reading(texts=None, note=_why_text(name, odd, texts, such, num=num, num_known=num_known))


def words_of_a_day(rows: pa.Table, table: Table, day: date) -> DataError | None:
    """Returns the error that a column of numbers is mostly words on a day; None where none is.

    Single ones go to quarantine with their rows. With so many, the column has another type on that day.
    """
    for name, column in table.columns.items():
        of_classes = table.label is not None and name == table.label.column and bool(table.label.classes)
        if of_classes or not isinstance(column, Int | Float) or not is_text(rows[name].type):
            continue
        form = format_of(rows.schema.field(name))
        known = without_words(rows[name], form).drop_null()
        odd = known.filter(pc.invert(pc.match_substring_regex(plain(known, form, column.symbol), NUMBER)))
        texts = pc.unique(odd).to_pylist()
        if len(odd) >= TOO_BAD * len(known) and 0 < len(texts) <= MOST_ODD_TEXTS:
            words = ",".join([*form.nulls, *texts])
            return DataError(
                f"{name} is {texts[0]!r} in {count(pc.sum(pc.equal(odd, texts[0])).as_py())} of "
                f"{counted(len(rows), 'row')} of {day}, and a number on other days; if it stands for no "
                f"value, write --nulls {words!r}, or leave the column out by --without {name!r}"
            )
    return None


def _why_text(
    name: str, odd: pa.ChunkedArray, texts: Sequence[str], such: str, *, num: int, num_known: int
) -> str:
    """Returns why a column that looks as if it held numbers stays text, and what to do; "" for plain text."""
    if all_match(odd, r"^[+-]?[1-9]\d{0,2}(,\d{3})+$"):
        shown = texts[0]
        return (
            f"{name} stays text: {shown!r} may be {shown.replace(',', '')} or {shown.replace(',', '.')}; "
            f"write --thousands , or, where the comma is the decimal sign, --thousands ."
        )
    if len(odd) > num_known / 2 or len(texts) > FEW_TEXTS:
        return ""
    return (
        f"{name} stays text: {len(odd):,} of {num:,} values are not numbers, {such}; if it stands for no "
        f"value, write --nulls {texts[0]!r}"
    )


def symbol_of(texts: pa.Array) -> str:
    """Returns the currency, the unit or the percent sign beside most numbers; "" where there is none.

    >>> symbol_of(pa.array(["$1,234.50", "-$5"])), symbol_of(pa.array(["12 %"])), symbol_of(pa.array(["A1"]))
    ('$', '%', '')
    """
    number = rf"\d(?:[\d.,'\u2019]|{BLANKS}(?=\d))*(?:[eE][+-]?\d+)?"
    beside = re.compile(
        rf"[+{MINUS}(-]?(?P<before>[^\d\s.,()+{MINUS}-]*\.?){BLANKS}*[+-]?{number}{BLANKS}*(?P<after>[^\d\s()]*)\)?"
    )
    found = [match for text in texts.to_pylist() if (match := beside.fullmatch(text))]
    symbols = Counter(match["before"] or match["after"] for match in found)
    symbol, times = symbols.most_common(1)[0] if symbols else ("", 0)
    after = any(match["after"] == symbol for match in found)
    is_one = (
        symbol in CURRENCIES
        or symbol in ("%", "\u2030", "\u00b0")
        or any(unicodedata.category(sign) == "Sc" for sign in symbol)
        or (after and bool(re.fullmatch(UNIT, symbol)))
    )
    return symbol if symbol and is_one and times > len(texts) / 2 else ""


def all_match(texts: pa.Array, pattern: str) -> bool:
    """Returns whether a pattern is found in all texts."""
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())


def _share(texts: pa.Array, form: NumberFormat, symbol: str) -> float:
    """Returns the share of texts that are numbers in a format."""
    is_number = pc.match_substring_regex(plain(texts, form, symbol), NUMBER)
    return float(pc.mean(is_number.cast(pa.float64())).as_py() or 0)


def _counted(words: pa.ChunkedArray) -> str:
    """Returns in words how often each text is there, the most frequent first.

    >>> _counted(pa.chunked_array([["NA", "-", "NA"]]))
    "'NA' in 2 and '-' in 1"
    """
    counts = sorted(words.value_counts().to_pylist(), key=lambda each: -each["counts"])
    return " and ".join(f"{each['values']!r} in {each['counts']:,}" for each in counts[:MOST_SHOWN])
