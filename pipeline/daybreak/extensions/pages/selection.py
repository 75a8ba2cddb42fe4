"""Chooses the nights that a board shows: filtered, searched, sorted, a page of them. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from daybreak.profiling.explain import BOUNDS
from daybreak.report.night_rows import NightRow

PER_PAGE = 1000
MOST_SEARCHED = 100  # letters
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


def select(nights: Sequence[tuple[str, NightRow]], query: Query) -> Selection:
    """Returns the page that was asked for, or the last one; `nights` as (model, row), newest first."""
    chosen = chosen_of(nights, query)
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


def chosen_of(nights: Sequence[tuple[str, NightRow]], query: Query) -> list[tuple[str, NightRow]]:
    """Returns the nights of all pages that were asked for, in the order that was."""
    is_chosen = query.model or query.outcome or query.month or query.text
    chosen = [one for one in nights if _is_asked_for(*one, query)] if is_chosen else list(nights)
    if not query.sort:
        return chosen
    key = _SORTS[query.sort]
    known = [one for one in chosen if key(*one) not in (None, "")]
    unknown = [one for one in chosen if key(*one) in (None, "")]  # come last, whichever way it is sorted
    return sorted(known, key=lambda one: key(*one), reverse=query.descending) + unknown


def _is_asked_for(model: str, row: NightRow, query: Query) -> bool:
    if query.model not in ("", model) or query.outcome not in ("", row.outcome):
        return False
    if not month_of(row).startswith(query.month):
        return False
    text = searched(model, row)
    return all(word in text for word in query.text.lower().split())


def searched(model: str, row: NightRow) -> str:
    """Returns what words are looked for in, in lower case: the page has it too, for the script's search.

    Lower case is that of `toLowerCase` in a browser, which `casefold` is not.
    """
    told = [day_of(row), row.night, model, row.verdict, row.failed, row.by, row.rental, row.reason]
    told += [row.bound, BOUNDS[row.bound]] if row.bound else []
    told += [f"{one.machine} {one.place} {one.strategy}" for one in row.rented]
    return " ".join(filter(None, told)).lower()
