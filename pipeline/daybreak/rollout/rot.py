"""Finds bytes that are not those which the records of the ledger name, wherever Daybreak keeps any.

Each fault is found by reading all bytes. What a night uses it has checked before; this also reads what no
night has read for long, and what only a rollback would need.
"""

import logging
import sqlite3
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import new as new_hash
from pathlib import Path

from daybreak.contract import records
from daybreak.contract.backend import Backend
from daybreak.contract.errors import DataError, JobError, PipelineError, sentence
from daybreak.contract.sections import Params
from daybreak.jobs.cost_tracker import JOBS
from daybreak.registry import aliases, carried_code
from daybreak.storage import checkout, dvc_cache, ledger
from daybreak.storage.bucket import BucketFolder
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import session, tracking_uri
from daybreak.training import checkpoint
from daybreak.training.checkpoint_copies import CheckpointCopies
from daybreak.training.recipe import Recipe

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DamagedBytes:
    """Bytes that are not what a record says."""

    where: str  # for a person
    name: str  # digest, path or number, for who repairs it

    def __str__(self) -> str:
        """Returns it for a person."""
        return self.where


def in_cache(home: Home, digests: Sequence[str]) -> Iterator[DamagedBytes]:
    """Yields damaged objects of DVC's cache among `digests`: bytes that do not match the digest."""
    for digest in dvc_cache.damaged(home, digests):
        yield DamagedBytes(where=f"object {digest} of DVC's cache", name=digest)


def missing(home: Home, locks: Sequence[str]) -> Iterator[DamagedBytes]:
    """Yields the objects that these texts of dvc.lock name and the cache lacks."""
    lacking: dict[str, str] = {}
    for lock in dict.fromkeys(locks):
        lacking |= dvc_cache.missing(home, lock)
    for digest, path in lacking.items():
        yield DamagedBytes(where=f"{path} ({digest}), which DVC's cache lacks", name=digest)


def in_nights(home: Home) -> Iterator[DamagedBytes]:
    """Yields files in the folders of nights that differ from their dvc.lock.

    Links into the cache are the cache's; where a disk knows no links, nights have copies.
    """
    known = {_identity(dvc_cache.path_of(home, digest)) for digest in dvc_cache.objects(home)}
    for folder in (home.folder, *sorted(home.nights.glob("*"))):
        lock = folder / "dvc.lock"
        if not lock.is_file():
            continue
        for path, digest in dvc_cache.files_of(home, dvc_cache.outputs(lock.read_text())):
            file = folder / path
            if (
                file.is_file()
                and _identity(file) not in known
                and not dvc_cache.is_intact(home, digest, file)
            ):
                yield DamagedBytes(where=str(file), name=digest)


