"""Surveys a team's data: columns, types, and the usual figures of a day.

The result is a proposal: `init` writes it as a table and as limits, for people to review.
"""

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daybreak.contract import formats
from daybreak.contract.days import newest_over
from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.sections import Plug
from daybreak.contract.table import (
    MAX_EXACT,
    AnyColumn,
    Bool,
    Bytes,
    Category,
    Float,
    Id,
    Int,
    Label,
    Table,
    Text,
    Time,
)
from daybreak.data.bad_cells import without_texts
from daybreak.data.casts import conform
from daybreak.data.numbers import format_of, is_text, without_words
from daybreak.data.source import expect_encoding, left_out_in_words
from daybreak.data.suite import expect_names
from daybreak.extensions.init import survey_days
from daybreak.extensions.init.survey_columns import ColumnNote, described, stand_ins
from daybreak.extensions.init.survey_joins import Join, chosen, joins_of, tables_of, with_joins
from daybreak.extensions.init.survey_numbers import all_match, as_numbers, words_of_a_day
from daybreak.extensions.init.survey_source import (
    FILES,
    ISO,
    MAX_QUARANTINED,
    NUMBERS,
    WHOLE,
    clock_beside,
    clock_of,
    days_by_time,
    days_of,
    dialect_of,
    formats_of,
    has_offset,
    history_of,
    joined,
    not_in_data,
    of_one_schema,
    peek,
    plug_of,
    texts_beside,
    types_in_words,
)

