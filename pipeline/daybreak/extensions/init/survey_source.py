"""Finds out how to read a team's data: source, dialect, time column, and newest day."""

import tempfile
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from daybreak.contract.errors import DataError, ParamsError, has_password, without_password
from daybreak.contract.formats import counted
from daybreak.contract.sections import Plug
from daybreak.data import casts
from daybreak.data.casts import DAY_OF_NONE, END_US, MIDNIGHT, SINCE_1970, in_zone, iso_times, times_or_null
from daybreak.data.database import Database
from daybreak.data.file_formats import CSV
from daybreak.data.file_formats import SUFFIXES as TABLES
from daybreak.data.image_files import SUFFIXES as IMAGES
from daybreak.data.image_files import ImageFiles
from daybreak.data.numbers import NumberFormat, is_text, without_words
from daybreak.data.partitions import PART
from daybreak.data.source import Files, other_columns
from daybreak.extensions.init.survey_numbers import all_match, number_format

MOST_DAYS, MOST_ROWS = 400, 2_000_000  # of the history that is looked at, the newest
PEEK_ROWS = 100_000  # by which columns and times are known
FROM_US = 1e15  # since 1970: numbers that are times are from September 2001 on
MAX_QUARANTINED = 0.05  # of a night's rows, as `init` writes it into params.yaml
NUMBERS = (pa.types.is_integer, pa.types.is_floating)
DAYS = (
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d.%m.%Y",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%Y/%m/%d",
    "%Y.%m.%d",
    "%Y%m%d",
    "%d/%m/%y",
    "%m/%d/%y",
    "%d.%m.%y",
    "%d-%b-%y",
    "%d-%b-%Y",
    "%d %b %Y",
    "%b %d, %Y",
    "%b %d %Y",
)
CLOCKS = (
    " %H:%M",
    " %H:%M:%S",
    " %H:%M:%S.%f",
    " %I:%M %p",
    " %I:%M:%S %p",
    " %I:%M%p",
    "",
    " %H.%M.%S",
    " %I.%M.%S.%f %p",
    " %H:%M:%S UTC",
    " %H:%M:%S %z",
    "T%H:%M:%S",
    "T%H:%M:%SZ",
)
CLOCK = r"^([01]?\d|2[0-3])(:[0-5]\d(:[0-5]\d([.,]\d+)?)?( ?[AaPp][Mm])?|\.[0-5]\d\.[0-5]\d)$"
FORMATS = (
    *(day + clock for day in DAYS for clock in CLOCKS),
    "%Y-%m-%d %I:%M %p",
    "%Y-%m-%d %I:%M:%S %p",
    "%Y-%m-%d %H.%M.%S",
    "%a, %d %b %Y %H:%M:%S %z",
    "%a, %d %b %Y %H:%M:%S GMT",  # of mail and of the web
    "%d/%b/%Y:%H:%M:%S %z",
    "%a %b %d %H:%M:%S %Y",
    "%Y%m%d%H%M%S",
    "%Y%m%dT%H%M%S",
    "%Y%m%dT%H%M%SZ",
)
MAY_BE_TIME = r"\d\D+\d|^\d{8}(\d{6})?$"
NAME_FORMAT = "name its format, as --time-format '%d/%m/%Y %H:%M'"
FIRST_TEXTS = 100  # of a column; a format that reads none of them is not tried on the others
FIRST_YEAR = 1800  # an earlier time shows a wrong format: `%Y` reads 25 as the year 25
OFFSET = r":\d\d\S*\s?(Z|UTC|GMT|[+-]\d\d:?\d\d)$"
NUM_FILES = 8  # from the oldest to the newest, by which the format of times is known
FILES = "daybreak:Files"
ISO = ("",)  # the formats of times that need none
NUMBER, WHOLE = r"^[+-]?\d*\.?\d+$", r"^[+-]?\d+$"
EXCEL = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # how .xlsx and .xls begin
SQLITE = b"SQLite format 3\0"
DELIMITERS = (";", "\t", "|")  # that CSV has, beside the comma


def not_in_data(option: str, name: str, names: list[str]) -> ParamsError:
    """Returns the error that an option names a column that the data has not."""
    return ParamsError(f"--{option} {name} is not in the data; name one of {', '.join(names)}")


