"""Tells the day, and perhaps the hour, that a file holds by its path."""

import contextlib
import logging
import re
from collections.abc import Collection, Iterable, Iterator
from datetime import date, datetime
from typing import NamedTuple
from urllib.parse import unquote

from daybreak.contract.days import hours_of
from daybreak.contract.errors import ParamsError

log = logging.getLogger(__name__)

NO_HOUR = -1  # of a day's files
_PLACE = re.compile(r"\{(?:day|hour)(?::[^}]*)?\}")
_FORMATS = {"{day}": "%Y-%m-%d", "{hour}": "%H"}
_DIGITS = {"%Y": r"\d{4}", "%m": r"\d\d", "%d": r"\d\d", "%H": r"\d\d"}
_OF_DAYS = {"%Y", "%m", "%d"}
_DAY = re.compile(r"(?<!\d)(\d{4})([-_/.]?)(\d\d)\2(\d\d)(?!\d)")
_KEYS_OF_DAY = re.compile(r"year=(\d{4})/month=(\d\d?)/day=(\d\d?)(?=/)")


class DayFile(NamedTuple):
    """A file, in the order in which a day's are joined."""

    day: date
    hour: int
    path: str


def is_pattern(path: str) -> bool:
    """Returns whether a path has places for a day, such as `{day}` or `{day:%Y/%m/%d}`."""
    return bool(_PLACE.search(path))


def filled(pattern: str, day: date) -> str:
    """Returns a pattern with the day filled in; a place of an hour becomes a star.

    >>> filled("sales/{day:%Y/%m/%d}/{hour}.csv", date(2026, 11, 5))
    'sales/2026/11/05/*.csv'
    """
    return _PLACE.sub(lambda place: day.strftime(_form(place).replace("%H", "*")), pattern)


def globbed(pattern: str) -> str:
    """Returns the glob of a pattern's files: a star for each folder, as none reaches over a slash."""
    return _PLACE.sub(lambda place: "/".join("*" * len(_form(place).split("/"))), pattern)


def of_pattern(pattern: str, paths: Iterable[str]) -> Iterator[DayFile]:
    """Yields the files whose path is `pattern` with a day filled in, and perhaps an hour."""
    pieces: list[str] = []
    end = 0
    for place in _PLACE.finditer(pattern):
        pieces.append(pattern[end : place.start()].replace("%", "%%"))
        pieces += re.split(r"(%[YmdH])", _form(place))
        end = place.end()
    pieces.append(pattern[end:].replace("%", "%%"))
    places = [piece for piece in pieces if piece in _DIGITS]
    if not set(places) >= _OF_DAYS:
        raise ParamsError(f"source.url {pattern} has no complete date; write {{day}} or {{day:%Y/%m/%d}}")
    if sign := next((sign for sign in ("**", "[") if sign in pattern), ""):
        raise ParamsError(
            f"source.url {pattern} has {sign} beside the place of a day; write * for any part of a name, and "
            f"a folder for each level"
        )
    regex = re.compile("".join(f"({_DIGITS[p]})" if p in _DIGITS else _signs(p) for p in pieces))
    for path in paths:
        match = regex.fullmatch(path.replace("%", "%%"))
        values = set(zip(places, match.groups(), strict=True)) if match else set()
        if len(values) == len(set(places)):  # a part that occurs twice has the same value twice
            parts = {name: int(value) for name, value in values}
            with contextlib.suppress(ValueError):
                moment = datetime(parts["%Y"], parts["%m"], parts["%d"], parts.get("%H", 0))
                yield DayFile(moment.date(), parts.get("%H", NO_HOUR), path)


def _signs(piece: str) -> str:
    """Returns a part of a glob as a regular expression."""
    return re.escape(piece).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")


def day_in(path: str) -> date | None:
    """Returns the last day in a path, such as `day=2025-01-31/part-0.parquet` or `sales_20250131.csv`.

    >>> day_in("2025/01/31/a.csv"), day_in("year=2025/month=1/day=31/a.csv")
    (datetime.date(2025, 1, 31), datetime.date(2025, 1, 31))
    """
    days = [(match[1], match[3], match[4]) for match in _DAY.finditer(path)]
    days += [(match[1], match[2], match[3]) for match in _KEYS_OF_DAY.finditer(path)]
    for year, month, day in reversed(days):
        try:
            return date(int(year), int(month), int(day))
        except ValueError:
            continue
    return None


def is_hidden(path: str) -> bool:
    """Returns whether a file, or a folder that it is in, has a name that is no data's, as for Spark.

    >>> is_hidden("_temporary/0/a.csv"), is_hidden("._a.csv"), is_hidden("_shop=north/a.csv")
    (True, True, False)
    """
    return any(name.startswith(".") or (name.startswith("_") and "=" not in name) for name in path.split("/"))


def keys_in(path: str) -> dict[str, str | None]:
    """Returns the keys in the names of a file's folders, and their values; None for Hive's null.

    >>> keys_in("day=2025-01-31/shop=caf%C3%A9/a.csv")
    {'day': '2025-01-31', 'shop': 'café'}
    """
    pairs = [name.partition("=") for name in path.split("/")[:-1] if "=" in name]
    return {
        unquote(key): None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
        for key, _, value in pairs
        if key
    }


def hour_in(path: str) -> int:
    """Returns the hour of a folder such as `hour=07`; NO_HOUR where there is none."""
    match = re.search(r"(?:^|/)hour=([01]?\d|2[0-3])(?=/)", path)
    return int(match[1]) if match else NO_HOUR


def warn_of_missing(day: date, hours: Collection[int], url: str, *, zone: str) -> None:
    """Warns of the hours of a day that were not delivered, where others were."""
    missing = sorted(set(hours_of(day, zone)) - set(hours))
    if missing and set(hours) - {NO_HOUR}:
        log.warning(
            "%s has no hour %s of %s; the day is taken as it is, and again once they are there, within "
            "ingest.late_days",
            url,
            ", ".join(f"{hour:02}" for hour in missing),
            day,
        )


def folder_in(path: str, pattern: str) -> str:
    """Returns the name of the folder that a file is in; "" for none, and where that is a part of a day."""
    name = path.removeprefix(pattern).rpartition("/")[0].rpartition("/")[2]
    in_pattern = _PLACE.sub(_form, pattern).rpartition("/")[0].rpartition("/")[2]
    is_of_day = is_pattern(pattern) and re.search("%[YmdH]", in_pattern)
    return "" if is_of_day or day_in(name) or hour_in(f"{name}/") != NO_HOUR else name


def _form(place: re.Match[str]) -> str:
    return _FORMATS.get(place[0]) or place[0].partition(":")[2].removesuffix("}")