def _identity(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino


def in_git(home: Home) -> Iterator[DamagedBytes]:
    """Yields faults that git finds in its objects and in the ledger's history."""
    for path in damaged_objects(home):
        yield DamagedBytes(where=f"{path.relative_to(home.folder)} of git", name=str(path))
    words = ["git", "fsck", "--full", "--no-dangling", "--no-reflogs", "--no-progress"]
    done = subprocess.run(words, cwd=home.folder, capture_output=True, text=True, check=False)
    if done.returncode:
        yield DamagedBytes(
            where=f"git fsck: {' '.join(done.stderr.split() + done.stdout.split())[:300]}", name="fsck"
        )


def damaged_objects(home: Home) -> list[Path]:
    """Returns damaged loose objects and packs of git: bytes that do not match the name."""
    store = Path(
        checkout.git("rev-parse", "--path-format=absolute", "--git-path", "objects", folder=home.folder)
    )
    loose = [path for path in sorted(store.glob("[0-9a-f][0-9a-f]/*")) if not _is_whole(path)]
    packs = []
    for index in sorted(store.glob("pack/*.idx")):
        verify = ["git", "verify-pack", str(index)]
        if subprocess.run(verify, cwd=home.folder, capture_output=True, check=False).returncode:
            packs.append(index.with_suffix(".pack"))
    return loose + packs


def _is_whole(path: Path) -> bool:
    """Returns whether the content of a loose object of git matches its name, with nothing after it."""
    name = path.parent.name + path.name
    if len(name) not in (40, 64):
        return True  # a file that git is writing
    reader = zlib.decompressobj()
    try:
        content = reader.decompress(path.read_bytes())
    except FileNotFoundError:
        return True  # git has packed it meanwhile, and packs are verified after this
    except (OSError, zlib.error):
        return False
    kind = "sha1" if len(name) == 40 else "sha256"
    whole = reader.eof and not reader.unused_data
    return whole and new_hash(kind, content, usedforsecurity=False).hexdigest() == name


def in_checkpoints(home: Home) -> Iterator[DamagedBytes]:
    """Yields checkpoints in the folders of nights, and copies of them elsewhere, that are not whole."""
    for folder in sorted(home.nights.glob(f"*/{JOBS}/*")):
        for path in sorted(folder.glob("checkpoints/seen=*")):
            if wrong := checkpoint.fault(path):
                yield DamagedBytes(where=f"{path}: {wrong}", name=str(path))
    for url in copies(home):
        for copy, wrong in CheckpointCopies(url).faults():
            yield DamagedBytes(where=f"{url}/{copy}: {wrong}", name=f"{url}/{copy}")


def copies(home: Home) -> list[str]:
    """Returns the URLs of copies of checkpoints that the jobs of nights here have."""
    folders = sorted(home.nights.glob(f"*/{JOBS}/*"))
    return list(dict.fromkeys(filter(None, map(copies_of, folders))))


def copies_of(folder: Path) -> str:
    """Returns the URL of copies of the checkpoints of the job in a folder; "" for none."""
    path = folder / "job.json"
    try:
        return records.loads(Recipe, path.read_text(), source=str(path)).copies if path.exists() else ""
    except DataError as error:  # of another release
        log.warning("copies of checkpoints of %s are not looked for: %s", folder.name, error)
        return ""


def in_buckets(home: Home, params: Params) -> Iterator[DamagedBytes]:
    """Yields damaged job inputs in the backends' buckets: files that differ from the files sent."""
    for bucket in buckets(home, params):
        yield from in_bucket(bucket)


def in_bucket(bucket: BucketFolder) -> Iterator[DamagedBytes]:
    """Yields those of one bucket."""
    for thing, file in bucket.damaged():
        yield DamagedBytes(where=f"{bucket.url}/things/{thing}/{file}", name=thing)


def buckets(home: Home, params: Params) -> list[BucketFolder]:
    """Returns the buckets of the backends that have one."""
    backend: Backend = params.backend.make(home)
    urls = dict.fromkeys(part.bucket_url for part in backend.parts())
    return [BucketFolder(url=url) for url in urls if url]


def in_versions(home: Home, params: Params) -> Iterator[DamagedBytes]:
    """Yields versions whose files in MLflow differ from the ledger's record."""
    with session(home) as client:
        have = {int(one.version): one for one in aliases.versions(client, params.register_.name)}
        for version in ledger.versions(home):
            registered = have.get(version.number)
            if registered is None or aliases.PRUNED in registered.tags:
                continue  # `audit` tells of a version that is missing
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    carried_code.fetch(home, str(registered.source), version, into=Path(scratch))
                except JobError:  # the store fails, which says nothing of its files
                    raise
                except (PipelineError, OSError) as error:
                    yield DamagedBytes(
                        where=f"version {version.number}: {sentence(error)}", name=str(version.number)
                    )


def in_database(home: Home) -> Iterator[DamagedBytes]:
    """Yields what SQLite finds wrong with the database of MLflow, where it is a file here."""
    if not tracking_uri(home).startswith("sqlite:///"):
        return
    path = Path(tracking_uri(home).removeprefix("sqlite:///"))
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            lines = [str(row[0]) for row in database.execute("PRAGMA integrity_check(3)")]
    except sqlite3.Error as error:
        lines = [str(error)]
    for line in lines:
        if line != "ok":
            yield DamagedBytes(where=f"{path}: {' '.join(line.split())}", name=str(path))