def plug_of(url: str) -> dict[str, Any]:
    """Returns the source of a URL, as in params.yaml but for the column of the time."""
    address, sign, table = url.partition("#")
    if has_password(url):
        of_table = f"#{table}" if sign else ""
        raise ParamsError(
            f"the URL has a password or a key, which would be committed; set a variable of the "
            f"environment to it, and write --from '$NAME{of_table}'"
        )
    if sign and ("://" in address or address.startswith("$")):
        return {"use": "daybreak:Database", "url": address, "table": table}
    if "://" not in url and not url.startswith(("$", "~", "/")):
        url = f"{Path.cwd()}/{url}"
    if _leads_to_images(url):
        classes = ImageFiles(url).folders()
        return {"use": "daybreak:ImageFiles", "url": url, "classes": list(classes)}
    return {"use": FILES, "url": url}


def dialect_of(plug: dict[str, Any], *, thousands: str = "") -> dict[str, str]:
    """Returns the arguments of `Files` that are still missing to read the newest file.

    `thousands` is the separator of thousands in numbers, if the user gave it.
    """
    if plug["use"] != FILES:
        return {}
    head = Plug(**plug).make().head()
    dialect = _letters(head, plug.get("encoding", "")) if head else {}
    rows = Plug(**plug, **dialect).make().sample(PEEK_ROWS, kinds=CSV if head else ())
    texts = [column for column in rows.columns if is_text(column.type)]
    given = NumberFormat(thousands=thousands, nulls=tuple(plug.get("nulls", ())))  # type: ignore[arg-type]
    form = number_format(texts, given=given, delimiter=dialect.get("delimiter", ","))
    numbers = {"decimal": form.decimal, "thousands": form.thousands}
    return dialect | {key: sign for key, sign in numbers.items() if sign != getattr(NumberFormat(), key)}


def _letters(head: bytes, encoding: str) -> dict[str, str]:
    """Returns the encoding and the delimiter of CSV that begins so, where they are not the usual ones.

    An encoding that somebody says is not looked for. Raises ParamsError where the bytes are of none, and
    DataError where they are of a file that is no text.
    """
    dialect = {}
    if head.startswith(EXCEL):
        raise DataError("the newest file is an Excel workbook; save its sheet as CSV UTF-8, and read that")
    if head.startswith(SQLITE):
        raise DataError("the newest file is a database; read it as --from 'sqlite:///PATH#TABLE'")
    if not encoding and b"\0" in head:
        raise ParamsError(
            "the newest file has zero bytes between its letters, as UTF-16 has, but does not begin with its "
            "mark; name the encoding, as --encoding utf-16-le"
        )
    try:
        text = head.decode(encoding or "utf8", errors="replace" if encoding else "strict")
    except UnicodeDecodeError:
        dialect["encoding"], text = "cp1252", head.decode("cp1252", errors="replace")  # as of spreadsheets
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "head.csv"
        path.write_text(text)
        try:
            with duckdb.connect() as database:
                sniffed = database.execute("SELECT Delimiter FROM sniff_csv(?)", [str(path)]).fetchone()
        except duckdb.Error:
            sniffed = None
    if sniffed and sniffed[0] in DELIMITERS:
        dialect["delimiter"] = sniffed[0]
    return dialect


def _leads_to_images(url: str) -> bool:
    """Returns whether a URL names image files, or is a local folder with such files and none of a table."""
    if url.lower().endswith(IMAGES):
        return True
    folder = Path(url).expanduser()
    if not folder.is_dir():
        return False
    names = [path.name.lower() for path in folder.rglob("*") if path.is_file()]
    return any(name.endswith(IMAGES) for name in names) and not any(name.endswith(TABLES) for name in names)


def days_of(plug: dict[str, Any]) -> list[date]:
    """Returns the days that have rows, in order."""
    return sorted(Plug(**plug).make().days())


def peek(plug: dict[str, Any], *, time: str = "") -> pa.Table:
    """Returns some rows as they are delivered, of a file with values in the column `time` if one is named."""
    source: Files | Database = Plug(**plug).make()
    rows = source.sample(PEEK_ROWS, needed=time) if isinstance(source, Files) else source.sample(PEEK_ROWS)
    if not len(rows):
        raise DataError(f"{without_password(plug['url'])} has no rows; check that the data is delivered")
    return rows


