"""Brings in tonight's rows (the stage `ingest`): the night's day, and earlier days that are late or restated.

Partitions are immutable: `data/raw/day=YYYY-MM-DD/part.parquet` is moved into place whole, and a
restated day replaces the old file by a rename, so that a copy in DVC's cache, which may be
the same inode, is never written to. The days of a night come in together:

1. fetch all of them into `data/work/ingest/NIGHT/`, which may fail at any point and leaves nothing behind;
2. write their digests to `days.json` there: from now on they belong to tonight;
3. move them to `data/raw`; if a call was killed before it had moved all of them, the next one finishes.
"""

import json
import logging
import os
import shutil
from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path

from pipeline.contract import records
from pipeline.contract.errors import DataError, JobError, NothingToDo, ParamsError
from pipeline.contract.params import IngestParams
from pipeline.contract.records import Batch, Night
from pipeline.data.source import PART, Source

log = logging.getLogger(__name__)

RAW = Path("data/raw")
WORK = Path("data/work/ingest")
SHOW_PROGRESS_FROM = 15  # days


def ingest(night: Night, source: Source, params: IngestParams) -> Batch:
    """Brings in the night's day and earlier days that are new or changed; returns the batch.

    On the first night, the earlier days are the history of `history_days`; later they are the days within
    `late_days` that are missing here or whose rows have changed, and the days missing since the newest
    one that is here (a rollback of the data takes days away). Days after the night's never come in.
    A late day that cannot be read is left for the next night, with a warning. `late_days` of the batch lists
    the earlier days.

    Raises:
        ParamsError: the night's day is in the future.
        NothingToDo: the source has no rows for the night's day; nothing has been changed.
        DataError: the night's day, or a day of the history, cannot be read.
        JobError: the source cannot be reached, or the disk is full.
    """
    today = night.started_at.date()
    if night.day > today:
        raise ParamsError(f"day {night.day} is in the future, today is {today}; ask for a day that is over")
    work = WORK / night.id
    moved = _finish(work)
    here = set(_days_here())
    offered = [day for day in sorted(set(source.days())) if day <= night.day]
    if night.day not in here and night.day not in offered:
        newest = f"its newest before that is {offered[-1]}" if offered else "nor for any day before"
        raise NothingToDo(f"the source has no data for {night.day}, {newest}")
    before = [day for day in here if day < night.day]
    wanted = _wanted(night.day, offered, before, params)
    fetched = _fetch(wanted, night.day, source, work, first=not before)
    if night.day not in here and night.day not in fetched:
        raise NothingToDo(f"the source has no rows for {night.day}")
    if fetched:
        listed = {str(day): digest for day, digest in (moved | fetched).items()}
        records.replace_text(work / "days.json", json.dumps(listed, indent=2, sort_keys=True) + "\n")
        _finish(work)
    late = sorted((moved.keys() | fetched.keys()) - {night.day})
    parts = [part_of(day) for day in [*late, night.day]]
    batch = Batch(
        day=night.day,
        num_rows=sum(_num_rows(part) for part in parts),
        num_bytes=sum(part.stat().st_size for part in parts),
        digest=records.digest(RAW),
        late_days=tuple(late),
    )
    log.info("%s: %d rows in, with %d earlier days", night.day, batch.num_rows, len(late))
    return batch


def part_of(day: date, folder: Path = RAW) -> Path:
    """Returns the file of a day's rows: `data/raw/day=2025-01-31/part.parquet`."""
    return folder / f"day={day}" / PART


def _days_here() -> list[date]:
    return sorted(date.fromisoformat(part.parent.name[4:]) for part in RAW.glob(f"day=*/{PART}"))


def _wanted(day: date, offered: Iterable[date], before: list[date], params: IngestParams) -> list[date]:
    """Days to fetch, the night's first, so that nothing else is fetched in vain if it is missing."""
    since = day - timedelta(days=params.late_days if before else params.history_days)
    newest = max(before, default=day)
    return [
        other
        for other in sorted(offered, key=lambda other: (other != day, other))
        if other >= since or newest < other
    ]


def _fetch(days: list[date], tonight: date, source: Source, work: Path, *, first: bool) -> dict[date, str]:
    """Fetches days into `work`; returns the digest of each that has rows which are not here yet."""
    from tqdm import tqdm

    fetched: dict[date, str] = {}
    silent = len(days) < SHOW_PROGRESS_FROM or None  # None: silent unless on a terminal
    try:
        for day in tqdm(days, desc="ingest", unit="day", disable=silent):
            part = part_of(day, work)
            try:
                source.fetch(day, part.parent)
            except DataError as error:
                if first or day == tonight:
                    raise
                log.warning("%s is left for the next night: %s", day, error)
                continue
            if _num_rows(part) and not _same(part, part_of(day)):
                fetched[day] = records.digest(part)
            else:
                shutil.rmtree(part.parent)
            if day == tonight and not fetched and not part_of(day).exists():
                break
    except BaseException as error:
        _clear(work)
        if isinstance(error, OSError):
            raise JobError(
                f"{day} could not be fetched: {error}; check that the source can be reached and that the "
                f"disk has room, then run ingest again ({RAW} is unchanged)"
            ) from None
        raise
    return fetched


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
    return bool(pq.read_table(one).equals(pq.read_table(other)))


def _num_rows(part: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(part).num_rows)
