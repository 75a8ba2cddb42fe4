"""Finds the tables of a team's data, chooses the table to learn from, and joins the others to it.

Each other table is joined as of time (`daybreak/data/as_of.py`), so that a row gets nothing that was not
known by its own time. A table whose join is unclear is left out, with a message: a table without a time,
since nobody knows when its rows became known; a table with several rows of the same time and no common
column to tell them apart; a table that has the names of the rows' keys, but not their values. Where a table
has several times, the latest of a row is taken, as of when it was published; where its times are dates, a row
counts as known at the end of its day.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.sections import Plug
from daybreak.contract.table import codes
from daybreak.data.casts import in_zone, moments_us
from daybreak.data.numbers import format_of, is_text, plain
from daybreak.extensions.init.survey_numbers import all_match
from daybreak.extensions.init.survey_source import (
    FILES,
    FORMATS,
    NUMBER,
    WHOLE,
    clock_of,
    dialect_of,
    formats_of,
    peek,
    plug_of,
)

AS_OF = "daybreak:AsOf"
SAME = 0.75  # of all columns of two files, beyond which they are of one table
FOUND, FOUND_UNNAMED = 0.5, 0.9  # of our values of a key in the other table, with similar names, and without
FEWEST_VALUES = 3  # of a key whose names differ
MOST_TWICE = 0.05  # of the other table's rows, those with the key and time of another
GAPS, GAP_QUANTILE = 3, 0.9  # a partner may be as old as so many of its usual distances
MOST_UNKNOWN_HOURS = 24 * 30  # where it has no distance
HOUR_US = timedelta(hours=1) // timedelta(microseconds=1)


class _Unclear(Exception):
    """Why a table is not joined."""


@dataclass(frozen=True, kw_only=True)
class Join:
    """How a table joins the rows: its arguments of `OtherTable`, and in words."""

    arguments: dict[str, Any]
    words: str
    typed: bool  # whether its columns came with types; those of CSV are text

    @property
    def columns(self) -> list[str]:
        """The names of the columns that it gives."""
        return [*self.arguments["columns"]]

    def in_words(self, rows: pa.Table) -> str:
        """Returns how it joins, and how many of some joined rows have a partner."""
        given = [pc.is_valid(rows[name]).to_numpy(zero_copy_only=False) for name in self.columns]
        return f"{self.words}; {np.mean(np.any(given, axis=0)):.0%} of rows have one"


def tables_of(url: str) -> dict[str, str]:
    """Returns the URLs of the tables at a URL by name; none if the URL is a single table.

    A folder has a table in each of its folders, or of each name of files, unless most of their columns are
    the same; a database, written as `URL#`, has all of its tables.
    """
    address, sign, table = url.partition("#")
    plug = plug_of(url)
    if plug["use"] == FILES:
        return _tables_of_files(plug["url"])
    if sign and not table:
        names = Plug(**plug | {"table": "-"}).make().tables()
        if not names:
            raise DataError("the database has no table; check that the data is delivered, and the schema")
        return {name: f"{address}#{name}" for name in names}
    return {}


def _tables_of_files(url: str) -> dict[str, str]:
    by_name: dict[str, list[str]] = {}
    every = Plug(use=FILES, url=url).make().listing.in_folder()
    for path in every:
        by_name.setdefault(_table_name(path), []).append(path)
    groups: list[tuple[str, set[str], list[str]]] = []  # with their columns
    for name, paths in by_name.items() if len(by_name) > 1 else ():
        columns = _columns_of(f"{url.rstrip('/')}/{paths[-1]}")
        alike = next((group for group in groups if _share(columns, group[1]) > SAME), None)
        if alike:
            alike[2].extend(paths)
        else:
            groups.append((name, columns, [*paths]))
    if len(groups) < 2:
        return {}
    return {name: _url_of(url.rstrip("/"), name, paths, every=every) for name, _, paths in groups}


def _table_name(path: str) -> str:
    """Returns the name of a file's table: the folder's name, or the file's without day and number.

    >>> _table_name("weather/2025/01/31.csv"), _table_name("sales_20250131.csv"), _table_name("day=1/a.csv")
    ('weather', 'sales', 'a')
    """
    folder, _, rest = path.partition("/")
    if rest and "=" not in folder and not re.search(r"\d", folder):
        return folder
    stem = path.rpartition("/")[2].partition(".")[0]
    return re.sub(r"^[\d\W_]+|[\W_]*\d[\d\W_]*$", "", stem)


def _columns_of(url: str) -> set[str]:
    try:
        plug = plug_of(url)
        return set(peek(plug | dialect_of(plug)).column_names)
    except DataError:  # an empty table is one of its own
        return {url}


def _share(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other)


def _url_of(root: str, name: str, paths: list[str], *, every: list[str]) -> str:
    """Returns the URL of some of all files in a folder; ParamsError where none leads to them alone."""
    if all(path.startswith(f"{name}/") for path in paths):
        return f"{root}/{name}"
    if len(paths) == 1:
        return f"{root}/{paths[0]}"
    suffixes = {path.rpartition(".")[2] for path in paths}
    glob = f"{name}*{f'.{suffixes.pop()}' if len(suffixes) == 1 else ''}"
    if name and {*fnmatch.filter(every, glob)} == {*paths} and "/" not in "".join(paths):
        return f"{root}/{glob}"
    raise ParamsError(
        f"{root} has several tables, and no URL names the {len(paths)} files like {paths[0]} alone; move "
        f"the files of each table into a folder of its own"
    )


def chosen(tables: Mapping[str, str], *, table: str, needed: Iterable[str], labels: Iterable[str]) -> str:
    """Returns the name of the table whose rows are learned from: the one named, or that has the columns.

    Args:
        tables: URLs by name.
        table: name of the table to learn from, if given.
        needed: columns that the table must have, as named by options.
        labels: columns of which the table must have one.
    """
    if table:
        if table not in tables:
            raise ParamsError(f"--table {table} is none of the tables; name one of {', '.join(tables)}")
        return table
    columns = {name: _columns_of(url) for name, url in tables.items()}
    fitting = [name for name, of in columns.items() if of >= {*needed} and of & {*labels}]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ParamsError(
            f"{' and '.join(fitting)} have the columns that were named; say whose rows are learned from by "
            f"--table, as --table {fitting[0]}"
        )
    listed = "; ".join(f"{name} has {', '.join(sorted(of))}" for name, of in columns.items())
    raise ParamsError(f"no table has the label and all columns that were named: {listed}; name others")


def joins_of(
    tables: Mapping[str, str], rows: pa.Table, *, time: str, label: str, zone: str
) -> tuple[dict[str, Join], dict[str, str]]:
    """Returns how other tables join some rows, and of those that do not, why not.

    Args:
        tables: the others, URLs by name.
        rows: some of the rows, as delivered.
        time: their column of the time.
        label: what is predicted, which no table gives.
        zone: of times that come without one.
    """
    joins: dict[str, Join] = {}
    apart: dict[str, str] = {}
    taken = {*rows.column_names}
    for name, url in tables.items():
        try:
            joins[name] = _join(name, url, rows, time=time, label=label, zone=zone, taken=taken)
            taken |= {*joins[name].arguments["columns"]}
        except (_Unclear, DataError, ParamsError) as reason:
            apart[name] = str(reason)
    return joins, apart


def _join(name: str, url: str, rows: pa.Table, *, time: str, label: str, zone: str, taken: set[str]) -> Join:
    plug = plug_of(url)
    plug |= dialect_of(plug)
    theirs = peek(plug)
    times = [column for column in theirs.column_names if formats_of(theirs[column], FORMATS)]
    if not times and time in theirs.column_names:
        times = [time]  # perhaps of numbers since 1970
    if not times:
        raise _Unclear(
            "it has no time, so that nothing says since when its rows were known; have it delivered with "
            "one, such as 1970-01-01 where a row was always true"
        )
    clocks = {column: clock_of(theirs, plug, column, "") for column in times}
    moments = {column: _moments(plug | clock, column, zone) for column, clock in clocks.items()}
    at = _latest(moments)
    typed = not all(is_text(field.type) for field in theirs.schema)
    plug |= clocks[at] | ({"zone": zone} if zone != "UTC" else {})
    theirs = peek(plug)
    key, twice = _key(rows, theirs, moments[at], ours_but={time, label}, theirs_but={*times, label})
    columns = [each for each in theirs.column_names if each and each not in {at, label, *key.values()}]
    if not columns:
        raise _Unclear("it has no column beside its time and its keys")
    daily = _are_dates(theirs[at], zone)
    known_after, gap_hours = 24 if daily else 0, _gap_hours(theirs, moments[at], [*key.values()])
    named = {(f"{name}_{each}" if each in taken else each): each for each in columns}
    arguments = {
        "rows": plug,
        "time": at,
        "key": _names(key),
        "columns": _names(named),
        "max_age_hours": known_after + gap_hours,
        "known_after_hours": known_after,
    }
    by = " and ".join(ours if ours == their else f"{ours} ({their} there)" for ours, their in key.items())
    words = (
        f"by {by or 'time alone'}: the newest row by {at}, "
        f"at most {known_after + gap_hours} hours old"
        + (", known at the end of its day, as its times are dates" if daily else "")
        + (f"; of {twice:,} rows with the key and time of another, the last" if twice else "")
    )
    return Join(
        arguments={each: value for each, value in arguments.items() if value != []}, words=words, typed=typed
    )


def with_joins(plug: dict[str, Any], joins: Mapping[str, Join], *, zone: str) -> dict[str, Any]:
    """Returns the source of rows with other tables; that of the rows alone where there are none."""
    if not joins:
        return plug
    return {
        "use": AS_OF,
        "rows": plug,
        "time": plug["cut_by"],
        **({"zone": zone} if zone != "UTC" else {}),
        "tables": {name: join.arguments for name, join in joins.items()},
    }


def _names(names: Mapping[str, str]) -> list[str] | dict[str, str]:
    """Returns names as `OtherTable` takes them: a list, where both tables have the same."""
    return [*names] if all(ours == theirs for ours, theirs in names.items()) else dict(names)


def _moments(plug: dict[str, Any], column: str, zone: str) -> pa.ChunkedArray:
    try:
        return moments_us(peek(plug)[column], zone, twice="latest")
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise _Unclear(f"{column} is not times in all rows: {str(error).splitlines()[0]}") from None


def _latest(moments: Mapping[str, pa.ChunkedArray]) -> str:
    """Returns the time that in no row is before another time of it."""
    for name, values in moments.items():
        if all(pc.all(pc.greater_equal(values, other)).as_py() in {True, None} for other in moments.values()):
            return name
    raise _Unclear(
        f"of its times {', '.join(moments)} now one and now another is the later, so that none says since "
        f"when a row was known; add it to source.tables by hand, by the one that does"
    )


def _are_dates(times: pa.ChunkedArray, zone: str) -> bool:
    """Returns whether all times are the beginning of a day."""
    local = in_zone(times, zone)
    return bool(pc.all(pc.equal(local, pc.floor_temporal(local, unit="day"))).as_py())


def _key(
    ours: pa.Table, theirs: pa.Table, moments: pa.ChunkedArray, *, ours_but: set[str], theirs_but: set[str]
) -> tuple[dict[str, str], int]:
    """Returns our columns and theirs that must be equal, and how many rows have the key and time of another.

    Columns with similar names that are texts or ids are taken; numbers, and texts with other names, only
    where several rows of a time would otherwise have the same key.
    """
    left = _values(ours, ours_but), _values(theirs, theirs_but)
    pairs = [
        (_alike(own, their), _found(left[0][own], left[1][their]), own, their)
        for own in left[0]
        for their in left[1]
    ]
    missed = [(own, their, share) for alike, share, own, their in pairs if alike and share < FOUND]
    sure = [
        (share, own, their)
        for alike, share, own, their in pairs
        if alike and share >= FOUND and _is_name(left[1][their], their)
    ]
    perhaps = [
        (share, own, their)
        for alike, share, own, their in pairs
        if alike and share >= FOUND and not _is_name(left[1][their], their)
    ]
    perhaps += sorted(
        (
            (share, own, their)
            for alike, share, own, their in pairs
            if not alike and share >= FOUND_UNNAMED and _is_text_key(left[0][own], left[1][their])
        ),
        reverse=True,
    )
    key = {own: their for _, own, their in sure}
    twice = _num_twice(theirs, moments, key.values())
    for _, own, their in perhaps:
        if twice and own not in key and their not in key.values():
            others = _num_twice(theirs, moments, [*key.values(), their])
            if others < twice / 2:
                key[own], twice = their, others
    if twice > MOST_TWICE * len(theirs):
        why = "".join(
            f"; of the values of {own}, {share:.0%} are found in its {their}" for own, their, share in missed
        )
        raise _Unclear(
            f"{twice:,} of {len(theirs):,} rows have the {'key and ' if key else ''}time of another, and no "
            f"column of both tables tells which one is a row's{why}; add it to source.tables by hand"
        )
    if not key and not _is_regular(moments):
        raise _Unclear("it has no key in common with the rows, and its times are not a regular series")
    return key, twice


def _values(rows: pa.Table, but: set[str]) -> dict[str, pa.Array]:
    """Returns the distinct values, as texts, of columns that may be keys."""
    values = {}
    for name in rows.column_names:
        column = rows[name]
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        is_key: list[Callable[[pa.DataType], bool]] = [is_text, pa.types.is_integer]
        if name and name not in but and any(fits(column.type) for fits in is_key):
            texts = pc.unique(codes(column).drop_null())
            written = plain(texts, format_of(rows.schema.field(name)))
            if len(texts) and not (all_match(written, NUMBER) and not all_match(written, WHOLE)):
                values[name] = texts
    return values


def _alike(one: str, other: str) -> bool:
    """Returns whether names are the same but for their spelling.

    >>> _alike("Shop ID", "shop_id"), _alike("shop", "shopId"), _alike("city", "place")
    (True, True, False)
    """
    plain = [re.sub(r"[\W_]|id$", "", name.casefold()) or name for name in (one, other)]
    return plain[0] == plain[1]


def _found(ours: pa.Array, theirs: pa.Array) -> float:
    """Returns the share of our values that theirs have."""
    return float(pc.mean(pc.is_in(ours, theirs).cast(pa.float64())).as_py())


def _is_name(values: pa.Array, name: str) -> bool:
    """Returns whether values name something: texts, or numbers whose column says so."""
    return bool(re.search(r"(^|_)id$|[a-z]I[dD]$|(^|_)(code|number|no|key)$", name)) or not all_match(
        values, WHOLE
    )


def _is_text_key(ours: pa.Array, theirs: pa.Array) -> bool:
    return len(ours) >= FEWEST_VALUES and not all_match(ours, WHOLE) and not all_match(theirs, WHOLE)


def _num_twice(rows: pa.Table, moments: pa.ChunkedArray, key: Iterable[str]) -> int:
    """Returns how many rows have the key and time of another."""
    columns = {f"k{n}": codes(rows[name]) for n, name in enumerate(key)} | {"at": moments}
    return len(rows) - len(pa.table(columns).group_by([*columns]).aggregate([]))


def _gaps_us(rows: pa.Table, moments: pa.ChunkedArray, key: list[str]) -> Any:
    """Returns the distances in time of rows that follow each other with the same key."""
    columns = {f"k{n}": codes(rows[name]) for n, name in enumerate(key)} | {"at": moments}
    ordered = pa.table(columns).drop_null().sort_by([(name, "ascending") for name in columns])
    gaps = np.diff(ordered["at"].to_numpy())
    same = np.ones(len(gaps), dtype=bool)
    for name in columns.keys() - {"at"}:
        values = ordered[name].combine_chunks()
        same &= np.asarray(pc.equal(values[1:], values[:-1]).to_numpy(zero_copy_only=False), dtype=bool)
    return gaps[same & (gaps > 0)]


def _gap_hours(rows: pa.Table, moments: pa.ChunkedArray, key: list[str]) -> int:
    """Returns how many hours old a partner may be, by how far rows usually are from each other."""
    gaps = _gaps_us(rows, moments, key)
    if not len(gaps):
        return MOST_UNKNOWN_HOURS
    return max(1, ceil(GAPS * float(np.quantile(gaps, GAP_QUANTILE)) / HOUR_US))


def _is_regular(moments: pa.ChunkedArray) -> bool:
    """Returns whether most rows are as far from each other in time as others."""
    gaps = _gaps_us(pa.table({"at": moments}), moments, [])
    return len(gaps) > 1 and float(np.mean(gaps == np.median(gaps))) > 0.5
