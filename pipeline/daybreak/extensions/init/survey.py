"""Surveys a team's data: columns, types, and the usual figures of a day.

The result is a proposal: `init` writes it as a table and as limits, for people to review.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daybreak.contract import formats
from daybreak.contract.days import newest_over
from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.table import AnyColumn, Bytes, Category, Float, Int, Label, Table, Time
from daybreak.data.bad_cells import without_texts
from daybreak.data.casts import conform
from daybreak.data.numbers import is_text, without_words
from daybreak.data.suite import expect_names
from daybreak.extensions.init import survey_days
from daybreak.extensions.init.survey_columns import ColumnNote, described, stand_ins
from daybreak.extensions.init.survey_label import classes_of, expect_numbers, few_labels, label_type
from daybreak.extensions.init.survey_numbers import words_of_a_day
from daybreak.extensions.init.survey_rows import Data, Options, label_by_name, rows_at
from daybreak.extensions.init.survey_source import (
    MAX_QUARANTINED,
    has_offset,
    joined,
    not_in_data,
    texts_beside,
)
from daybreak.extensions.init.survey_types import column_of, unit_column

NUM_IMAGES = 50  # that are decoded to see what they are


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
    rows: Mapping[date, pa.Table] = field(repr=False)  # of the days looked at
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
    model: str = ""  # why it was chosen, in words
    images: "ImageColumn | None" = None  # what a column of bytes holds, if it is images
    joined: tuple[str, ...] = ()  # which other tables join the rows, and how
    apart: tuple[str, ...] = ()  # which do not, and why

    @property
    def label_column(self) -> str:
        """Returns the column to predict."""
        assert self.table.label is not None
        return self.table.label.column


def survey(url: str, options: Options | None = None) -> Survey:
    """Returns what is found at a URL.

    Args:
        url: as of `Files`, or of SQLAlchemy with `#table`; a folder of several tables, or SQLAlchemy's with
            `#` alone, for all tables of a database.
        options: what a person says of the data.

    Raises:
        DataError, ParamsError: there is nothing, or not what is needed; the sentence says what to do.
    """
    options = options or Options()
    data = rows_at(url, options)
    rows = joined(list(data.parts.values()), zone=options.zone)
    label = data.label or label_by_name(rows.column_names)
    _expect_names(rows.column_names, data.time, label, options)
    guesses = _guesses(data, label, options)
    columns = _columns(rows, data, label, options)
    declared = Table(
        columns=columns.known,
        time=data.time,
        unit=options.unit,
        label=Label(label, timedelta(days=max(options.ripe_days, 0)), columns.classes),
        zone=options.zone,
    )
    days = {day: _as_declared(part, declared, day) for day, part in data.parts.items()}
    _check_zone(days, declared)
    if options.ripe_days < 0:
        ripe_days = _days_without_label(days, label)
        declared = replace(declared, label=Label(label, timedelta(days=ripe_days), columns.classes))
        known_after = f"{formats.counted(ripe_days, 'day')} later" if ripe_days else "at once"
        guesses += (f"labels are known {known_after} (--ripe-after)",)
    made = _with_days(data, rows, declared, days, columns.left_out, regression=options.regression)
    asks = (data.ask,) if data.ask else ()
    return replace(made, guesses=guesses, notes=(*columns.notes, *asks, *made.notes))


def _as_declared(part: pa.Table, declared: Table, day: date) -> pa.Table:
    """Returns the rows of a day in the columns of the table; raises DataError where they do not fit."""
    as_found: Any = declared
    try:
        return without_texts(conform(part, as_found, origin=str(day), absent_is_null=True))
    except DataError as error:
        raise words_of_a_day(part, declared, day) or error from None


def _with_days(
    data: "Data",
    rows: pa.Table,
    declared: Table,
    days: dict[date, pa.Table],
    left_out: dict[str, str],
    *,
    regression: bool,
) -> Survey:
    """Returns the survey of a declared table, of which only the label's type is still to be found."""
    label = declared.label
    assert label is not None
    every = pa.concat_tables(days.values())
    images = _images(data.delivered, declared.columns)
    labels = every[label.column]
    kind = label_type(labels, label, data.plug, of_images=bool(images), regression=regression)
    table = replace(declared, columns=declared.columns | {label.column: kind.column})
    no_limits = survey_days.unlimited(days, table)
    without_limits = {name: replace(table.columns[name], off=why.off) for name, why in no_limits.items()}
    table = replace(table, columns=table.columns | without_limits)
    num_rows = [len(part) for part in days.values()]
    return Survey(
        plug=data.plug,
        table=table,
        rows=days,
        binary=kind.binary,
        days=tuple(days),
        num_days=data.num_days,
        rows_per_day=float(np.mean(num_rows)),
        least_rows=min(num_rows),
        most_rows=max(num_rows),
        nulls=survey_days.nulls(days, table),
        ranges=survey_days.ranges(days, table),
        drift=survey_days.drift_limits(days, table),
        test_days=survey_days.test_days(days, table, of_classes=kind.is_class),
        columns=described(
            every,
            table,
            unlimited=no_limits,
            left_out=left_out,
            image=images.column if images and kind.num_classes else "",
        ),
        notes=(
            *data.far,
            *data.not_looked_at(),
            *(
                survey_days.unlike(days, table, by=newest_over(table.zone, at=datetime.now(UTC)))
                or survey_days.incomplete(days, table.time)
            ),
            *stand_ins(every, table),
            *(few_labels(labels, label) if kind.is_class else ()),
        ),
        label=kind.in_words(label),
        num_classes=kind.num_classes,
        images=images,
        joined=data.joined_in_words(rows),
        apart=data.apart_in_words(),
    )


