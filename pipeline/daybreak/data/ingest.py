"""Brings in tonight's rows (the stage `ingest`): the night's day, and earlier days that are late or restated.

Partitions are immutable: `data/raw/day=YYYY-MM-DD/part.parquet` is moved into place whole, and a
restated day replaces the old file by a rename, so that a copy in DVC's cache, which may be
the same inode, is never written to. The days of a night come in together:

1. fetch all days into `data/work/ingest/NIGHT/`, in the columns and types of the workload's table, which
   may fail at any point and leaves nothing behind;
2. write the digests to `days.json` there: from now on these days belong to tonight;
3. move all days to `data/raw`; if a call is killed meanwhile, the next call finishes.
"""

import json
import logging
import math
import os
import shutil
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.contract import disk, records
from daybreak.contract.data_source import Source
from daybreak.contract.days import check_over
from daybreak.contract.errors import DataError, JobError, NothingToDo
from daybreak.contract.formats import counted
from daybreak.contract.record_types import Batch, Night
from daybreak.contract.sections import IngestParams
from daybreak.contract.table import Table, classes_of, codes
from daybreak.data.arrival import Arrival
from daybreak.data.bad_cells import AS_DELIVERED
from daybreak.data.casts import conform
from daybreak.data.file_listing import left_out_in_words
from daybreak.data.partitions import RAW, part_of, partitions
from daybreak.data.source import write_partition
from daybreak.storage import erasures, known_digests
from daybreak.storage.home import Home

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

WORK = Path("data/work/ingest")
SHOW_PROGRESS_FROM = 15  # days


def ingest(home: Home, night: Night, source: Source, table: Table, params: IngestParams) -> Batch:
    """Brings in the night's day and earlier days that are new or changed; returns the batch.

    On the first night, the earlier days are the history of `history_days`; later they are the days within
    `late_days` that are missing here or whose rows have changed, and the days missing since the newest day
    that is here (a rollback of the data takes days away). Where labels come late, it looks back until all
    labels are in. Where the columns of the table have changed, all days are fetched again; a day that is no
    longer delivered keeps its rows, with nulls in new nullable columns. A day that is delivered without rows,
    or lies without rows between others where days are cut by time, is restated to no rows. Days after the
    night's never come in. A late day that cannot be read is left for the next night, with a warning, and so
    is a day that is no longer delivered. `late_days` of the batch lists the earlier days. Rows of erased
    units (daybreak/extensions/erasure/erase.py) stay out. A night that waited in
    vain for its day may become one of an earlier day, which its record then has (arrival.py).

    Raises:
        ParamsError: the night's day was not over when the night was opened.
        NotYet: the night's day is not there yet (arrival.py); nothing has been changed.
        NothingToDo: the source has no rows for the night's day; nothing has been changed.
        DataError: the night's day, or a day of the history, cannot be read, or is not as the table says.
        JobError: the source cannot be reached, or the disk is full.
    """
    check_over(night.day, table.zone, at=night.started_at)
    work = WORK / night.id
    moved = _finish(work)
    here = set(partitions(RAW))
    arrival = Arrival(home, night, params, work=work)
    days = sorted(set(source.days())) if night.day in here else arrival.days(source)
    if words := left_out_in_words(getattr(source, "left_out", dict)()):
        log.info("%s", words)
    if night.day not in here:
        try:
            arrival.expect(source)
        except NothingToDo as reason:
            night = arrival.instead(here, reason)
            records.write(night, home.records)  # it is of that day for all stages
    offered = [day for day in days if day <= night.day]
    before = [day for day in here if day < night.day]
    back = max(params.late_days, _days_until_ripe(table)) if before else params.history_days
    outdated = {day for day in before if not _has_columns_of(table, part_of(day))}
    wanted = _wanted(night.day, offered, before, back=back, outdated=outdated)
    gone = [day for day in before if day not in offered and day >= night.day - timedelta(days=back)]
    fetched = _fetch(
        wanted, source, table, work, home=home, first=not before, outdated=outdated, arrival=arrival
    )
    fetched |= _emptied(gone, offered, source, table, work)
    if night.day not in fetched and not (night.day in here and _num_rows(part_of(night.day))):
        arrival.empty()
    if fetched:
        _warn_of_emptied(fetched, work)
        listed = {str(day): digest for day, digest in (moved | fetched).items()}
        disk.sync(work)
        records.replace_text(work / "days.json", json.dumps(listed, indent=2, sort_keys=True) + "\n")
        _finish(work)
    late = sorted((moved.keys() | fetched.keys()) - {night.day})
    parts = [part_of(day) for day in [*late, night.day]]
    batch = Batch(
        day=night.day,
        num_rows=sum(_num_rows(part) for part in parts),
        num_bytes=sum(part.stat().st_size for part in parts),
        digest=known_digests.digest(home, RAW),
        late_days=tuple(late),
        joined=_joined(getattr(source, "joined", {}), [*late, night.day]),
        waited_hours=arrival.waited_hours,
    )
    earlier = counted(len(late), "earlier day")
    log.info("%s: %s in, with %s", night.day, counted(batch.num_rows, "row"), earlier)
    return batch


