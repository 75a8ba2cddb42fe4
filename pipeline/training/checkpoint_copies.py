"""What outlives the machine? A copy of each checkpoint in a folder anywhere that fsspec reaches.

Workers write to the disk of their machine and copy from there: a worker that is started again on it finds the
checkpoint on its disk, one on another machine finds the copy. In the folder nothing is locked or renamed:

    seen=N.TOKEN/       a copy; its token is drawn anew for each, so no two writers ever write the same file
    heads/NUMBER.json   the copies to believe in, with their files; the one of the greatest number counts

A copy is there once a head names it. Each head is made from the one before it, and only if there is none of
its number yet (on gs:// by ifGenerationMatch=0: compare-and-swap by generation). Who comes second looks
again, and so does who came first: it is done only when the newest head names its copy, or others as far on.
There should not be two writers, but a machine that was given up for lost may still write.
The folder may be a path too, on a disk that several machines share.
"""

import json
import logging
import os
import secrets
import shutil
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fsspec.core import url_to_fs

from pipeline.training import checkpoint
from pipeline.training.checkpoint import KEEP, MANIFEST

log = logging.getLogger(__name__)

HEADS = "heads"
TRIES = 20  # to be the one that makes the next head
FORGOTTEN = timedelta(hours=1)  # what no head names for so long was left by a writer that was killed

Copies = dict[str, list[str]]  # files by folder


class Bucket:
    """The folder at an URL: gs://bucket/folder, s3://..., memory://..., or a path."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._system, self._root = url_to_fs(url)
        self._sent = ""  # name of the newest, by us: of what others sent we only know what it claims to be
        self._found: set[str] | None = None  # copies that were there when this run began

    def send(self, path: Path) -> bool:
        """Copy a checkpoint there, let go of all but the newest two; False, and a warning, if refused."""
        try:
            self._send(path)
        except Exception as error:  # noqa: BLE001 each system has its own, none is a reason to end training
            log.warning(
                "no copy of %s in %s: %s; going on, and trying again later", path.name, self.url, error
            )
            return False
        return True

    def bring(self, folder: Path) -> None:
        """Bring the newest checkpoint that is whole to `folder`, unless that has it or a newer one.

        What cannot be read at all is an error: to begin anew would be to lose what is there.
        """
        number, copies = self._head()
        while True:
            for copy in sorted(copies, reverse=True):
                name = _name(copy)
                if any(path.name >= name for path in folder.glob("seen=*") if not checkpoint.fault(path)):
                    return
                fresh = folder / f".{name}.{os.getpid()}"
                if wrong := self._get(copy, copies[copy], fresh):
                    log.warning("checkpoint %s is skipped: %s", self._at(copy), wrong)
                    shutil.rmtree(fresh, ignore_errors=True)
                    continue
                checkpoint.take_place(fresh, folder / name)
                return
            before, (number, copies) = number, self._head()
            if number == before:  # else a writer has let go of what was being read
                return

    def copies(self) -> Copies:
        """The copies that count, with their files."""
        return self._head()[1]

    def _get(self, copy: str, files: list[str], folder: Path) -> str:
        """Copy a checkpoint from there; what is wrong with it."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in files:
            with suppress(FileNotFoundError):
                self._system.get_file(self._at(copy, file), str(folder / file))
        return checkpoint.fault(folder)

    def _send(self, path: Path) -> None:
        if path.name == self._sent:
            return
        self._head()
        copy = f"{path.name}.{secrets.token_hex(4)}"
        files = sorted((file.name for file in path.iterdir()), key=lambda name: (name == MANIFEST, name))
        self._system.makedirs(self._at(copy), exist_ok=True)
        for file in files:
            self._system.put_file(str(path / file), self._at(copy, file))
        gone = self._commit(copy, files)
        self._sent = path.name
        self._clear(gone)

    def _commit(self, copy: str, files: list[str]) -> set[str]:
        """Let a head name the copy, unless others are as far on; the copies that none names any more."""
        self._system.makedirs(self._at(HEADS), exist_ok=True)
        gone: set[str] = set()
        for _ in range(TRIES):
            number, before = self._head()
            if copy in before:
                return gone
            after = self._with(before, copy, files)
            if copy not in after:
                return {*gone, copy}
            path = self._at(HEADS, f"{number + 1:012d}.json")
            with suppress(FileExistsError), self._system.open(path, "xb") as file:
                file.write(json.dumps(after).encode())
                gone |= before.keys() - after.keys()
        raise OSError(f"other writers came first {TRIES} times")

    def _with(self, there: Copies, copy: str, files: list[str]) -> Copies:
        """The newest two, this one among them if it is.

        A run only goes forward: what is as far on and was there when it began, it did not believe.
        """
        name, found = _name(copy), self._found or set()
        stays = {other for other in there if other not in found or _name(other) < name}
        if name not in map(_name, stays):
            stays.add(copy)
        return {kept: there.get(kept, files) for kept in sorted(stays)[-KEEP:]}

    def _head(self) -> tuple[int, Copies]:
        """The newest number, and what the newest head that can be read names; 0 and none at the beginning."""
        self._system.invalidate_cache()
        heads = sorted((path for path in self._files() if _folder(path) == HEADS), reverse=True)
        copies: Copies = {}
        for path in heads:
            try:
                copies = json.loads(self._system.cat_file(path))
            except FileNotFoundError:  # there is a newer one
                return self._head()
            except ValueError:  # cut short: its writer was killed
                continue
            break
        if self._found is None:
            self._found = set(copies)
        return int(Path(heads[0]).stem) if heads else 0, copies

    def _clear(self, gone: set[str]) -> None:
        """Remove copies that are let go of or were never named, and heads that no longer count."""
        newest, kept = self._head()
        then = datetime.now(UTC) - FORGOTTEN
        for path in self._files():
            folder = _folder(path)
            if folder == HEADS:
                useless = int(Path(path).stem) < newest
            else:
                useless = folder not in kept and (folder in gone or self._system.modified(path) < then)
            if useless:
                with suppress(FileNotFoundError):
                    self._system.rm_file(path)

    def _files(self) -> list[str]:
        """All files there."""
        try:
            return [str(path) for path in self._system.find(self._root)]
        except FileNotFoundError:  # nor is there a bucket: `send` will say so
            return []

    def _at(self, *names: str) -> str:
        return "/".join((self._root.rstrip("/"), *names))


def _name(copy: str) -> str:
    return copy.partition(".")[0]


def _folder(path: str) -> str:
    return path.split("/")[-2]
