"""Chooses the nights that a board shows: filtered, searched, sorted, a page of them. Pure."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from daybreak.contract import formats
from daybreak.profiling.explain import BOUNDS
from daybreak.report.night_rows import NightRow

PER_PAGE = 1000
MOST_SEARCHED = 100  # letters
MOST_OF_REASON = 1000  # letters that are searched: the page has them for each of its nights
OUTCOMES = {
    "promoted": "promoted",
    "kept": "champion kept",
    "failed": "failed",
    "rollback": "rolled back",
}
_SORTS: dict[str, Callable[[str, NightRow], Any]] = {
    "day": lambda model, row: day_of(row),
    "model": lambda model, row: model,
    "verdict": lambda model, row: row.verdict,
    "serves": lambda model, row: row.serves or None,
    "score": lambda model, row: row.score,
    "effect": lambda model, row: row.effect,
    "ready": lambda model, row: row.decided_s,
    "cost": lambda model, row: row.usd,
    "predicted": lambda model, row: (
        None if row.predicted_s is None or row.trained_s is None else row.trained_s / row.predicted_s[1]
    ),
    "bound": lambda model, row: BOUNDS.get(row.bound),
    "rows": lambda model, row: row.num_rows,
    "quarantined": lambda model, row: row.num_quarantined,
}


@dataclass(frozen=True, kw_only=True)
class Query:
    """What a person asks a board for; "" and 1 where nothing."""

    model: str = ""
    outcome: str = ""
    month: str = ""  # of the night's day, as 2026-11
    text: str = ""  # words that are all in what `searched` gives
    sort: str = ""  # a column; "": newest first
    descending: bool = False
    page: int = 1


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A page of the nights that were asked for, each with its model."""

    shown: tuple[tuple[str, NightRow], ...]
    num: int  # on all pages
    num_of_all: int  # that there are
    page: int
    num_pages: int


def query_of(values: Mapping[str, str]) -> Query:
    """Returns what the parameters of an address ask for; what is none of ours counts as left out."""
    sort = values.get("sort", "")
    number, month = values.get("page", "1"), values.get("month", "")
    return Query(
        model=values.get("model", ""),
        outcome=values.get("outcome", "") if values.get("outcome", "") in OUTCOMES else "",
        month=month if re.fullmatch(r"[0-9]{4}-[0-9]{2}", month) else "",
        text=values.get("q", "")[:MOST_SEARCHED],
        sort=sort.removeprefix("-") if sort.removeprefix("-") in _SORTS else "",
        descending=sort.startswith("-"),
        page=int(number) if number.isascii() and number.isdigit() and len(number) < 7 else 1,
    )


def select(
    nights: Sequence[tuple[str, NightRow]], query: Query, *, taken_back: Collection[tuple[str, int]] = ()
) -> Selection:
    """Returns the page that was asked for, or the last one.

    Args:
        nights: as (model, row), newest first.
        query: what is asked for.
        taken_back: models with their versions that were rolled back, and do not serve again.
    """
    chosen = chosen_of(nights, query, taken_back=taken_back)
    num_pages = max(1, -(-len(chosen) // PER_PAGE))
    page = min(max(1, query.page), num_pages)
    return Selection(
        shown=tuple(chosen[(page - 1) * PER_PAGE : page * PER_PAGE]),
        num=len(chosen),
        num_of_all=len(nights),
        page=page,
        num_pages=num_pages,
    )


def month_of(row: NightRow) -> str:
    """Returns the month of a night's day, or of a rollback's, as 2026-11."""
    return day_of(row)[:7]


def day_of(row: NightRow) -> str:
    """Returns a night's day, or the one on which a rollback was made, as 2026-11-24."""
    return f"{datetime.fromtimestamp(row.closed_at, UTC):%Y-%m-%d}" if row.is_rollback else row.day


def time_of(closed_at: float) -> str:
    """Returns the time of the day, as 14:03 UTC, of seconds since 1970."""
    return f"{datetime.fromtimestamp(closed_at, UTC):%H:%M} UTC"


def chosen_of(
    nights: Sequence[tuple[str, NightRow]], query: Query, *, taken_back: Collection[tuple[str, int]] = ()
) -> list[tuple[str, NightRow]]:
    """Returns the nights of all pages that were asked for, in the order that was, as `select` does."""
    is_chosen = query.model or query.outcome or query.month or query.text
    chosen = [one for one in nights if not is_chosen or _is_asked_for(*one, query, taken_back)]
    if not query.sort:
        return chosen
    key = _SORTS[query.sort]
    known = [one for one in chosen if key(*one) not in (None, "")]
    unknown = [one for one in chosen if key(*one) in (None, "")]  # come last, whichever way it is sorted
    return sorted(known, key=lambda one: key(*one), reverse=query.descending) + unknown


def _is_asked_for(model: str, row: NightRow, query: Query, taken_back: Collection[tuple[str, int]]) -> bool:
    if query.model not in ("", model) or query.outcome not in ("", row.outcome):
        return False
    if not month_of(row).startswith(query.month):
        return False
    text = searched(model, row, taken_back) if query.text else ""
    return all(word in text for word in query.text.lower().split())


def searched(model: str, row: NightRow, taken_back: Collection[tuple[str, int]]) -> str:
    """Returns what words are looked for in, in lower case: the page has it too, for the script's search.

    It has the words that a row shows, and of a long reason the beginning. Lower case is that of `toLowerCase`
    in a browser, which `casefold` is not.
    """
    told = [day_of(row), row.night, formats.short_id(row.night), model, row.verdict, row.rental]
    told += [time_of(row.closed_at)] if row.is_rollback else []
    told += [f"at {row.failed}"] if row.failed else []
    told += [f"by {row.by}"] if row.by else []
    told += ["rolled back since"] if is_taken_back(model, row, taken_back) else []
    told += [row.reason[:MOST_OF_REASON]]
    told += [row.bound, BOUNDS[row.bound]] if row.bound else []
    told += [f"{one.machine} {one.place} {one.strategy}" for one in row.rented]
    return " ".join(filter(None, told)).lower()


def is_taken_back(model: str, row: NightRow, taken_back: Collection[tuple[str, int]]) -> bool:
    """Returns whether the version that a night promoted was taken back, and does not serve again."""
    return bool(row.release and not row.is_rollback and (model, row.release[0]) in taken_back)
