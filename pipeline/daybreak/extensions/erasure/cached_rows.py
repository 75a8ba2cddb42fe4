"""Finds a unit's rows in all partitions that nights recorded, and makes the partitions without them.

A partition, and the list of the partitions of a folder, are objects in DVC's cache that are named by their
digest. So a partition without the rows is another object, and so is each list that names it. What was
made of a partition goes as a whole, since a night makes it again: the figures and the sample of the day,
all arrays, and all scores of held-out samples.
"""

import json
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML

from daybreak.contract import records
from daybreak.contract.errors import DataError
from daybreak.data.ingest import without
from daybreak.data.partitions import PART
from daybreak.evaluation.scores import SCORES
from daybreak.storage import branch, dvc_cache, erasures, ledger, snapshots
from daybreak.storage.home import Home

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = ("data/raw", "data/clean", "data/quarantine")
FIGURES, ARRAYS = "data/figures", "data/arrays"
LOCK = "dvc.lock"


@dataclass(kw_only=True)
class CachedRows:
    """What has to become another object, or go."""

    digests: dict[str, str] = field(default_factory=dict)  # by the object of now; GONE: nothing
    num_rows: int = 0
    days: set[str] = field(default_factory=set)


class Objects:
    """The objects of this home's cache, and of the remote where there is one."""

    def __init__(self, home: Home, remote: Any, *, dry_run: bool) -> None:
        self._home, self._cache = home, dvc_cache.folder(home)
        self._remote, self._dry_run = remote, dry_run

    def read(self, digest: str) -> bytes | None:
        """Returns the bytes of an object; None where neither has it, as after a prune.

        Raises DataError where they do not have the digest: what is made of them would pass for good.
        """
        place = self.path(digest)
        if place.exists():
            content = place.read_bytes()
        elif self._remote and self._remote.exists(digest):
            place = self._remote.oid_to_path(digest)
            with self._remote.fs.open(place, "rb") as file:
                content = bytes(file.read())
        else:
            return None
        if records.bytes_digest(content) != digest.removesuffix(dvc_cache.FOLDER):
            raise DataError(
                f"{place} is damaged, so that it is not known which rows to erase; daybreak repair "
                f"puts it back, or delete it where nothing has a good copy; then erase again"
            )
        return content

    def add(self, digest: str, content: bytes) -> None:
        """Adds an object to the cache and the remote; it is on the disk before this returns."""
        if self._dry_run:
            return
        path = self.path(digest)
        if not path.exists():
            records.replace_bytes(path, content, mode=0o444)  # as DVC keeps them
        if self._remote and not self._remote.exists(digest):
            self._remote.add_bytes(digest, content)

    def remove_all_but(self, wanted: Container[str], *, named: Iterable[str]) -> int:
        """Deletes what is not wanted: all else from the cache, from the remote what this ledger named.

        A list of files is removed after its files, so that a killed call finds the remaining files again.
        """
        mine = [path.parent.name + path.name for path in self._cache.glob("??/*")]
        ours = [digest for digest in {*named} if self._remote and self._remote.exists(digest)]
        gone = sorted(
            {*mine, *ours} - {digest for digest in {*mine, *ours} if digest in wanted},
            key=lambda digest: (digest.endswith(".dir"), digest),
        )
        for digest in gone:
            if digest in ours:
                self._remote.delete(digest)
            self.path(digest).unlink(missing_ok=True)
        return len(gone)

    def path(self, digest: str) -> Path:
        """Returns where the cache has an object."""
        return dvc_cache.path_of(self._home, digest)


@contextmanager
def opened(home: Home, *, dry_run: bool) -> Iterator[Objects]:
    """Yields the objects of this home; in a dry run none is added."""
    with snapshots.remote(home.folder) as remote:
        yield Objects(home, remote, dry_run=dry_run)


def with_progress(listings: list[str]) -> Iterable[str]:
    """Returns the lists to look through, with a bar on a terminal."""
    from tqdm import tqdm

    return tqdm(listings, desc="erase", unit="night", disable=None, file=sys.stderr)


def named_outputs(home: Home) -> dict[str, set[str]]:
    """Returns the digests of the outputs that any night's dvc.lock names, by path."""
    texts = {
        files[LOCK]
        for files in branch.texts_at(home, [one.id for one in ledger.commits(home)], [LOCK])
        if files
    }
    texts |= {
        path.read_text()
        for path in (home.folder / LOCK, *home.folder.glob(f"nights/*/{LOCK}"))
        if path.exists()
    }
    outputs: dict[str, set[str]] = {}
    for text in texts:
        for stage in (YAML(typ="safe").load(text) or {}).get("stages", {}).values():
            for out in stage.get("outs", ()):
                if "md5" in out:
                    outputs.setdefault(out["path"], set()).add(out["md5"])
    return outputs