def _joined(digests: Mapping[date, Mapping[str, str]], days: Iterable[date]) -> dict[str, str]:
    """Returns by table the digest of what some days were joined with, as a source says of each day."""
    lines: dict[str, list[str]] = {}
    for day in days:
        for name, digest in digests.get(day, {}).items():
            lines.setdefault(name, []).append(f"{day} {digest}")
    return {name: records.text_digest("\n".join(of_days)) for name, of_days in lines.items()}


def fetch_again(
    home: Home, day: date, digest: str, *, source: Source, table: Table, work: Path
) -> Path | None:
    """Fetches a day again to `work`; returns its file if that has the digest, as where no row has changed."""
    erased = erasures.units(home)
    for absent_is_null in (False, True):
        part = part_of(day, work)
        part.parent.mkdir(parents=True, exist_ok=True)
        source.fetch(day, part.parent)
        if part.exists():
            try:
                _conform(day, part, table, erased=erased, absent_is_null=absent_is_null)
            except DataError:
                if absent_is_null:
                    raise
                continue
            if records.digest(part) == digest:
                return part
    return None


def _days_until_ripe(table: Table) -> int:
    """Days to look back for labels: those of a day are all known `ripe_after` its end."""
    after = [label.ripe_after / timedelta(days=1) for label in table.labels.values()]
    return math.ceil(max(after)) + 1 if after else 0


def _emptied(
    gone: Iterable[date], offered: Sequence[date], source: Source, table: Table, work: Path
) -> dict[date, str]:
    """Writes days that are no longer offered and have no rows by now into `work`; returns their digests.

    Where days are cut by time, one between others has no rows. Of others that are gone it warns, as a file
    may be away for other reasons.
    """
    cuts = bool(offered) and getattr(source, "cuts", False)
    digests = {}
    for day in (day for day in gone if _num_rows(part_of(day))):
        if cuts and offered[0] < day < offered[-1]:
            part = part_of(day, work)
            write_partition(table.schema().empty_table(), part.parent)
            digests[day] = records.digest(part)
        else:
            log.warning(
                "the source has %s no more, and its %d rows stay in training; deliver the day without rows "
                "to take them back",
                day,
                _num_rows(part_of(day)),
            )
    return digests


def _warn_of_emptied(fetched: Iterable[date], work: Path) -> None:
    for day in fetched:
        if not _num_rows(part_of(day, work)):
            log.warning(
                "the source has no rows for %s by now; the %d that came before are taken out of training",
                day,
                _num_rows(part_of(day)),
            )


def _has_columns_of(table: Table, part: Path) -> bool:
    import pyarrow.parquet as pq

    there, wanted = pq.read_schema(part), table.schema()
    if (place := there.get_field_index(AS_DELIVERED)) >= 0:
        there = there.remove(place)
    return bool(there.equals(wanted)) and _classes(there) == _classes(wanted)


def _classes(schema: "pa.Schema") -> list[tuple[str, ...]]:
    """Returns the classes of each column; () for a column that is not a label with classes."""
    return [classes_of(field) for field in schema]


def _wanted(
    day: date, offered: Iterable[date], before: list[date], *, back: int, outdated: Collection[date]
) -> list[date]:
    """Days to fetch, the night's first, so that nothing else is fetched in vain if it is missing."""
    since = day - timedelta(days=back)
    newest = max(before, default=day)
    return [
        other
        for other in sorted(offered, key=lambda other: (other != day, other))
        if other >= since or newest < other or other in outdated
    ]


