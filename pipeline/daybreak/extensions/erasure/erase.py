"""Erases a unit: all rows of a person, an account, out of a home, in steps that may be killed at any line.

1. The partitions without the rows are added to DVC's cache and the remote; nothing names them yet.
2. A note of the ledger says what each digest becomes, and that the unit's rows stay out: from now on nights
   are opened without them.
3. What holds the rows goes: old objects, folders of nights, files of versions in MLflow, samples that are
   kept, the log of serving, predictions wherever nights wrote them.

Each step finds by itself what is left to do, so that a call after a kill ends where an undisturbed one does.
`var/erasure.json` is there from the first step until the last, for `audit`. What cannot be taken back, the
weights of versions that learned from the rows, is named and tagged, and the next night trains anew.
"""

import logging
import shutil
from collections.abc import Iterator
from contextlib import chdir
from datetime import UTC, date, datetime
from pathlib import Path

from daybreak.batch_inference import destinations, predict
from daybreak.contract import records
from daybreak.contract.errors import DataError, ParamsError, PipelineError, ReleaseError, sentence
from daybreak.contract.record_parts import Erasure
from daybreak.contract.record_types import Cards, ChangedLists, Dataset, Distributions, Night
from daybreak.contract.sections import Params
from daybreak.contract.table import code, spellings
from daybreak.data import prepare
from daybreak.data.ingest import without
from daybreak.data.partitions import PART
from daybreak.data.quarantine import REFUSED
from daybreak.evaluation.scores import SCORES
from daybreak.extensions.erasure import cached_rows, version_rows
from daybreak.extensions.erasure.cached_rows import ARRAYS, FIGURES, LOCK, ROWS
from daybreak.extensions.lineage import provenance
from daybreak.registry import aliases
from daybreak.report import outcome, page, publisher
from daybreak.rollout import rot
from daybreak.rollout.lost_ledger import expect_ledger
from daybreak.storage import checkout, erasures, ledger, night_folders, snapshots
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import session
from daybreak.storage.traffic_log import existing_log

log = logging.getLogger(__name__)

BEGUN = Path("data/work/erasing")  # in a folder whose rows are being erased, and whose arrays are still old

BEFORE = records.RUN / "live" / "before.json"  # what users scored before a live test, by unit


def erase(home: Home, unit: str, loaded: Params, *, dry_run: bool) -> Iterator[str]:
    """Erases the rows of a unit, and yields a sentence for each kind of thing that they were in.

    A dry run yields the same sentences, and changes nothing.

    Raises:
        ParamsError: the workload's table names no unit, or a place of predictions is not known.
        ReleaseError: a night is open, a release was interrupted, or a version is not what the ledger says.
        DataError: files that may have the rows are damaged.
    """
    column = loaded.workload.make().table.unit
    if not column:
        raise ParamsError(
            "the table of the workload has no unit, so that it is not known whose a row is; name the column "
            "that says it, unit= of the Table"
        )
    unit = code(unit)
    with checkout.folders_alone(home.folder):
        expect_ledger(home, loaded.register_)
        _expect_quiet(home)
        _expect_intact(home)
        list(destinations.noted(home))  # each is known
        if not dry_run:
            _begin(home, unit)
        yield from _rows(home, unit, column, loaded, dry_run=dry_run)
        days = {day for one in _erasures_of(home, unit) for day in one.days}
        yield from _folders(home, column, unit, days, dry_run=dry_run)
        yield from _serving(home, column, unit, loaded, dry_run=dry_run)
        if not dry_run:
            erasures.journal(home).remove()


def _expect_quiet(home: Home) -> None:
    if not ledger.commits(home):
        raise ReleaseError("no night was closed yet, so that there is no ledger to write to; delete the data")
    if opened := night_folders.undecided(home):
        raise ReleaseError(
            f"night {opened[0].id} is open and has the rows; erase once it is closed, or end it with: "
            f"daybreak stop --night {opened[0].id}"
        )
    if home.release_journal.path.exists():
        raise ReleaseError("a release was interrupted; run watch, then erase again")


def _expect_intact(home: Home) -> None:
    """Raises DataError where a file in the folder of a night differs from its dvc.lock.

    An erasure from a damaged file would make the rest pass for sound. Links into the cache are compared as
    objects.
    """
    if damaged := [fault.where for fault in rot.in_nights(home)]:
        raise DataError(
            f"{len(damaged)} files of nights are damaged: {', '.join(damaged[:3])}; daybreak "
            f"repair puts them back; then erase again"
        )