def find(home: Home, objects: Objects, *, column: str, unit: str) -> CachedRows:
    """Returns what has to change so that no object has a row of this unit any more; adds the new objects."""
    cached, changes = CachedRows(), erasures.changed(home)
    outputs = {
        path: {now for digest in digests if (now := changes.get(digest, digest))}
        for path, digests in named_outputs(home).items()
    }
    listings = [digest for path in ROWS for digest in sorted(outputs.get(path, ()))]
    kept: dict[str, str] = {}  # partitions that were looked at
    for digest in with_progress(listings):
        entries = _entries(objects, digest)
        for entry in entries or ():
            if entry["relpath"].endswith(PART) and entry["md5"] not in kept:
                kept[entry["md5"]] = _look(objects, entry, cached, column=column, unit=unit)
        _relist(objects, cached, digest, entries, lambda entry: kept.get(entry["md5"], entry["md5"]))
    if not cached.days:
        return cached

    def figures_now(entry: dict[str, str]) -> str:
        day = Path(entry["relpath"]).stem.removeprefix("day=")
        return erasures.GONE if day in cached.days else entry["md5"]

    for digest in outputs.get(FIGURES, ()):
        _relist(objects, cached, digest, _entries(objects, digest), figures_now)
    for digest in (*outputs.get(ARRAYS, ()), *outputs.get(str(SCORES), ())):
        cached.digests[digest] = erasures.GONE
    return cached


def wanted(home: Home, objects: Objects) -> tuple[set[str], set[str]]:
    """Returns the objects that nights name by now, or .dvc files do, and all that nights have ever named."""
    changes = erasures.changed(home)
    own = dvc_cache.added(home)
    keep = own | {part["md5"] for digest in own for part in _entries(objects, digest) or ()}
    ever = {*changes}
    for digest in {digest for digests in named_outputs(home).values() for digest in digests}:
        for one in filter(None, {digest, changes.get(digest, digest)}):
            parts = {one, *(entry["md5"] for entry in _entries(objects, one) or ())}
            ever |= parts
            if one == changes.get(digest, digest):
                keep |= parts
    return keep, ever


def _entries(objects: Objects, digest: str) -> list[dict[str, str]] | None:
    """Returns what the list of a folder's files has; None where it is a file, or nobody has the list."""
    if not digest.endswith(".dir"):
        return None
    content = objects.read(digest)
    return None if content is None else json.loads(content)


def _look(objects: Objects, entry: dict[str, str], cached: CachedRows, *, column: str, unit: str) -> str:
    """Returns and notes the digest of a partition without the unit's rows; the old one if it has none."""
    import pyarrow.parquet as pq

    content = objects.read(entry["md5"])
    if content is None:
        return entry["md5"]
    file = pq.ParquetFile(BytesIO(content), page_checksum_verification=True)
    if column not in file.schema_arrow.names or not _has(file.read(columns=[column]), column, unit):
        return entry["md5"]
    rows = file.read()
    left = without(rows, column, {unit})
    cached.num_rows += len(rows) - len(left)
    cached.days.add(Path(entry["relpath"]).parent.name[4:])
    return _put(objects, cached, entry["md5"], parquet(left) if len(left) else None)


def _has(rows: "pa.Table", column: str, unit: str) -> bool:
    return len(without(rows, column, {unit})) < len(rows)


def parquet(rows: "pa.Table") -> bytes:
    """Returns rows as the bytes of a partition; the same rows give the same bytes."""
    import pyarrow.parquet as pq

    buffer = BytesIO()
    pq.write_table(rows.combine_chunks(), buffer, compression="zstd", write_page_checksum=True)
    return buffer.getvalue()


def _relist(
    objects: Objects,
    cached: CachedRows,
    digest: str,
    entries: list[dict[str, str]] | None,
    now: Callable[[dict[str, str]], str],
) -> None:
    """Notes the list of a folder's files with what these are now, where any is another."""
    renewed = [entry | {"md5": now(entry)} for entry in entries or ()]
    if entries is None or renewed == entries:
        return
    for entry, after in zip(entries, renewed, strict=True):
        if after["md5"] == erasures.GONE:
            cached.digests[entry["md5"]] = erasures.GONE
    left = [entry for entry in renewed if entry["md5"] != erasures.GONE]
    _put(objects, cached, digest, json.dumps(left, sort_keys=True).encode() if left else None, suffix=".dir")


def _put(
    objects: Objects, cached: CachedRows, digest: str, content: bytes | None, *, suffix: str = ""
) -> str:
    if content is None:
        cached.digests[digest] = erasures.GONE
        return erasures.GONE
    after = records.bytes_digest(content) + suffix
    cached.digests[digest] = after
    objects.add(after, content)
    return after
