"""Spreads the dollars of a calendar month over its nights.

    tonight = (usd_per_month - spent this month) / nights that are left in it

What a cheap night leaves is spread over the later ones. The nights that are left, tonight's among them, are
as many as the last four weeks make probable, one a day where fewer than seven nights are in the ledger.
"""

import calendar
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from math import ceil
from zoneinfo import ZoneInfo

from daybreak.contract.record_parts import MonthBudget
from daybreak.storage import ledger
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry

WEEKS = timedelta(weeks=4)  # in which nights are counted, to know how many are to come
LEAST_NIGHTS = 7
CHUNK = 64  # entries of the ledger that are read at a time


def month_budget(homes: Iterable[Home], *, usd: float, at: datetime, zone: str) -> MonthBudget:
    """Returns what the month of a moment, in a time zone, has left for the nights of some homes together.

    The nights that are left are those of the home that has most.
    """
    local = at.astimezone(ZoneInfo(zone))
    begin = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    num_days = calendar.monthrange(local.year, local.month)[1] - local.day + 1
    spent, most = 0.0, 1
    for home in homes:
        nights = [(entry.night.started_at, entry.usd) for entry in _since(home, min(begin, local - WEEKS))]
        spent += sum(cost or 0.0 for moment, cost in nights if moment >= begin)
        recent = [moment for moment, _ in nights if moment >= local - WEEKS]
        days = max(1.0, (local - min(recent)) / timedelta(days=1)) if recent else 1.0
        a_day = len(recent) / days if len(recent) >= LEAST_NIGHTS else 1.0
        most = max(most, ceil(num_days * a_day))
    return MonthBudget(usd=usd, spent_usd=spent, num_nights=most)


def _since(home: Home, moment: datetime) -> Iterator[Entry]:
    """Yields the nights of the ledger that were opened since a moment, newest first."""
    commits = ledger.commits(home)
    for first in range(0, len(commits), CHUNK):
        entries = ledger.entries_of(home, commits[first : first + CHUNK])
        yield from (entry for entry in entries if not entry.rollback and entry.night.started_at >= moment)
        if entries and min(entry.night.started_at for entry in entries) < moment:
            return