def _begin(home: Home, unit: str) -> None:
    """Writes the journal; ReleaseError while the erasure of another unit, which was interrupted, is not done.

    Rows of that unit are still in folders and versions, and only its own erasure looks for them.
    """
    journal, mine = erasures.journal(home), erasures.hash_of(unit, erasures.make_key(home))
    before = journal.read() or {}
    if before.get("unit", mine) != mine:
        raise ReleaseError(
            f"the erasure of another unit was interrupted on {before.get('at')}; erase that one again, then "
            f"this one"
        )
    journal.write({"at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "unit": mine})


def _rows(home: Home, unit: str, column: str, loaded: Params, *, dry_run: bool) -> Iterator[str]:
    """Steps 1 and 2, and of step 3 the objects and the versions."""
    name = loaded.register_.name
    with cached_rows.opened(home, dry_run=dry_run) as objects, session(home) as client:
        cached = cached_rows.find(home, objects, column=column, unit=unit)
        carried = list(version_rows.changed(home, client, name, column=column, unit=unit))
        days = sorted(cached.days)
        learned = provenance.learned_from(home, [date.fromisoformat(day) for day in days])
        span = f", {days[0]} to {days[-1]}" if days else ""
        yield f"{cached.num_rows:,} rows of {len(days)} days{span}, as nights recorded them"
        if not dry_run:
            _note(home, unit, cached, learned, carried)
            learned = sorted({number for one in _erasures_of(home, unit) for number in one.versions})
            keep, ever = cached_rows.wanted(home, objects)
            num = objects.remove_all_but(keep, named=ever)
            yield f"{num:,} objects of DVC's cache that held them, or were made of them"
            for change in carried:
                version_rows.replace(change)
        else:
            yield f"{len(cached.digests):,} objects of DVC's cache that hold them, or were made of them"
        if carried:
            yield f"files of versions {', '.join(str(one.number) for one in carried)} in MLflow"
        if not dry_run:
            have = {int(version.version) for version in aliases.versions(client, name)}
            today = f"{datetime.now(UTC):%Y-%m-%d}"
            for number in have & set(learned):
                text = f"{today}: it learned from rows that were erased; train another version"
                if version_rows.ERASED not in aliases.existing(client, name, number).tags:
                    aliases.tag(client, name, number, **{version_rows.ERASED: text})
    if learned:
        yield f"learned from them: versions {', '.join(map(str, learned))}; the next night trains anew"


def _note(
    home: Home,
    unit: str,
    cached: cached_rows.CachedRows,
    learned: list[int],
    carried: list[version_rows.Changed],
) -> None:
    """Writes what changes to the ledger, unless a killed call did.

    A version that such a call was replacing has files of before and of after; what it becomes is noted.
    """
    known = erasures.changed(home)
    noted = set(known.values())
    new = {one.before: one.after for one in carried if one.before not in known and one.after not in noted}
    digests = cached.digests | new
    if digests or not _erasures_of(home, unit):
        erasure = erasures.by(
            unit,
            erasures.make_key(home),
            num_rows=cached.num_rows,
            days=tuple(sorted(cached.days)),
            digests=digests,
            versions=tuple(learned),
        )
        log.info("%s", erasures.note(home, erasure))
    erasures.remember(home)
    publisher.copy_ledger(home)


def _erasures_of(home: Home, unit: str) -> list[Erasure]:
    key = erasures.read_key(home)
    if key is None:
        return []
    return [one for one in erasures.erasures(home) if one.unit == erasures.hash_of(unit, key)]


def _folders(home: Home, column: str, unit: str, days: set[str], *, dry_run: bool) -> Iterator[str]:
    """Removes the folders of nights but the newest, which users are answered from; that is rewritten."""
    folders = [home.nights / commit.night for commit in ledger.commits(home)]
    newest = next((folder for folder in folders if folder.exists()), None)
    others = [path for path in sorted(home.nights.glob("*")) if path.is_dir() and path != newest]
    if others:
        yield f"{len(others):,} folders of nights, as prune would; the ledger and MLflow keep their records"
    if not dry_run:
        snapshots.remove_nights(home, others)
    for folder in filter(None, (newest, home.folder)):
        parts = [part for path in (*ROWS, REFUSED) for part in (folder / path).glob(f"day=*/{PART}")]
        held = [part for part in parts if _holds(part, column, unit)]
        if held:
            yield f"{len(held):,} partitions in {folder}"
        if not dry_run:
            (folder / BEFORE).unlink(missing_ok=True)
            for left in (folder / predict.WORK).parent.glob(f"{predict.WORK.name}*/"):
                shutil.rmtree(left, ignore_errors=True)  # rows of a call that could not write, or was killed
        if not dry_run and (held or (folder / BEGUN).exists()):
            _rewrite(home, folder, held, days, column=column, unit=unit)


def _holds(part: Path, column: str, unit: str) -> bool:
    import pyarrow.parquet as pq

    if column not in pq.read_schema(part).names:
        return False
    rows = pq.read_table(part, columns=[column], partitioning=None, page_checksum_verification=True)
    return len(without(rows, column, {unit})) < len(rows)


def _rewrite(home: Home, folder: Path, held: list[Path], days: set[str], *, column: str, unit: str) -> None:
    """Rewrites the partitions of a folder, and makes its arrays anew."""
    import pyarrow.parquet as pq

    days = days | {part.parent.name[4:] for part in held}
    (folder / BEGUN).parent.mkdir(parents=True, exist_ok=True)
    (folder / BEGUN).touch()
    for path in (folder / FIGURES).glob("day=*"):
        if path.stem[4:] in days:
            path.unlink()
    (folder / SCORES).unlink(missing_ok=True)
    for looks in (Distributions, ChangedLists, Cards):
        records.path_of(looks, folder / records.LOOKS).unlink(missing_ok=True)
    for part in held:
        rows = pq.read_table(part, partitioning=None, page_checksum_verification=True)
        left = without(rows, column, {unit})
        if not len(left):
            shutil.rmtree(part.parent)
            continue
        records.replace_bytes(part, cached_rows.parquet(left))  # the entry: it may be a link into the cache
    if (lock := folder / LOCK).exists():
        records.replace_text(lock, erasures.now_of_lock(home, lock.read_text()))
    for name in ("ingest", "arrays"):
        shutil.rmtree(folder / "data" / "work" / name, ignore_errors=True)
    if (folder / page.FILE).exists():  # it shows rows
        page.write(home, folder, ledger.history(home, limit=outcome.NIGHTS))
    _make_arrays_again(home, folder)
    (folder / BEGUN).unlink()


def _make_arrays_again(home: Home, folder: Path) -> None:
    """Makes the arrays that users are answered from; without them the next night brings others."""
    night, dataset = records.find(Night, folder / records.RUN), records.find(Dataset, folder / records.RUN)
    try:
        if night and dataset:
            params = home.params_of(folder)
            with chdir(folder):
                prepare.make_again(home, dataset, night, plug=params.workload, params=params.prepare)
            return
    except (PipelineError, OSError, ValueError) as error:
        log.warning(
            "the arrays of %s are gone, and come again with the next night: %s", folder, sentence(error)
        )
    shutil.rmtree(folder / ARRAYS, ignore_errors=True)


def _serving(home: Home, column: str, unit: str, loaded: Params, *, dry_run: bool) -> Iterator[str]:
    """Removes samples that are kept, what the log of serving has, and predictions that were written."""
    columns = list((home.var / "columns").glob("*"))
    if columns:
        yield f"{len(columns):,} files of parsed samples"
    for path in columns if not dry_run else ():
        path.unlink(missing_ok=True)
    if serving := existing_log(loaded.serving, home.folder):
        try:
            num_rows = serving.kept_rows.erase(column, unit, dry_run=dry_run)
            num = sum(
                serving.exposures.erase(serving.unit_of(one), dry_run=dry_run) for one in spellings(unit)
            )
            yield f"{num:,} exposures in the log of serving"
            yield f"{num_rows:,} rows that the log of serving keeps"
        finally:
            serving.close()
    with destinations.alone(home):
        for name, place in destinations.noted(home):
            if num := place.erase(column, {*spellings(unit)}, dry_run=dry_run):
                yield f"{num:,} predictions in {name}"