def _fetch(
    days: list[date],
    source: Source,
    table: Table,
    work: Path,
    *,
    home: Home,
    first: bool,
    outdated: Collection[date],
    arrival: Arrival,
) -> dict[date, str]:
    """Fetches days into `work`; returns the digest of each that has other rows than are here."""
    from tqdm import tqdm

    fetched: dict[date, str] = {}
    left_out: set[str] = set()
    erased = erasures.units(home)
    silent = len(days) < SHOW_PROGRESS_FROM or None  # None: silent unless on a terminal
    omits_nulls = bool(days) and getattr(source, "omits_nulls", False)
    try:
        for day in tqdm(days, desc="ingest", unit="day", disable=silent):
            part = part_of(day, work)
            try:
                source.fetch(day, part.parent)
                absent_is_null = (
                    omits_nulls or day in outdated or (day < arrival.day and _lacks(day, part, table, first))
                )
                left_out |= _conform(day, part, table, erased=erased, absent_is_null=absent_is_null)
            except DataError as error:
                if first or day == arrival.day:
                    raise
                log.warning("%s is left for the next night: %s", day, error)
                continue
            if day == arrival.day and not _num_rows(part):
                arrival.empty()
            if _is_news(part, part_of(day)):
                fetched[day] = records.digest(part)
            else:
                shutil.rmtree(part.parent)
        for day in sorted(set(outdated) - fetched.keys()):
            part = part_of(day, work)
            part.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(part_of(day), part)
            _conform(day, part, table, erased=erased, absent_is_null=True)
            fetched[day] = records.digest(part)
    except BaseException as error:
        _clear(work)
        if isinstance(error, OSError):
            raise JobError(
                f"{day} could not be fetched: {error}; check that the source can be reached and that the "
                f"disk has room, then run ingest again ({RAW} is unchanged)"
            ) from None
        raise
    if left_out:
        log.info("left out %s, which the workload's table does not declare", ", ".join(sorted(left_out)))
    return fetched


def _lacks(day: date, part: Path, table: Table, first: bool) -> bool:
    """Whether the columns that a day was fetched without came after it: it is history, or null there."""
    import pyarrow.parquet as pq

    there = pq.read_schema(part).names
    absent = [name for name, column in table.columns.items() if column.nullable and name not in there]
    if first or not absent or not part_of(day).exists():
        return first
    rows = pq.read_table(part_of(day), columns=absent, partitioning=None, page_checksum_verification=True)
    return all(column.null_count == len(rows) for column in rows.columns)


def _conform(
    day: date, part: Path, table: Table, *, erased: Container[str] | None, absent_is_null: bool
) -> set[str]:
    """Writes a fetched part again, in the columns and types of the table; returns the other columns."""
    import pyarrow.parquet as pq

    rows = pq.read_table(part, partitioning=None, page_checksum_verification=True)
    kept = table.schema().empty_table()  # a day without rows has no columns to speak of
    if len(rows):
        kept = conform(rows, table, origin=f"the source's {day}", absent_is_null=absent_is_null)
    write_partition(without(kept, table.unit, erased) if erased else kept, part.parent)
    return set(rows.column_names) - {*table.columns, AS_DELIVERED}


def without(rows: "pa.Table", column: str, units: Container[str]) -> "pa.Table":
    """Returns the rows whose unit, by `codes`, is not in `units`; all rows if the column is missing."""
    import pyarrow as pa

    if column not in rows.column_names:
        return rows
    named = codes(rows[column]).combine_chunks().dictionary_encode()
    gone = pa.array([unit in units for unit in named.dictionary.to_pylist()], pa.bool_())
    is_gone = gone.take(named.indices).fill_null(False)  # a row without a unit stays
    return rows.filter(pa.compute.invert(is_gone))


def _finish(work: Path) -> dict[date, str]:
    """Moves the fetched days that belong to tonight to `data/raw`, and removes the rest."""
    path = work / "days.json"
    listed = json.loads(path.read_text()) if path.exists() else {}
    days = {date.fromisoformat(name): digest for name, digest in listed.items()}
    for day, digest in days.items():
        part = part_of(day, work)
        if part.exists() and records.digest(part) == digest:
            part_of(day).parent.mkdir(parents=True, exist_ok=True)
            os.replace(part, part_of(day))  # noqa: PTH105 - renames the entry, whatever it links to
    _clear(work)
    return {day: digest for day, digest in days.items() if part_of(day).exists()}


def _clear(work: Path) -> None:
    for folder in work.glob("day=*"):
        shutil.rmtree(folder)


def _same(one: Path, other: Path) -> bool:
    """Whether both files hold the same rows; another release of the writer may give other bytes."""
    import pyarrow.parquet as pq

    if not other.exists():
        return False
    if records.digest(one) == records.digest(other):
        return True
    rows, others = (
        pq.read_table(path, partitioning=None, page_checksum_verification=True) for path in (one, other)
    )
    return bool(rows.equals(others)) and _classes(rows.schema) == _classes(others.schema)


def _is_news(part: Path, known: Path) -> bool:
    """Whether a fetched part has other rows than are known; none are news only where there were some."""
    if not _num_rows(part):
        return known.exists() and bool(_num_rows(known))
    return not _same(part, known)


def _num_rows(part: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(part).num_rows)
