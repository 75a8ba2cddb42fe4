"""Keeps copies of checkpoints that outlive the machine, in a folder anywhere that fsspec reaches.

Workers write to the disk of their machine and copy from there: a worker restarted on the same machine finds
the checkpoint on its disk, a worker on another machine finds the copy. In the folder nothing is locked or
renamed:

    seen=N.TOKEN/       a copy; its token is random, so no two writers ever write the same file
    heads/NUMBER.json   the valid copies, with their files; the head with the greatest number counts

A copy exists once a head names it. A writer makes each head from the previous head, and only if the new
number is free (on gs:// by ifGenerationMatch=0, on s3:// by If-None-Match: *). A writer that loses this race
reads the newest head and tries again. The winner reads it again too: a copy is committed only when the newest
head names it, or names copies that are as far on. There should not be two writers, but a machine that was
given up for lost may still write. The folder may also be a path on a disk that several machines share.
"""

import json
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from daybreak.storage.bucket import BucketFolder
from daybreak.training import checkpoint
from daybreak.training.checkpoint import KEEP, MANIFEST

log = logging.getLogger(__name__)

HEADS = "heads"
TRIES = 20  # attempts to write the next head
FORGOTTEN = timedelta(hours=1)  # a copy that no head names for so long is the leftover of a killed writer

FilesByCopy = dict[str, list[str]]  # the names of files, by the folder of the copy


class CheckpointCopies:
    """Copies of one job's checkpoints at a URL: gs://bucket/folder, s3://..., memory://..., or a path."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._bucket = BucketFolder(url=url)
        self._sent = ""  # the newest checkpoint sent from here; those of other writers are not verified
        self._initial: set[str] | None = None  # copies that existed when this run began

    def send(self, path: Path) -> bool:
        """Copies a checkpoint there and removes all copies but the newest two.

        Where the storage refuses, it logs a warning and returns False.
        """
        try:
            self._send(path)
        except Exception as error:  # noqa: BLE001 each storage has its own errors, and none should end training
            log.warning(
                "no copy of %s in %s: %s; going on, and trying again later", path.name, self.url, error
            )
            return False
        return True

    def fetch(self, folder: Path, *, finite: bool = False) -> None:
        """Downloads the newest whole checkpoint to `folder`, unless that has it or a newer one.

        With `finite`, a copy with a weight that is not finite is skipped like a torn copy. Errors of the
        storage are raised: starting over would lose the training that the copies hold.
        """
        number, copies = self._head()
        while True:
            for copy in sorted(copies, reverse=True):
                name = _name(copy)
                here = (path for path in folder.glob("seen=*") if path.name >= name)
                if any(not checkpoint.fault(path, finite=finite) for path in here):
                    return
                fresh = folder / f".{name}.{os.getpid()}"
                if wrong := self._get(copy, copies[copy], fresh, finite=finite):
                    log.warning("checkpoint %s is skipped: %s", self._bucket.at(copy), wrong)
                    shutil.rmtree(fresh, ignore_errors=True)
                    continue
                checkpoint.take_place(fresh, folder / name)
                return
            before, (number, copies) = number, self._head()
            if number == before:  # otherwise a writer has removed what was being read
                return

    def fetch_one(self, path: Path) -> bool:
        """Downloads the copy of one checkpoint to its path; returns False where no copy is whole."""
        for copy, files in self.copies().items():
            fresh = path.with_name(f".{path.name}.{os.getpid()}")
            if _name(copy) == path.name and not self._get(copy, files, fresh):
                checkpoint.take_place(fresh, path)
                return True
            shutil.rmtree(fresh, ignore_errors=True)
        return False

    def copies(self) -> FilesByCopy:
        """Returns the valid copies, with the names of their files."""
        return self._head()[1]

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yields each valid copy that is not whole, and what is wrong with it; all bytes are fetched."""
        for copy, files in self.copies().items():
            with tempfile.TemporaryDirectory() as scratch:
                if wrong := self._get(copy, files, Path(scratch) / "copy"):
                    yield copy, wrong

    def _get(self, copy: str, files: list[str], folder: Path, *, finite: bool = False) -> str:
        """Downloads a copy to `folder`, and returns what is wrong with it, or ""."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in files:
            with suppress(FileNotFoundError):
                self._bucket.files.get_file(self._bucket.at(copy, file), str(folder / file))
        return checkpoint.fault(folder, finite=finite)

    def _send(self, path: Path) -> None:
        if path.name == self._sent:
            return
        self._head()
        copy = f"{path.name}.{secrets.token_hex(4)}"
        files = sorted((file.name for file in path.iterdir()), key=lambda name: (name == MANIFEST, name))
        self._bucket.files.makedirs(self._bucket.at(copy), exist_ok=True)
        for file in files:
            self._bucket.files.put_file(str(path / file), self._bucket.at(copy, file))
        gone = self._commit(copy, files)
        self._sent = path.name
        self._clear(gone)

    def _commit(self, copy: str, files: list[str]) -> set[str]:
        """Writes a head that names the copy, unless others are as far on; returns the copies now obsolete."""
        gone: set[str] = set()
        for _ in range(TRIES):
            number, before = self._head()
            if copy in before:
                return gone
            after = self._with(before, copy, files)
            if copy not in after:
                return {*gone, copy}
            if self._bucket.create(json.dumps(after), HEADS, f"{number + 1:012d}.json"):
                gone |= before.keys() - after.keys()
        raise OSError(f"other writers wrote the next head first, {TRIES} times")

    def _with(self, listed: FilesByCopy, copy: str, files: list[str]) -> FilesByCopy:
        """Returns the newest two copies, `copy` counted in.

        A run only goes forward: copies that existed when it began and are as far on were found invalid then.
        """
        name, initial = _name(copy), self._initial or set()
        stays = {other for other in listed if other not in initial or _name(other) < name}
        if name not in map(_name, stays):
            stays.add(copy)
        return {kept: listed.get(kept, files) for kept in sorted(stays)[-KEEP:]}

    def _head(self) -> tuple[int, FilesByCopy]:
        """Returns the newest number and the copies in the newest readable head; 0 and {} before the first."""
        heads = sorted((path for path in self._files() if _folder(path) == HEADS), reverse=True)
        copies: FilesByCopy = {}
        for path in heads:
            try:
                copies = json.loads(self._bucket.files.cat_file(path))
            except FileNotFoundError:  # a writer has replaced it by a newer one
                return self._head()
            except ValueError:  # truncated: its writer was killed
                continue
            break
        if self._initial is None:
            self._initial = set(copies)
        return int(Path(heads[0]).stem) if heads else 0, copies

    def _clear(self, gone: set[str]) -> None:
        """Removes copies that are obsolete or were never named by a head, and heads that no longer count."""
        newest, kept = self._head()
        oldest = datetime.now(UTC) - FORGOTTEN
        for path in self._files():
            folder = _folder(path)
            if folder == HEADS:
                obsolete = int(Path(path).stem) < newest
            else:
                modified = self._bucket.files.modified
                obsolete = folder not in kept and (folder in gone or modified(path) < oldest)
            if obsolete:
                with suppress(FileNotFoundError):
                    self._bucket.files.rm_file(path)

    def _files(self) -> list[str]:
        """Returns the paths of all files in the folder."""
        try:
            return [str(path) for path in self._bucket.files.find(self._bucket.at())]
        except FileNotFoundError:  # the bucket itself may be missing, which `send` reports
            return []


def _name(copy: str) -> str:
    return copy.partition(".")[0]


def _folder(path: str) -> str:
    return path.split("/")[-2]
