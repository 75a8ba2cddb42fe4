"""Says which days are judged tonight, and of which rows.

The digests of the rules, and of the raw rows of each day, are kept beside the clean partitions: so
`data/clean` is a function of raw, table, rules and which days passed.
"""

import json
import shutil
from collections.abc import Collection, Container, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from daybreak.contract import disk, records
from daybreak.contract.record_types import Batch, Night
from daybreak.contract.table import Table
from daybreak.data import day_history
from daybreak.data.features import is_ripe
from daybreak.data.partitions import CLEAN, QUARANTINE, RAW, part_of, partitions
from daybreak.storage import erasures, known_digests
from daybreak.storage.home import Home

RULES = CLEAN / "RULES.txt"
OF_RAW = CLEAN / "RAW.json"  # digest of the raw rows that each day's were split from


@dataclass(frozen=True, kw_only=True)
class Agenda:
    """The days that are judged tonight, and digests of their rows."""

    raw: Mapping[date, str]  # digest of the rows of each day that has some, as they came in
    split_from: Mapping[date, str]  # digest of the raw rows behind the present clean rows
    is_anew: bool  # by other rules than before, or for the first time
    came_in: Sequence[date]  # since the night before, in order
    tonight: Sequence[date]  # these, and all that passed before where the rules are others
    pending: Sequence[date]  # came in before and have not passed as they are: each is judged by itself
    restated: Set[date]  # passed with other rows than those that are here now

    def without(self, days: Container[date]) -> "Agenda":
        """Returns the agenda of a home that does not have these days."""
        raw, split_from = (
            {day: digest for day, digest in digests.items() if day not in days}
            for digests in (self.raw, self.split_from)
        )
        return replace(self, raw=raw, split_from=split_from)


def agenda_of(home: Home, night: Night, batch: Batch, *, rules: str) -> Agenda:
    """Returns the days to judge by the rules of that digest."""
    here = [day for day in partitions(RAW) if _num_rows(part_of(day))]
    passed = set(partitions(CLEAN)) if RULES.exists() else set()
    raw = _raw_digests(home, here)
    split_from = _split_from(home, raw)
    is_anew = not RULES.exists() or RULES.read_text().strip() != rules
    # By other rules or columns all days that passed are judged together, so that no clean row is compared.
    restated = {day for day in passed & raw.keys() if split_from[day] != raw[day] and not is_anew}
    late = passed.intersection(batch.late_days, here) if passed else here  # others are judged by themselves
    came_in = {batch.day, *(day for day in late if day <= night.day)}
    pending = [day for day in here if day < night.day and day not in came_in and day not in passed - restated]
    passed_as_is = passed.intersection(here) - set(pending)
    return Agenda(
        raw=raw,
        split_from=split_from,
        is_anew=is_anew,
        came_in=sorted(came_in),
        tonight=sorted(came_in | passed_as_is if is_anew else came_in),
        pending=pending,
        restated=restated,
    )


def labelled_since(agenda: Agenda, night: Night, table: Table) -> list[date]:
    """Returns the days that passed without labels, and whose labels came since the last night.

    The newest day with labels is not among them: its wrong labels stop the night. The labels of the others
    were judged by no night, as theirs was left out or stopped; wrong ones keep the day out of training.
    """
    known = [day for day in day_history.days() if day <= night.day]
    if not known or agenda.is_anew:
        return []
    before = {*agenda.came_in, *agenda.pending}
    days = [day for day in agenda.raw if day not in before and is_ripe(table, day, by=night.day)]
    return [day for day in days[:-1] if not is_ripe(table, day, by=known[-1])]


def note_passed(agenda: Agenda, passed: Collection[date], *, rules: str) -> None:
    """Notes what the clean rows of the days that passed were split from, and by which rules.

    Days that have no rows any more are removed, and by other rules than before those that did not pass.
    """
    for gone in set(partitions(CLEAN)).difference(passed if agenda.is_anew else agenda.raw):
        shutil.rmtree(part_of(gone, CLEAN).parent)
        shutil.rmtree(part_of(gone, QUARANTINE).parent, ignore_errors=True)
    _note_split_from({**agenda.split_from, **{day: agenda.raw[day] for day in passed}})
    if agenda.is_anew:
        disk.sync(CLEAN)
        records.replace_text(RULES, rules + "\n")  # last: a killed call is repeated in full


def _raw_digests(home: Home, days: Sequence[date]) -> dict[date, str]:
    """Returns the digest of the rows of each day, as they came in."""
    digests = known_digests.digests(home, (part_of(day) for day in days))
    return {day: digests[part_of(day)] for day in days}


def _split_from(home: Home, raw: Mapping[date, str]) -> dict[date, str]:
    """Returns the digest of the raw rows that each clean day was split from, as noted, or of those now."""
    if not OF_RAW.exists():
        return dict(raw)
    rewritten = erasures.changed(home)  # without the rows of units that were erased
    noted = json.loads(OF_RAW.read_text())
    before = {day: noted.get(str(day), now) for day, now in raw.items()}
    return {day: rewritten.get(of, of) for day, of in before.items()}


def _note_split_from(digests: Mapping[date, str]) -> None:
    """Notes what each clean day was split from, by the digests of the raw rows."""
    noted = {str(day): digests[day] for day in partitions(CLEAN) if day in digests}
    records.replace_text(OF_RAW, json.dumps(noted, indent=0) + "\n")


def _num_rows(part: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(part).num_rows)