def clock_of(rows: pa.Table, plug: dict[str, Any], wanted: str, form: str) -> dict[str, str]:
    """Returns the source's arguments for the time column and its format."""
    if wanted and form:
        return {"cut_by": wanted, "time": form}
    if wanted and plug["use"] == FILES and (unit := _unit_since_1970(rows[wanted])):
        return {"cut_by": wanted, "time": unit}
    given = (form,) if form else FORMATS
    names = [wanted] if wanted else rows.column_names
    formats = {name: fitting for name in names if (fitting := formats_of(rows[name], given))}
    if wanted and not formats:
        if wrong := _wrong_times(rows[wanted]):
            raise ParamsError(
                f"--time {wanted} is not times in all rows: {wrong}; have it left out or set right, name "
                f"another column, or {NAME_FORMAT}"
            )
        or_format = f", or {NAME_FORMAT}" if is_text(rows[wanted].type) else ""
        raise ParamsError(
            f"--time {wanted} is {rows[wanted].type} such as {rows[wanted][0]}, not times; name another, "
            f"have it delivered as 2025-01-31 13:45:00{or_format}"
        )
    if len(formats) > 1:  # one that is the same in all rows is their day, as the key of a folder
        varying = {name: formats[name] for name in formats if pc.count_distinct(rows[name]).as_py() > 1}
        formats = varying if len(varying) == 1 else formats
    if len(formats) != 1:
        none = f"no column is a time as {form}" if form else "no column is a time"
        have = f"the columns {', '.join(formats)} are times" if formats else none
        or_format = f"; or {NAME_FORMAT}" if any(is_text(each.type) for each in rows.schema) else ""
        raise ParamsError(
            f"{have}; name the one whose day a row belongs to by --time: "
            f"{', '.join(formats or rows.column_names)}{'' if formats else or_format}"
        )
    ((name, fitting),) = formats.items()
    form = _settled(name, fitting, rows, plug, given=given)
    return {"cut_by": name} | ({"time": form} if form else {})


def clock_beside(
    rows: pa.Table, plug: dict[str, Any], *, time: str, clock: str, but: Collection[str]
) -> tuple[dict[str, str], str]:
    """Returns the arguments of `Files` that make one time of a date and a time of day, and what to ask.

    Args:
        rows: some, as delivered.
        plug: their source.
        time: the column of the date; the only one of dates if empty.
        clock: the column of the time of day; the only one if empty.
        but: columns that are something else.
    """
    if clock and plug["use"] != FILES:
        raise ParamsError("--clock is for files; read a view that has date and time of day as one column")
    if clock and clock not in rows.column_names:
        raise not_in_data("clock", clock, rows.column_names)
    clocks = [name for name in rows.column_names if name not in but and _is_clock(rows[name])]
    if clock and clock not in clocks:
        raise ParamsError(
            f"--clock {clock} is {rows[clock].type} such as {rows[clock][0]}, not times of day such as "
            f"13:45:00; name another"
        )
    if not clocks or plug["use"] != FILES:
        return {}, ""
    dates = [name for name in ([time] if time else rows.column_names) if _is_date(rows[name])]
    if len(dates) != 1:
        if clock:
            raise ParamsError(f"--clock {clock} belongs to a column of dates; name it by --time")
        return {}, ""
    if not clock and len(clocks) > 1:
        return {}, (
            f"{dates[0]} has no time of day, and {' and '.join(clocks)} are times of day; if one belongs to "
            f"it, name it, as --clock {clocks[0]}"
        )
    return {"cut_by": dates[0], "clock": clock or clocks[0]}, ""


def _is_clock(values: pa.ChunkedArray) -> bool:
    """Returns whether values are times of day."""
    if pa.types.is_time(values.type):
        return True
    if not is_text(values.type):
        return False
    known = pc.replace_substring_regex(without_words(values).drop_null(), DAY_OF_NONE, "")
    is_clock = len(known) > 0 and all_match(known, CLOCK)
    return is_clock and not formats_of(values, DAYS)  # as 01.12.25 is


