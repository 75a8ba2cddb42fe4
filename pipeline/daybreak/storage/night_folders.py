"""Reads the folders of nights, and finds those that are not in the ledger yet.

Nights of one home take turns, since each is judged against the champion at its opening: `open` waits while
another night may still be decided, unless that one only waits for users (daybreak/evaluation/live_judge.py).
"""

import logging
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from daybreak.contract import clock, records
from daybreak.contract.errors import DataError
from daybreak.contract.record_types import OF_A_NIGHT, Batch, Night, Stop
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry

log = logging.getLogger(__name__)


def entry_of(folder: Path, history: Sequence[Entry] = ()) -> Entry:
    """Returns tonight as an entry of the ledger, read from the folder; its commit is "" before `close`."""
    run = folder / records.RUN
    night = records.read(Night, run)
    by_name: dict[str, Any] = {kind.__name__.lower(): records.find(kind, run) for kind in OF_A_NIGHT}
    commits = [e.commit for e in history if e.night.id == night.id and not e.rollback]
    return Entry(commit=next(iter(commits), ""), subject="", rollback=False, **by_name)


def unclosed(home: Home) -> Iterator[tuple[Path, Night]]:
    """Yields the folders of nights that have no commit in the ledger, each with its night.

    They are those in `nights/`, and the home itself for a night that runs there.
    """
    for folder in (home.folder, *sorted(home.nights.glob("*"))):
        try:
            night = records.find(Night, folder / records.RUN)
        except (DataError, OSError) as error:  # being laid out, or broken: the others are looked at
            log.warning("the night in %s cannot be read: %s", folder, error)
            continue
        if night and not ledger.commit_of(home, night):
            yield folder, night


def lock_to_go_on_from(home: Home, previous: str) -> str | None:
    """Returns the dvc.lock with the data that a night after `previous` goes on from; None without any.

    It is that of an open night, which only waits for users, where no entry has data of its day yet: a source
    may keep the newest days only.
    """
    known = max((entry.night.day for entry in ledger.with_batches(home, previous)), default=date.min)
    folders = {night.day: home.nights / night.id for night in undecided(home)}
    locks = {
        day: folder / ledger.LOCK
        for day, folder in folders.items()
        if day > known and records.find(Batch, folder / records.RUN) and (folder / ledger.LOCK).exists()
    }
    if locks:
        return locks[max(locks)].read_text()
    return branch.text_at(home, ledger.with_newest_data(home, previous), ledger.LOCK) if previous else None


def newest_day(home: Home) -> date:
    """Returns the newest day of data that a night was for, closed or not; of the newest nights."""
    nights = [entry.night for entry in ledger.history(home, limit=28)]
    return max(night.day for night in (*nights, *(night for _, night in unclosed(home))))


def undecided(home: Home) -> list[Night]:
    """Returns the opened nights that may still be decided: in time, not stopped, overtaken by no other."""
    return [
        night
        for folder, night in unclosed(home)
        if night.decide_until > clock.utc_of(night)
        and not ledger.failed_to_open(folder)
        and records.find(Stop, folder / records.RUN) is None
        and not ledger.overtaken(home, night)
    ]