def _expect_names(names: Collection[str], time: str, label: str, options: Options) -> None:
    """Raises ParamsError where no label is given, or an option names a column or table that is not there."""
    if not label:
        raise ParamsError(f"nothing says what to predict; name a column by --label: {', '.join(names)}")
    unit, without = options.unit, options.without
    for option, given in (("label", label), ("unit", unit), *(("without", each) for each in without)):
        if given and given not in names:
            raise not_in_data(option, given, [*names])
    needed = {time: "time", label: "label", unit: "unit"}
    if wrong := next((each for each in without if each in needed), ""):
        raise ParamsError(
            f"--without {wrong} is the {needed[wrong]}, which a table needs; name another column"
        )


def _guesses(data: Data, label: str, options: Options) -> tuple[str, ...]:
    """Returns the guesses made without an option, each with the option that overrides it."""
    plug = data.plug.get("rows", data.plug)
    guesses = [] if options.time else [f"{data.time} is the time of a row (--time)"]
    if plug.get("time") and not options.time_format:
        guesses.append(f"the format of {data.time} is {plug['time']} (--time-format)")
    if plug.get("clock") and not options.clock:
        guesses.append(f"the time of day is {plug['clock']} (--clock; to leave it out, --without)")
    dialect = {
        "delimiter": "fields are divided by",
        "decimal": "decimals follow",
        "thousands": "the sign between thousands (--thousands) is",
        "encoding": "the encoding (--encoding) is",
    }
    guesses += [f"{words} {plug[argument]!r}" for argument, words in dialect.items() if argument in plug]
    if not options.label:
        guesses.append(f"{label} is the label, by its name (--label)")
    if not options.unit:
        guesses.append("each row counts by itself (--unit, where rows belong together)")
    has_time = data.time in data.delivered.column_names
    if options.zone == "UTC" and has_time and has_offset(data.delivered[data.time]):
        guesses.append("a day begins at midnight in UTC (--zone)")
    return tuple(guesses)


def _why_left_out(values: pa.ChunkedArray, name: str, *, joined: bool) -> str:
    if not name:
        return "without a name"
    if values.null_count == len(values):
        return "null in all rows"
    kind, types = values.type, pa.types
    if types.is_struct(kind):
        parts = ", ".join(f"{name}_{field.name}" for field in kind)
        return f"fields within a column, which no table has; have them delivered as columns, such as {parts}"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _why_no_vector(values, joined=joined)
    return f"of type {kind}, which no table has; have it delivered as numbers, text or times"


def _why_no_vector(lists: pa.ChunkedArray, *, joined: bool) -> str:
    kind = lists.type
    if not pa.types.is_floating(kind.value_type):
        return f"of type {kind}, and a table has lists of floats only; have it delivered as text or columns"
    if joined:
        return "a list, which a row without a partner lacks, and no table has null vectors"
    if lists.null_count:
        return "a list that is null in some rows; have zeros delivered there, and a column that says so"
    return "a list of different lengths; have as many numbers delivered in each row"


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """The columns of the table, before the label's type is known."""

    known: dict[str, AnyColumn]
    classes: tuple[str, ...]  # of a label that is text
    left_out: dict[str, str]  # why a column is
    notes: tuple[str, ...]  # what was guessed


def _columns(rows: pa.Table, data: Data, label: str, options: Options) -> _Columns:
    """Returns the columns of all rows; raises ParamsError or DataError for a label that is not one."""
    unit, without = options.unit, options.without
    columns, notes = _types(rows, data)
    if unit:
        if columns[unit] is None or pa.types.is_nested(rows.schema.field(unit).type):
            why = "a list" if columns[unit] else _why_left_out(rows[unit], unit, joined=False)
            raise ParamsError(f"--unit {unit} is {why}; or name another column")
        columns[unit] = unit_column(rows[unit])
    if label in notes and not isinstance(columns[label], Int | Float):
        raise ParamsError(f"the label {notes[label]}")
    if columns[label] is None:
        expect_numbers(rows[label], label, regression=options.regression)  # raises the error
    classes: tuple[str, ...] = ()
    if isinstance(columns[label], Category) and not options.regression:
        classes = classes_of(without_words(data.all_labels(rows[label], label)))
    if classes:
        columns[label] = Int(min=0, max=len(classes) - 1, nullable=True)
    of_join = {name for join in data.joins.values() for name in join.columns}
    left_out = {
        name: _why_left_out(rows[name], name, joined=name in of_join)
        for name, column in columns.items()
        if column is None
    }
    known = {name: column for name, column in columns.items() if column and name not in without}
    expect_names(known)
    return _Columns(
        known=known,
        classes=classes,
        left_out=left_out | dict.fromkeys(without, "left out by --without"),
        notes=tuple(note for name, note in notes.items() if name not in without),
    )


def _types(rows: pa.Table, data: Data) -> tuple[dict[str, AnyColumn | None], dict[str, str]]:
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
        columns[name], note = column_of(
            rows[name],
            rows.schema.field(name),
            typed=join.typed if join else typed and name not in of_text,  # those of CSV are all text
            is_label=name == data.label,
            place=data.place,
        )
        if note:
            notes[name] = note
        if join and (column := columns[name]):  # a row may have no partner, and no vector is null
            columns[name] = None if getattr(column, "size", 0) else replace(column, nullable=True)
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
