"""Finds the type of a column of a table that values fit into."""

import contextlib
import re
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from daybreak.contract.table import MAX_EXACT, AnyColumn, Bool, Bytes, Category, Float, Id, Int, Text, Time
from daybreak.data.numbers import format_of, is_text, without_words
from daybreak.extensions.init.survey_numbers import all_match, as_numbers
from daybreak.extensions.init.survey_source import ISO, NUMBERS, WHOLE, formats_of

MOST_VALUES = 1000  # of a category
TEXT_CHARS = 30  # mean length of texts that people wrote
FEW_CLASSES = 20
MOST_UNITS, ROWS_A_UNIT = 50, 20  # units that the model sees: no more, with at least so many rows each
ZEROS = 0.01  # share of the rows that are 0, from which on 0 is the least that a number can be
IS_ID = re.compile(r"(^|_)id$|[a-z]I[dD]$", re.ASCII)


def unit_column(values: pa.ChunkedArray) -> AnyColumn:
    """Returns the column of the unit: a category, which the model sees, where few come again and again."""
    nullable, known = values.null_count > 0, values.drop_null()
    num = pc.count_distinct(known).as_py()
    is_few = num <= MOST_UNITS and len(known) >= ROWS_A_UNIT * num
    return Category(nullable=nullable) if is_few else Id(nullable=nullable)


def column_of(
    values: pa.ChunkedArray, of: pa.Field, *, typed: bool, is_label: bool, place: Callable[[int], str]
) -> tuple[AnyColumn | None, str]:
    """Returns the column of a table that values fit into, and what was guessed; None: a table has no such."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if is_text(values.type) and values.null_count < len(values):
        return _textual(values, of, typed=typed, is_label=is_label, place=place)
    return _typed(values, "" if is_label else of.name), ""


def _typed(values: pa.ChunkedArray, name: str) -> AnyColumn | None:
    """Returns the column of a table for values that are not text; without a name they are never ids."""
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    kind, nullable = values.type, values.null_count > 0
    if values.null_count == len(values):
        return None
    if any(is_kind(kind) for is_kind in (*NUMBERS, pa.types.is_decimal)):
        return _number(values, nullable=nullable, name=name)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        sizes = pc.unique(pc.list_value_length(values).drop_null()).to_pylist()
        vector = len(sizes) == 1 and sizes[0] and pa.types.is_floating(kind.value_type)
        return Float(size=sizes[0]) if vector and not nullable else None
    plain = next((column for fits, column in _PLAIN if fits(kind)), None)
    return plain(nullable=nullable) if plain else None


_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], Callable[..., AnyColumn]], ...] = (
    (pa.types.is_boolean, Bool),
    (pa.types.is_timestamp, Time),
    (pa.types.is_date, Time),
    (pa.types.is_binary, Bytes),
    (pa.types.is_large_binary, Bytes),
)


def _number(values: pa.ChunkedArray, *, nullable: bool, name: str) -> AnyColumn:
    """Returns the column of a table that numbers fit into; without a name they are never ids."""
    numbers = values.cast(pa.float64(), safe=False)  # inexact beyond 2 ** 53, which is enough for a range
    low, whole = pc.min(numbers).as_py(), pa.types.is_integer(values.type)
    if not whole and nullable:  # Tools that have no null for whole numbers make floats of them.
        whole = pc.all(pc.and_(pc.is_finite(numbers), pc.equal(numbers, pc.round(numbers)))).as_py()
    if whole and IS_ID.search(name) and pc.count_distinct(values).as_py() > FEW_CLASSES:
        return Id(nullable=nullable)
    largest = pc.max(pc.abs(numbers)).as_py()
    if pa.types.is_integer(values.type) and largest > (MAX_EXACT if name else 2.0**63):
        return Id(nullable=nullable)  # a feature would be one number for several of them
    zeros = pc.sum(pc.equal(numbers, 0)).as_py()
    least = 0 if low == 0 and zeros >= ZEROS * len(numbers) else None  # an amount or a count ends at 0
    return Int(min=least, nullable=nullable) if whole else Float(min=least, nullable=nullable)


def _textual(
    values: pa.ChunkedArray, of: pa.Field, *, typed: bool, is_label: bool, place: Callable[[int], str]
) -> tuple[AnyColumn | None, str]:
    """Returns the column of a table that texts fit into, and what was guessed of it."""
    known = without_words(values, format_of(of))
    with_words = known.null_count > 0
    if formats_of(values) == ISO:
        return Time(nullable=with_words), ""
    reading = as_numbers(values, of.name, form=format_of(of), place=place)
    if reading.texts is not None:
        numbers = reading.texts.drop_null()
        is_code = (
            typed and not reading.note and all_match(numbers, WHOLE)
        )  # of a source that has numbers, too
        column = (
            None if is_code else _of_numbers(numbers, nullable=with_words, name="" if is_label else of.name)
        )
        if isinstance(column, Int | Float):
            return replace(column, symbol=reading.symbol), reading.note
        if column:
            return column, ""
    if not typed and known.null_count < len(known):
        with contextlib.suppress(pa.ArrowInvalid):
            known.cast(pa.bool_())
            return Bool(nullable=with_words), ""
    return _of_texts(values), "" if reading.texts is not None else reading.note


def _of_numbers(texts: pa.ChunkedArray, *, nullable: bool, name: str) -> AnyColumn:
    """Returns the column of a table that numbers fit into, as texts that Arrow reads."""
    for kind in (pa.int64(), pa.float64()):
        with contextlib.suppress(pa.ArrowInvalid):
            cast = texts.cast(kind)
            break
    if pa.types.is_floating(cast.type) and all_match(texts, WHOLE):  # beyond 64 bits
        return Id(nullable=nullable)
    return _number(cast, nullable=nullable, name=name)


def _of_texts(values: pa.ChunkedArray) -> AnyColumn:
    """Returns the column of a table that texts fit into which are neither numbers nor times."""
    nullable, texts = values.null_count > 0, values.drop_null()
    num_values = len(pc.unique(texts))
    spaced = pc.mean(pc.match_substring(texts, " ").cast(pa.float64())).as_py() > 0.5
    if spaced and pc.mean(pc.utf8_length(texts)).as_py() > TEXT_CHARS and num_values > len(texts) / 10:
        return Text(nullable=nullable)
    return (
        Category(nullable=nullable)
        if num_values <= min(MOST_VALUES, len(texts) / 2)
        else Id(nullable=nullable)
    )