MOST_VALUES = 1000  # of a category
TEXT_CHARS = 30  # mean length of texts that people wrote
FEW_CLASSES = 20
NUM_IMAGES = 50  # that are decoded to see what they are
NAMES_OF_LABELS = ("label", "target", "y")
MOST_UNITS, ROWS_A_UNIT = 50, 20  # units that the model sees: no more, with at least so many rows each
ZEROS = 0.01  # share of the rows that are 0, from which on 0 is the least that a number can be
FEW_LABELS = 50  # of a class, which are too few to learn it
IS_ID = re.compile(r"(^|_)id$|[a-z]I[dD]$", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ImageColumn:
    """A column of images, as most of them are."""

    column: str
    size: int  # pixels of a side that they are scaled to
    color: bool


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What was found."""

    plug: dict[str, Any]  # the source, as in params.yaml
    table: Table
    binary: bool  # whether the label is 0 or 1; else it is a number
    days: tuple[date, ...]  # that were looked at
    num_days: int  # that are there
    rows_per_day: float
    least_rows: int
    most_rows: int
    test_days: int  # to hold out
    columns: tuple[ColumnNote, ...]  # what was made of each
    notes: tuple[str, ...] = ()  # what a person should look at
    guesses: tuple[str, ...] = ()  # what no option said
    nulls: dict[str, float] = field(default_factory=dict)  # largest share of a day, where a column has any
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    drift: dict[str, float | None] = field(default_factory=dict)  # limits; None where none would hold
    num_classes: int = 0  # of a label 0, 1, ...; 0: it is none
    label: str = ""  # how it is read, in words, and how to say otherwise
    images: "ImageColumn | None" = None  # what a column of bytes holds, if it is images
    joined: tuple[str, ...] = ()  # which other tables join the rows, and how
    apart: tuple[str, ...] = ()  # which do not, and why


def survey(
    url: str,
    *,
    time: str = "",
    time_format: str = "",
    label: str = "",
    unit: str = "",
    ripe_days: float = -1,
    zone: str = "UTC",
    table: str = "",
    regression: bool = False,
    without: Collection[str] = (),
    nulls: str = "",
    thousands: str = "",
    clock: str = "",
    encoding: str = "",
) -> Survey:
    """Returns what is found at a URL.

    Args:
        url: as of `Files`, or of SQLAlchemy with `#table`; a folder of several tables, or SQLAlchemy's with
            `#` alone, for all tables of a database.
        time: the column of the time; the only one of that type if empty.
        time_format: of the time, where it is text, as of `Files`; found if empty.
        label: the column to predict; one that is named label, target or y if empty.
        unit: the column of what is independent of each other, as accounts.
        ripe_days: days until labels are known; less than 0: as many as the newest days without any label.
        zone: in which a day of the data begins, for times that have an offset.
        table: of several, the one whose rows are learned from; the one that has the label if empty.
        regression: whether the label is a number even where it could be a class.
        without: columns to leave out.
        nulls: words that stand for no value in columns of numbers, beside those that are known, with commas.
        thousands: what stands between thousands in numbers; a point makes the comma the decimal sign.
        clock: column of the time of day, where the time is a date alone; the only one if empty.
        encoding: of CSV; found if empty.

    Raises:
        DataError, ParamsError: there is nothing, or not what is needed; the sentence says what to do.
    """
    data = _data(
        url,
        time=time,
        time_format=time_format,
        label=label,
        unit=unit,
        zone=zone,
        table=table,
        nulls=nulls,
        thousands=thousands,
        clock=clock,
        without=without,
        encoding=encoding,
    )
    rows = joined(list(data.parts.values()), zone=zone)
    asked = {"time": time, "time_format": time_format, "label": label, "unit": unit, "clock": clock}
    time = data.time
    label = data.label or next((each for each in NAMES_OF_LABELS if each in rows.column_names), "")
    _expect_names(rows.column_names, time=time, label=label, unit=unit, without=without)
    guesses = _guesses(data.plug, {"time": time, "label": label}, asked)
    if zone == "UTC" and time in data.delivered.column_names and has_offset(data.delivered[time]):
        guesses += ("a day begins at midnight in UTC (--zone)",)
    columns, notes = _columns(rows, data)
    if unit:
        columns[unit] = _unit(rows[unit])
    if label in notes and not isinstance(columns[label], Int | Float):
        raise ParamsError(f"the label {notes[label]}")
    if columns[label] is None:
        _label(rows[label], label, late=False, regression=regression)  # raises the error
    is_class = isinstance(columns[label], Category) and not regression
    classes = _classes(without_words(data.all_labels(rows[label], label))) if is_class else ()
    if classes:
        columns[label] = Int(min=0, max=len(classes) - 1, nullable=True)
    left_out = {name: _why_left_out(rows[name], name) for name, column in columns.items() if column is None}
    left_out |= dict.fromkeys(without, "left out by --without")
    known = {name: column for name, column in columns.items() if column and name not in without}
    expect_names(known)
    declared = Table(
        columns=known,
        time=time,
        unit=unit,
        label=Label(label, ripe_after=timedelta(days=max(ripe_days, 0)), classes=classes),
        zone=zone,
    )
    days = {day: _as_declared(part, declared, day) for day, part in data.parts.items()}
    _check_zone(days, declared)
    if ripe_days < 0:
        ripe_days = _days_without_label(days, label)
        declared = replace(declared, label=Label(label, timedelta(days=ripe_days), classes))
        known_after = f"{formats.counted(ripe_days, 'day')} later" if ripe_days else "at once"
        guesses += (f"labels are known {known_after} (--ripe-after)",)
    made = _with_days(data, rows, declared, days, left_out, regression=regression)
    of_columns = [note for name, note in notes.items() if name not in without]
    asks = (data.ask,) if data.ask else ()
    return replace(made, guesses=guesses, notes=(*of_columns, *asks, *made.notes))


def _as_declared(part: pa.Table, declared: Table, day: date) -> pa.Table:
    """Returns the rows of a day in the columns of the table; raises DataError where they do not fit."""
    as_found: Any = declared
    try:
        return without_texts(conform(part, as_found, origin=str(day), absent_is_null=True))
    except DataError as error:
        raise words_of_a_day(part, declared, day) or error from None


def _with_days(
    data: "_Data",
    rows: pa.Table,
    declared: Table,
    days: dict[date, pa.Table],
    left_out: dict[str, str],
    *,
    regression: bool,
) -> Survey:
    """Returns the survey of a declared table, of which only the label's type is still to be found."""
    assert declared.label is not None
    every, label = pa.concat_tables(days.values()), declared.label.column
    images = _images(data.delivered, declared.columns)
    named = declared.label.classes if len(declared.label.classes) > 2 else ()
    num_classes = len(data.plug.get("classes", named))  # the newest days may have some of them alone
    num_classes = num_classes or (0 if regression else _num_classes(every[label]))
    if images and not regression and _is_binary(every[label]):
        num_classes = num_classes or 2
    late = declared.label.ripe_after > timedelta()
    kind, binary = _label(every[label], label, late=late, num_classes=num_classes, regression=regression)
    table = replace(declared, columns=declared.columns | {label: kind})
    no_limits = survey_days.unlimited(days, table)
    without_limits = {name: replace(table.columns[name], off=why.off) for name, why in no_limits.items()}
    table = replace(table, columns=table.columns | without_limits)
    of_classes = bool(binary or num_classes)
    num_rows = [len(part) for part in days.values()]
    return Survey(
        plug=data.plug,
        table=table,
        binary=binary,
        days=tuple(days),
        num_days=data.num_days,
        rows_per_day=float(np.mean(num_rows)),
        least_rows=min(num_rows),
        most_rows=max(num_rows),
        nulls=survey_days.nulls(days, table),
        ranges=survey_days.ranges(days, table),
        drift=survey_days.drift_limits(days, table),
        test_days=survey_days.test_days(days, table, of_classes=of_classes),
        columns=described(
            every,
            table,
            unlimited=no_limits,
            left_out=left_out,
            image=images.column if images and num_classes else "",
        ),
        notes=(
            *data.far,
            *data.not_looked_at(),
            *(
                survey_days.unlike(days, table, by=newest_over(table.zone, at=datetime.now(UTC)))
                or survey_days.incomplete(days, table.time)
            ),
            *stand_ins(every, table),
            *(_few_labels(every[label], declared.label) if of_classes else ()),
        ),
        label=_label_in_words(label, kind, declared.label.classes, binary, num_classes),
        num_classes=num_classes,
        images=images,
        joined=data.joined_in_words(rows),
        apart=data.apart_in_words(),
    )


def _expect_names(
    names: Collection[str], *, time: str, label: str, unit: str, without: Collection[str]
) -> None:
    """Raises ParamsError where no label is given, or an option names a column or table that is not there."""
    if not label:
        raise ParamsError(f"nothing says what to predict; name a column by --label: {', '.join(names)}")
    for option, given in (("label", label), ("unit", unit), *(("without", each) for each in without)):
        if given and given not in names:
            raise not_in_data(option, given, [*names])
    needed = {time: "time", label: "label", unit: "unit"}
    if wrong := next((each for each in without if each in needed), ""):
        raise ParamsError(
            f"--without {wrong} is the {needed[wrong]}, which a table needs; name another column"
        )


def _guesses(plug: Mapping[str, Any], found: Mapping[str, str], asked: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the guesses made without an option, each with the option that overrides it."""
    plug = plug.get("rows", plug)
    guesses = [] if asked["time"] else [f"{found['time']} is the time of a row (--time)"]
    if plug.get("time") and not asked["time_format"]:
        guesses.append(f"its format is {plug['time']} (--time-format)")
    if plug.get("clock") and not asked["clock"]:
        guesses.append(f"the time of day is {plug['clock']} (--clock; to leave it out, --without)")
    dialect = {
        "delimiter": "fields are divided by",
        "decimal": "decimals follow",
        "thousands": "between thousands (--thousands) stands",
        "encoding": "the encoding (--encoding) is",
    }
    guesses += [f"{words} {plug[argument]!r}" for argument, words in dialect.items() if argument in plug]
    if not asked["label"]:
        guesses.append(f"{found['label']} is the label, by its name (--label)")
    if not asked["unit"]:
        guesses.append("each row counts by itself (--unit, where rows belong together)")
    return tuple(guesses)


def _unit(values: pa.ChunkedArray) -> AnyColumn:
    """Returns the column of the unit: a category, which the model sees, where few come again and again."""
    nullable, known = values.null_count > 0, values.drop_null()
    num = pc.count_distinct(known).as_py()
    is_few = num <= MOST_UNITS and len(known) >= ROWS_A_UNIT * num
    return Category(nullable=nullable) if is_few else Id(nullable=nullable)


def _why_left_out(values: pa.ChunkedArray, name: str) -> str:
    if not name:
        return "without a name"
    if values.null_count == len(values):
        return "null in all rows"
    return f"of type {values.type}, which no table has"


def _few_labels(labels: pa.ChunkedArray, label: Label) -> Iterator[str]:
    """Yields a sentence on the rarest class, where it has too few rows to learn it."""
    counts = labels.drop_null().value_counts().to_pylist()
    rarest = min(counts, key=lambda each: each["counts"])
    if rarest["counts"] < FEW_LABELS:
        name = label.classes[rarest["values"]] if label.classes else f"{rarest['values']:g}"
        yield (
            f"the label {label.column} is {name} in {formats.counted(rarest['counts'], 'row')} of "
            f"{len(labels):,}, which is little to learn from and to judge by; bring in more days, or predict "
            f"another column (--label)"
        )


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The rows to learn from, and what other tables give them."""

    plug: dict[str, Any]
    delivered: pa.Table  # some rows, without what other tables give
    time: str
    label: str
    parts: dict[date, pa.Table]
    name: str  # of the table; empty: there is one
    joins: dict[str, Join]
    apart: dict[str, str]  # why a table is not joined
    num_days: int  # that are there, of which `parts` are the newest
    far: tuple[str, ...]  # says which files, columns and days are left out, as days far from the others
    ask: str  # which column is the time of day; "" where there is nothing to ask

    def all_labels(self, labels: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """Returns the labels of the days looked at, and of other rows that were read where there are more."""
        if self.num_days == len(self.parts) or name not in self.delivered.column_names:
            return labels
        others = self.delivered[name].cast(labels.type)
        return pa.chunked_array([*labels.chunks, *others.chunks], labels.type)

    def not_looked_at(self) -> tuple[str, ...]:
        """Returns a sentence where there are more days than were looked at."""
        if self.num_days <= len(self.parts):
            return ()
        return (
            f"types and limits are from the newest {len(self.parts)} of {self.num_days:,} days, from "
            f"{min(self.parts)} on; look whether older ones have other classes and larger values",
        )

    def place(self, number: int) -> str:
        """Returns which row of all rows has a number."""
        for day, part in self.parts.items():
            if number < len(part):
                return f"row {number + 1} of {day}"
            number -= len(part)
        raise IndexError(number)

    def joined_in_words(self, rows: pa.Table) -> tuple[str, ...]:
        """Returns how each table is joined to all rows."""
        return tuple(
            f"{self.name} is joined with {other} {join.in_words(rows)}" for other, join in self.joins.items()
        )

    def apart_in_words(self) -> tuple[str, ...]:
        """Returns why other tables are not."""
        return tuple(f"{other} is not joined: {reason}" for other, reason in self.apart.items())


def _data(
    url: str,
    *,
    time: str,
    time_format: str,
    label: str,
    unit: str,
    zone: str,
    table: str,
    nulls: str,
    thousands: str,
    clock: str,
    without: Collection[str],
    encoding: str,
) -> _Data:
    """Returns the rows at a URL, joined with the other tables there; arguments as of `survey`."""
    others = tables_of(url)
    name = ""
    if others:
        named = [each for each in (time, label, unit) if each]
        name = chosen(others, table=table, needed=named, labels=[label] if label else NAMES_OF_LABELS)
        url = others.pop(name)
    elif table:
        raise ParamsError(f"--table {table} is for several tables, and --from leads to one; leave it out")
    plug = plug_of(url)
    if plug["use"] != FILES and (nulls or thousands):
        raise ParamsError("--nulls and --thousands are for files; read a view that casts the numbers")
    plug |= {"nulls": nulls.split(",")} if nulls else {}
    if encoding:
        if plug["use"] != FILES:
            raise ParamsError("--encoding is for files; leave it out")
        expect_encoding(encoding, of="--encoding")
        plug["encoding"] = encoding
    plug |= dialect_of(plug, thousands=thousands)
    delivered = peek(plug, time=time)
    if time and time not in delivered.column_names:
        raise not_in_data("time", time, delivered.column_names)
    beside, ask = clock_beside(delivered, plug, time=time, clock=clock, but={label, unit, *without})
    if beside:
        plug |= beside
        delivered, time = peek(plug, time=plug["cut_by"]), plug["cut_by"]
    plug |= clock_of(delivered, plug, time, time_format) | ({"zone": zone} if zone != "UTC" else {})
    time = plug["cut_by"]
    if of_files := days_by_time(plug):
        plug["days_by"] = "time"
    of_files += _left_out(plug)
    label = label or next((each for each in NAMES_OF_LABELS if each in delivered.column_names), "")
    joins, apart = joins_of(others, delivered, time=time, label=label, zone=zone)
    plug = with_joins(plug, joins, zone=zone)
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)  # as it may be elsewhere
    days, left = survey_days.near_days(days_of(plug), today=tomorrow)
    parts = history_of(plug, days)
    empty = [day for day in days if day > min(parts) and day not in parts]
    of_columns = (*types_in_words(parts), *survey_days.without_rows(empty, max(parts)))
    if not getattr(Plug(**plug).make(), "omits_nulls", False):
        needed = {"time": time, "label": label, "unit": unit}
        parts, came_or_went = of_one_schema(parts, needed)
        of_columns += came_or_went
    return _Data(
        plug=plug,
        delivered=delivered,
        time=time,
        label=label,
        parts=parts,
        name=name,
        joins=joins,
        apart=apart,
        num_days=len(days) - len(empty),
        ask=ask,
        far=(*of_files, *of_columns, *_far(days, left)),
    )


def _left_out(plug: dict[str, Any]) -> tuple[str, ...]:
    """Returns a sentence on files that are not read; none where all are."""
    words = left_out_in_words(Plug(**plug).make().left_out()) if plug["use"] == FILES else ""
    return (words,) if words else ()


def _far(days: list[date], left: list[date]) -> tuple[str, ...]:
    if not left:
        return ()
    shown = " and ".join(map(str, left)) if len(left) < 3 else formats.days(left)
    return (
        f"{formats.counted(len(left), 'day')} ({shown}), far from the others ({days[0]} to {days[-1]}) or "
        f"still to come, {'is' if len(left) == 1 else 'are'} left out of limits and of the first night; if "
        f"such times stand for unknown ones, have null delivered there",
    )


def _columns(rows: pa.Table, data: _Data) -> tuple[dict[str, AnyColumn | None], dict[str, str]]:
    """Returns the column of a table for each of all rows, None for a type that none has, and guesses."""
    of_text = texts_beside(data.parts)
    typed = any(
        not is_text(field.type) and field.name != data.time
        for part in data.parts.values()
        for field in part.schema
    )
    of_join = {each: join for join in data.joins.values() for each in join.columns}
    columns: dict[str, AnyColumn | None] = {}
    notes: dict[str, str] = {}
    for name in rows.column_names:
        join = of_join.get(name)
        if not name:
            columns[name] = None
            continue
        columns[name], note = _column(
            rows[name],
            rows.schema.field(name),
            typed=join.typed if join else typed and name not in of_text,  # those of CSV are all text
            is_label=name == data.label,
            place=data.place,
        )
        if note:
            notes[name] = note
        if join and (column := columns[name]):
            columns[name] = replace(column, nullable=True)  # a row may have no partner
    columns[data.time] = Time()
    return columns, notes


def _check_zone(days: dict[date, pa.Table], table: Table) -> None:
    """Raises ParamsError where so many rows are on another day than their file that no night would go on."""
    num_others = 0
    for day, rows in days.items():
        times = rows[table.time].drop_null()
        num_others += len(times.filter(pc.not_equal(times.cast(pa.date32()), pa.scalar(day))))
    share = num_others / sum(map(len, days.values()))
    if share > MAX_QUARANTINED:
        raise ParamsError(
            f"{share:.0%} of rows have times in {table.time} that are on another day than their file's "
            f"in {table.zone}; "
            f"name the time zone in which a day of the data begins, as --zone Europe/Berlin"
        )


def _days_without_label(days: dict[date, pa.Table], label: str) -> int:
    """Returns how many days have come since the newest one with a label; 0 where there is none."""
    known = [day for day, rows in days.items() if rows[label].null_count < len(rows)]
    return (max(days) - max(known)).days if known else 0


def _column(
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
        return Float(size=sizes[0], nullable=nullable) if vector else None
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


def _is_binary(values: pa.ChunkedArray) -> bool:
    """Returns whether labels are 0 and 1, or true and false."""
    if not _is_number(values.type):
        return False
    return set(pc.unique(values.drop_null().cast(pa.float64(), safe=False)).to_pylist()) == {0.0, 1.0}


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _num_classes(values: pa.ChunkedArray) -> int:
    """Returns the number of classes where labels are 0, 1, ... without a gap, three or more; else 0."""
    if not pa.types.is_integer(values.type) and not pa.types.is_floating(values.type):
        return 0
    numbers = sorted(pc.unique(values.drop_null().cast(pa.float64(), safe=False)).to_pylist())
    return len(numbers) if 3 <= len(numbers) <= FEW_CLASSES and numbers == [*range(len(numbers))] else 0


def _classes(values: pa.ChunkedArray) -> tuple[str, ...]:
    """Returns the classes of a label that is text, of two the rarer last; none where there are too many."""
    counts = {str(each["values"]): each["counts"] for each in pc.value_counts(values.drop_null()).to_pylist()}
    by_name = sorted(counts)
    if len(counts) == 2:
        return tuple(sorted(by_name, key=lambda name: -counts[name]))
    return tuple(by_name) if 2 < len(counts) <= FEW_CLASSES else ()


def _images(rows: pa.Table, columns: Mapping[str, AnyColumn]) -> ImageColumn | None:
    """Returns the first column of bytes of which most decode as images; None where there is none."""
    from daybreak.workloads.image_columns import MOST_SIZE, sizes

    for name, column in columns.items():
        if isinstance(column, Bytes) and name in rows.column_names:  # none of another table
            some = rows[name].drop_null().slice(0, NUM_IMAGES)
            decoded = sizes(some)
            if len(decoded) > len(some) / 2:
                side = int(np.median([max(width, height) for width, height, _ in decoded]))
                color = sum(of for *_, of in decoded) > len(decoded) / 2
                return ImageColumn(column=name, size=min(side, MOST_SIZE), color=color)
    return None


def _label(
    values: pa.ChunkedArray, name: str, *, late: bool, num_classes: int = 0, regression: bool = False
) -> tuple[AnyColumn, bool]:
    """Returns the label's column, and whether it is one of two classes, 0 and 1."""
    known = values.drop_null()
    nullable = late or len(known) < len(values)
    if num_classes and _is_number(values.type) and not pa.types.is_boolean(values.type):
        return Int(min=0, max=num_classes - 1, nullable=nullable), False
    distinct = _expect_numbers(values, name, regression=regression)
    whole = all(value.is_integer() for value in distinct)
    if pa.types.is_boolean(values.type):
        return Bool(nullable=nullable), True
    if regression:
        return (Int if whole else Float)(nullable=nullable), False
    if set(distinct) == {0.0, 1.0}:
        return Int(min=0, max=1, nullable=nullable), True
    if len(distinct) <= FEW_CLASSES and whole:
        shown = ", ".join(f"{value:g}" for value in sorted(distinct)[:6])
        raise ParamsError(
            f"the label {name} has {len(distinct)} values ({shown}), like counts or stars, or like classes "
            f"that are not numbered from 0; write --regression to predict it as a number, or number classes "
            f"0, 1, ... at the source, without a gap"
        )
    return (Int if whole else Float)(nullable=nullable), False


def _expect_numbers(values: pa.ChunkedArray, name: str, *, regression: bool) -> list[float]:
    """Returns the distinct values of a label; raises ParamsError or DataError where they are not numbers."""
    known, of_text = values.drop_null(), is_text(values.type)
    if len(known) and not of_text and not _is_number(values.type):
        raise ParamsError(f"the label {name} is {values.type}, not a number; name another by --label")
    distinct: list[Any] = []
    if len(known):
        distinct = pc.unique(known if of_text else known.cast(pa.float64(), safe=False)).to_pylist()
    if len(distinct) < 2:
        constant = "null" if not distinct else repr(distinct[0]) if of_text else f"{distinct[0]:g}"
        raise DataError(
            f"the label {name} is {constant} in all {len(values):,} rows, so that there is nothing to learn; "
            f"name another by --label, or have rows delivered with others"
        )
    if of_text:
        some = ", ".join(map(repr, distinct[:3]))
        if regression:
            raise ParamsError(
                f"the label {name} is text ({some}, ...), not numbers; leave --regression out, or name "
                f"another by --label"
            )
        raise ParamsError(
            f"the label {name} is text with {len(distinct)} values ({some}, ...), more than classes have; "
            f"name another by --label, or have a number delivered"
        )
    return distinct


def _label_in_words(
    name: str, kind: AnyColumn, classes: tuple[str, ...], binary: bool, num_classes: int
) -> str:
    """Returns how a label is read, and the option by which it is read otherwise."""
    if classes:
        listed = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
        return f"label {name}: {len(classes)} classes, {listed}"
    if binary:
        return f"label {name}: 0 or 1; for a number write --regression"
    if num_classes:
        return f"label {name}: {num_classes} classes, 0 to {num_classes - 1}; for a number write --regression"
    return f"label {name}: a {'whole ' if isinstance(kind, Int) else ''}number"