def _is_date(values: pa.ChunkedArray) -> bool:
    """Returns whether values are dates, all at midnight if they have a time of day."""
    if pa.types.is_timestamp(values.type):
        return bool(pc.all(pc.equal(values, pc.floor_temporal(values, unit="day"))).as_py())
    if not is_text(values.type):
        return bool(pa.types.is_date(values.type))
    days = pc.replace_substring_regex(values, MIDNIGHT, "")
    return bool(formats_of(days, DAYS)) and not pc.any(pc.match_substring(days, ":")).as_py()


def formats_of(values: pa.ChunkedArray, given: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Returns which of the given formats fit; ISO if no format is needed, () if the values are not times."""
    if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
        return ISO
    if not is_text(values.type):
        return ()
    texts = without_words(values).drop_null()
    if not len(texts):
        return ()
    if all_match(texts, r"^\d{4}-\d\d-\d\d"):
        try:
            iso_times(texts)
            return ISO
        except pa.ArrowInvalid:
            pass
    most = MAX_QUARANTINED * len(texts)  # whoever reads all rows names one that is wrong
    first = texts.slice(0, FIRST_TEXTS)
    first = first.filter(pc.match_substring_regex(first, MAY_BE_TIME))
    given = tuple(form for form in given if _times(first, form).null_count < len(first))
    return tuple(form for form in given if _times(texts, form).null_count <= most)


def has_offset(values: pa.ChunkedArray) -> bool:
    """Returns whether times are moments of another zone than UTC, of which the day depends on the zone."""
    if pa.types.is_timestamp(values.type):
        return values.type.tz not in (None, "UTC", "Etc/UTC", "+00:00")
    offset = r":\d\d\S*\s?([+-]\d\d:?\d\d)$"
    return is_text(values.type) and bool(pc.any(pc.match_substring_regex(values, offset)).as_py())


def _wrong_times(values: pa.ChunkedArray) -> str:
    """Returns the first row whose text is not a time, if most rows have times; otherwise ""."""
    if not is_text(values.type):
        return ""
    share = pc.mean(pc.match_substring_regex(values, r"^\d{4}-\d\d-\d\d").cast(pa.int8()))
    try:
        if (share.as_py() or 0) > 0.5:
            in_zone(values, "UTC")
    except pa.ArrowInvalid as error:
        return str(error)
    return ""


def _times(texts: pa.ChunkedArray, form: str) -> pa.ChunkedArray:
    """Returns texts as times; null where a text does not have the format, or is of a year that none means."""
    times = times_or_null(texts, form)
    return pc.if_else(pc.less(pc.year(times), FIRST_YEAR), pa.scalar(None, times.type), times)


def _settled(
    name: str, forms: tuple[str, ...], rows: pa.Table, plug: dict[str, Any], *, given: tuple[str, ...]
) -> str:
    """Returns which of the formats of a column is right, by rows of files from the oldest to the newest.

    None where no text needs a format. The format reads the most values. If several read as many and disagree
    on days, such as 12/01/2025, it is the format by which files are nearest to the days in their names, or
    else the format by which rows are in order.
    """
    parts = Plug(**plug).make().spread(NUM_FILES) if plug["use"] == FILES else [(None, rows)]
    texts = [
        (day, part[name].drop_null())
        for day, part in parts
        if part.column_names.count(name) == 1 and is_text(part[name].type)
    ]
    in_file = [(values, fits) for _, values in texts if (fits := formats_of(values, given))]
    other = next((pair for pair in in_file if pair[1] != ISO), None)
    if other is None:
        return forms[0]
    if iso := next((values for values, fits in in_file if fits == ISO), None):
        raise ParamsError(
            f"{name} is written in two formats, as {iso[0]} and as {other[0][0]}; have all files delivered "
            f"in one, as 2025-01-31 13:45:00"
        )
    forms = other[1] if forms == ISO else forms
    num_values = sum(len(values) for _, values in texts)
    read = {form: [(day, _times(values, form)) for day, values in texts] for form in forms}
    wrong = {form: sum(times.null_count for _, times in read[form]) for form in forms}
    least = min(wrong.values())
    if least > MAX_QUARANTINED * num_values:
        raise ParamsError(
            f"{least:,} of {num_values:,} values of {name} are not times as {forms[0]}, nor as any format "
            f"that is known; name theirs by --time-format, or have them delivered as 2025-01-31 13:45:00"
        )
    first, *others = (form for form in forms if wrong[form] == least)
    left = [first, *(form for form in others if read[form] != read[first])]
    for figure in (_days_off, _is_disordered):
        figures = {form: figure(read[form]) for form in left}
        left = [form for form in left if figures[form] == min(figures.values())]
    if len(left) > 1:
        some = next(values[0] for _, values in texts if len(values))
        raise ParamsError(
            f"{name} may be {left[0]} or {left[1]}, which give other days, as of {some}; name the right one "
            f"by --time-format, as --time-format '{left[1]}'"
        )
    return left[0]


def _days_off(parts: list[tuple[date | None, pa.ChunkedArray]]) -> int:
    """Returns by how many days times miss the days of their files, in total; 0 if no file has a day."""
    numbers = [
        times.drop_null().cast(pa.date32()).cast(pa.int32()).to_numpy() - (day - date(1970, 1, 1)).days
        for day, times in parts
        if day
    ]
    return sum(int(np.abs(each).sum()) for each in numbers)


def _is_disordered(parts: list[tuple[date | None, pa.ChunkedArray]]) -> bool:
    """Returns whether some rows are of an earlier day than the row before, and some of a later one."""
    days = [times.drop_null().cast(pa.date32()).cast(pa.int32()).to_numpy() for _, times in parts]
    steps = np.diff(np.concatenate(days))
    return bool((steps < 0).any() and (steps > 0).any())


def _unit_since_1970(values: pa.ChunkedArray) -> str:
    """Returns the unit in which numbers are times of the years 2001 to 2199; "" where they are none."""
    numbers = values.drop_null()
    if is_text(numbers.type):
        try:
            numbers = numbers.cast(pa.float64())
        except pa.ArrowInvalid:
            return ""
    if not any(is_kind(numbers.type) for is_kind in NUMBERS):
        return ""
    ends = pc.min_max(numbers).as_py()
    fits = [
        unit
        for unit, us in SINCE_1970.items()
        if len(numbers) and ends["min"] * us >= FROM_US and ends["max"] * us < END_US
    ]
    return fits[0] if fits else ""


def history_of(plug: dict[str, Any], days: list[date]) -> dict[date, pa.Table]:
    """Returns the rows of the newest of these days, as delivered."""
    source = Plug(**plug).make()
    if not days:
        raise DataError(f"{without_password(plug['url'])} has no day with rows; check that it is delivered")
    parts: dict[date, pa.Table] = {}
    num_rows = 0
    with tempfile.TemporaryDirectory() as scratch:
        for day in reversed(days[-MOST_DAYS:]):
            source.fetch(day, Path(scratch))
            rows = pq.read_table(Path(scratch) / PART, partitioning=None, page_checksum_verification=True)
            num_rows += len(rows)
            parts |= {day: rows} if len(rows) else {}
            if num_rows >= MOST_ROWS:
                break
    return dict(sorted(parts.items()))


def texts_beside(parts: Mapping[date, pa.Table]) -> dict[str, list[date]]:
    """Returns the columns that are text on some days and typed on others, each with the days of text."""
    of_text: dict[str, list[date]] = {}
    typed = set()
    for day, part in parts.items():
        for field in part.schema:
            if is_text(casts.value_type(field.type)):
                of_text.setdefault(field.name, []).append(day)
            elif not pa.types.is_null(field.type):
                typed.add(field.name)
    return {name: days for name, days in of_text.items() if name in typed}


def types_in_words(parts: Mapping[date, pa.Table]) -> tuple[str, ...]:
    """Returns a sentence where columns are text on some days and typed on others; else ()."""
    of_text = texts_beside(parts)
    if not of_text:
        return ()
    names, days = ", ".join(of_text), max(of_text.values(), key=len)
    return (
        f"{names} {'is' if len(of_text) == 1 else 'are'} text on {counted(len(days), 'day')}, such as "
        f"{days[-1]}, and typed on others, as of CSV beside Parquet; the type of the table is by all values",
    )


def of_one_schema(
    parts: dict[date, pa.Table], needed: Mapping[str, str]
) -> tuple[dict[date, pa.Table], tuple[str, ...]]:
    """Returns days without columns that newer ones have no more, and sentences on columns that came or went.

    A new column is null in the days before it. `needed` are columns that options name, by option. Raises
    DataError, which names the days on which columns come and go or are replaced, or the day since which a
    needed column is missing.
    """
    days = sorted(parts, reverse=True)
    names = {day: frozenset(parts[day].column_names) for day in days}
    since = {name: min(day for day in days if name in names[day]) for name in set().union(*names.values())}
    until = {name: max(day for day in days if name in names[day]) for name in since}
    steady = all(
        (name in names[day]) == (since[name] <= day <= until[name]) for name in since for day in days
    )
    pairs = [(names[newer], names[older]) for newer, older in pairwise(days)]
    if not steady or any(newer - older and older - newer for newer, older in pairs):
        usual = Counter(names.values()).most_common(1)[0][0]  # of as many, that of the newest
        odd = [day for day in reversed(days) if names[day] != usual]
        others = f" and {len(odd) - 1} days more have" if len(odd) > 1 else " has"
        raise DataError(
            f"{odd[0]}{others} other columns than {len(days) - len(odd)} of {len(days)} days: "
            f"{other_columns(names[odd[0]], usual)}; have all days delivered with the same columns, or leave "
            f"these out, as by a glob of the other files in --from"
        )
    came = {name: day for name, day in sorted(since.items()) if day > days[-1]}
    gone = {name: day for name, day in sorted(until.items()) if day < days[0]}
    for option, name in needed.items():
        if name in gone:
            raise DataError(
                f"--{option} {name} is in the data until {gone[name]}, and not on the newest day, {days[0]}; "
                f"have it delivered there, name another, or leave newer files out by a glob in --from"
            )
    notes = [
        f"{name} is in the data since {day}, and null in the days before; to leave those out, lower "
        f"ingest.history_days"
        for name, day in came.items()
        if name not in gone
    ]
    notes += [f"{name} is not in the data since {day}, and left out" for name, day in gone.items()]
    return {day: part.drop_columns([*names[day] & gone.keys()]) for day, part in parts.items()}, tuple(notes)


def days_by_time(plug: dict[str, Any]) -> tuple[str, ...]:
    """Returns a sentence where names of files are not the days of their rows in any time zone; else ()."""
    if plug["use"] != FILES:
        return ()
    hours, example, has_zone = [], "", False
    zone, name = plug.get("zone", "UTC"), plug["cut_by"]
    for day, rows in Plug(**plug).make().spread(NUM_FILES):
        if not day or rows.column_names.count(name) != 1:
            continue
        try:
            times = in_zone(rows[name], zone).drop_null()
        except pa.ArrowInvalid:
            continue
        has_zone |= getattr(rows.schema.field(name).type, "tz", None) is not None
        if is_text(rows[name].type):
            has_zone |= bool(pc.any(pc.match_substring_regex(rows[name], OFFSET)).as_py())
        since = times.to_numpy() - np.datetime64(day, "us")
        hours.append(since / np.timedelta64(1, "h"))
        if len(times) and not example and (hours[-1].min() < 0 or hours[-1].max() >= 24):
            first, last = (str(each)[:10] for each in pc.min_max(times).as_py().values())
            example = f"the rows of the file of {day} are of {first}{f' to {last}' if last > first else ''}"
    late = np.concatenate(hours) if hours else np.zeros(0)
    shifts = np.arange(-14, 14.25, 0.25) if has_zone else np.zeros(1)
    if not example or max(np.mean((late + shift >= 0) & (late + shift < 24)) for shift in shifts) > (
        1 - MAX_QUARANTINED
    ):
        return ()
    return (
        f"{example}, so that days are cut by the times of their rows, not by the names of files "
        f"(source.days_by)",
    )


def joined(parts: list[pa.Table], *, zone: str) -> pa.Table:
    """Returns the rows of several days; DataError where their columns are of unlike types."""
    try:
        return casts.joined(parts, zone=zone)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(
            f"days have columns of different types: {str(error).splitlines()[0]}; have all days delivered "
            f"with the same types"
        ) from None
