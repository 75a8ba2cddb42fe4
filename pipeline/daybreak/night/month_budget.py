"""Spreads the dollars of a calendar month over its nights.

    tonight = (usd_per_month - spent this month) / nights that are left in it

What a cheap night leaves is spread over the later ones. The nights that are left, tonight's among them, are
as many as the last four weeks make probable, one a day where fewer than seven nights are in the ledger.
"""

import calendar
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from math import ceil
from statistics import median
from zoneinfo import ZoneInfo

from daybreak.contract.record_parts import MonthBudget
from daybreak.jobs.cost_tracker import JOBS, spent_usd
from daybreak.storage import ledger, night_folders
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry

WEEKS = timedelta(weeks=4)  # in which nights are counted, to know how many are to come
LEAST_NIGHTS = 7
CHUNK = 64  # entries of the ledger that are read at a time
IN_A_ROW = "nights "  # how the trigger of nights begins that make up for missed ones


def month_budget(
    homes: Iterable[Home], *, usd: float, at: datetime, zone: str, without: Container[str] = ()
) -> MonthBudget:
    """Returns what the month of a moment, in a time zone, has left for the nights of some homes together.

    The nights that are left are those of the home that has most. The cost of nights in `without` is left out.
    """
    local = at.astimezone(ZoneInfo(zone))
    begin = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    num_days = calendar.monthrange(local.year, local.month)[1] - local.day + 1
    spent, most = 0.0, 1
    for home in homes:
        nights = list(_since(home, min(begin, local - WEEKS)))
        spent += sum(
            one.usd or 0.0 for one in nights if one.night.started_at >= begin and one.night.id not in without
        )
        spent += sum(
            spent_usd(folder / JOBS, night=night.id)  # users may judge its challenger for days
            for folder, night in night_folders.unclosed(home)
            if night.started_at >= begin and night.id not in without
        )
        recent = [
            one.night.started_at.astimezone(local.tzinfo).date()
            for one in nights
            if one.night.started_at >= local - WEEKS and not one.night.trigger.startswith(IN_A_ROW)
        ]
        most = max(most, ceil(num_days * (_a_day(recent, local.date()) if recent else 1.0)))
    return MonthBudget(usd=usd, spent_usd=spent, num_nights=most)


def _a_day(started: Sequence[date], today: date) -> float:
    """Returns the nights a day, by the days on which some started; 1 where there were too few."""
    if len(started) < LEAST_NIGHTS:
        return 1.0
    counts = Counter(started)
    return median(counts.values()) * len(counts) / max(1, (today - min(counts)).days)


def _since(home: Home, moment: datetime) -> Iterator[Entry]:
    """Yields the nights of the ledger that were opened since a moment, newest first."""
    commits = [one for one in ledger.commits(home) if not one.rollback]  # which has the night of its version
    for first in range(0, len(commits), CHUNK):
        entries = ledger.entries_of(home, commits[first : first + CHUNK])
        yield from (entry for entry in entries if entry.night.started_at >= moment)
        if any(entry.night.started_at < moment for entry in entries):
            return
