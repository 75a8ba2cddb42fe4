"""Reads the rows to learn from at a URL, joined with the other tables there."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa

from daybreak.contract import formats
from daybreak.contract.errors import ParamsError
from daybreak.contract.sections import Plug
from daybreak.data.file_listing import left_out_in_words
from daybreak.data.source import expect_encoding
from daybreak.extensions.init import survey_days
from daybreak.extensions.init.survey_joins import Join, chosen, joins_of, tables_of, with_joins
from daybreak.extensions.init.survey_source import (
    FILES,
    clock_beside,
    clock_of,
    days_by_time,
    days_of,
    dialect_of,
    history_of,
    not_in_data,
    of_one_schema,
    peek,
    plug_of,
    types_in_words,
)

NAMES_OF_LABELS = ("label", "target", "y")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a person says about the data; the rest is found."""

    time: str = ""  # the column of the time; the only one of that type if empty
    time_format: str = ""  # of the time, where it is text, as of `Files`
    label: str = ""  # the column to predict; one that is named label, target or y if empty
    unit: str = ""  # the column of what is independent of each other, as accounts
    ripe_days: float = -1  # days until labels are known; below 0: as many as the newest without any label
    zone: str = "UTC"  # in which a day of the data begins, for times that have an offset
    table: str = ""  # of several, the one whose rows are learned from; the one that has the label if empty
    regression: bool = False  # the label is a number even where it could be a class
    without: Collection[str] = ()  # columns to leave out
    nulls: str = ""  # words for no value in columns of numbers, beside those that are known, with commas
    thousands: str = ""  # what stands between thousands; a point makes the comma the decimal sign
    clock: str = ""  # the column of the time of day, where the time is a date alone; the only one if empty
    encoding: str = ""  # of CSV


@dataclass(frozen=True, kw_only=True)
class Data:
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


def rows_at(url: str, options: Options) -> Data:
    """Returns the rows at a URL, joined with the other tables there."""
    name, url, others = _chosen_table(url, options)
    plug, delivered, ask = _with_times(_plug(url, options), options)
    time = plug["cut_by"]
    if of_files := days_by_time(plug):
        plug["days_by"] = "time"
    of_files += _left_out(plug)
    label = options.label or label_by_name(delivered.column_names)
    joins, apart = joins_of(others, delivered, time=time, label=label, zone=options.zone)
    plug = with_joins(plug, joins, zone=options.zone)
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)  # as it may be elsewhere
    days, left = survey_days.near_days(days_of(plug), today=tomorrow)
    needed = {"time": time, "label": label, "unit": options.unit}
    parts, num_empty, of_columns = _history(plug, days, needed)
    return Data(
        plug=plug,
        delivered=delivered,
        time=time,
        label=label,
        parts=parts,
        name=name,
        joins=joins,
        apart=apart,
        num_days=len(days) - num_empty,
        ask=ask,
        far=(*of_files, *of_columns, *_far(days, left)),
    )


def label_by_name(columns: Iterable[str]) -> str:
    """Returns the column whose name says that it is the label; "" where there is none."""
    columns = set(columns)
    return next((name for name in NAMES_OF_LABELS if name in columns), "")


def _chosen_table(url: str, options: Options) -> tuple[str, str, dict[str, str]]:
    """Returns name and URL of the table with the rows, and the URLs of the others; "" for the only one."""
    others = tables_of(url)
    if others:
        needed = [each for each in (options.time, options.label, options.unit) if each]
        labels = [options.label] if options.label else NAMES_OF_LABELS
        name = chosen(others, table=options.table, needed=needed, labels=labels)
        return name, others.pop(name), others
    if options.table:
        raise ParamsError(
            f"--table {options.table} is for several tables, and --from leads to one; leave it out"
        )
    return "", url, others


def _plug(url: str, options: Options) -> dict[str, Any]:
    """Returns the source of a URL, with how numbers and letters are read."""
    plug = plug_of(url)
    if plug["use"] != FILES and (options.nulls or options.thousands):
        raise ParamsError("--nulls and --thousands are for files; read a view that casts the numbers")
    plug |= {"nulls": options.nulls.split(",")} if options.nulls else {}
    if options.encoding:
        if plug["use"] != FILES:
            raise ParamsError("--encoding is for files; leave it out")
        expect_encoding(options.encoding, of="--encoding")
        plug["encoding"] = options.encoding
    return plug | dialect_of(plug, thousands=options.thousands)


def _with_times(plug: dict[str, Any], options: Options) -> tuple[dict[str, Any], pa.Table, str]:
    """Returns the source with how times are read, some rows, and which column to ask about; "": none."""
    time = options.time
    delivered = peek(plug, time=time)
    if time and time not in delivered.column_names:
        raise not_in_data("time", time, delivered.column_names)
    but = {options.label, options.unit, *options.without}
    beside, ask = clock_beside(delivered, plug, time=time, clock=options.clock, but=but)
    if beside:
        plug = plug | beside
        time = plug["cut_by"]
        delivered = peek(plug, time=time)
    zone = {"zone": options.zone} if options.zone != "UTC" else {}
    return plug | clock_of(delivered, plug, time, options.time_format) | zone, delivered, ask


def _history(
    plug: dict[str, Any], days: list[date], needed: dict[str, str]
) -> tuple[dict[date, pa.Table], int, tuple[str, ...]]:
    """Returns the rows of the newest days, how many days have none, and sentences on columns that differ."""
    parts = history_of(plug, days)
    empty = [day for day in days if day > min(parts) and day not in parts]
    notes = (*types_in_words(parts), *survey_days.without_rows(empty, max(parts)))
    if not getattr(Plug(**plug).make(), "omits_nulls", False):
        parts, came_or_went = of_one_schema(parts, needed)
        notes += came_or_went
    return parts, len(empty), notes


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
