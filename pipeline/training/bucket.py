"""What outlives the machine? A copy of each checkpoint in a folder anywhere that fsspec reaches.

Workers write to the disk of their machine and copy from there: a worker that is started again on it finds the
checkpoint on its disk, one on another machine finds the copy. In the folder nothing is locked or renamed.
Parts go up under the checkpoint's own name, its manifest last, and what does not match its manifest is not
believed. The folder may be a path too, on a disk that several machines share.
"""

import logging
import os
import shutil
from pathlib import Path

from fsspec.core import url_to_fs

from pipeline.training import checkpoint
from pipeline.training.checkpoint import KEEP, MANIFEST

log = logging.getLogger(__name__)


class Bucket:
    """The folder at an URL: gs://bucket/folder, s3://..., memory://..., or a path."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._system, self._root = url_to_fs(url)
        self._sent = ""  # name of the newest, by us: of what others sent we only know what it claims to be

    def send(self, path: Path) -> bool:
        """Copy a checkpoint there, remove all but the newest two; False, and a warning, if it is refused."""
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
        for name, files in sorted(self._files().items(), reverse=True):
            if any(path.name >= name for path in folder.glob("seen=*") if not checkpoint.fault(path)):
                return
            fresh = folder / f".{name}.{os.getpid()}"
            wrong = "it has no manifest" if MANIFEST not in files else self._get(name, files, fresh)
            if wrong:
                log.warning("checkpoint %s is skipped: %s", self._at(name), wrong)
                shutil.rmtree(fresh, ignore_errors=True)
                continue
            checkpoint.take_place(fresh, folder / name)
            return

    def _get(self, name: str, files: list[str], folder: Path) -> str:
        """Copy a checkpoint from there; what is wrong with it."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in files:
            self._system.get_file(self._at(name, file), str(folder / file))
        return checkpoint.fault(folder)

    def _send(self, path: Path) -> None:
        if path.name == self._sent:
            return
        files = sorted((file.name for file in path.iterdir()), key=lambda name: (name == MANIFEST, name))
        there = self._files()
        self._remove(path.name, there.pop(path.name, []))
        self._system.makedirs(self._at(path.name), exist_ok=True)
        for file in files:
            self._system.put_file(str(path / file), self._at(path.name, file))
        self._sent = path.name
        # A run only goes forward: what is further on was not believed when it began.
        before = sorted(name for name in there if name < path.name and MANIFEST in there[name])
        for name in there.keys() - {path.name, *before[len(before) - KEEP + 1 :]}:
            self._remove(name, there[name])

    def _files(self) -> dict[str, list[str]]:
        """The names of all files, by checkpoint."""
        self._system.invalidate_cache()
        found: dict[str, list[str]] = {}
        try:
            paths = self._system.find(self._root)
        except FileNotFoundError:  # nor is there a bucket: `send` will say so
            return found
        for path in paths:
            *_, name, file = path.split("/")
            if name.startswith("seen="):
                found.setdefault(name, []).append(file)
        return found

    def _remove(self, name: str, files: list[str]) -> None:
        """The manifest first, so that nobody believes in the rest."""
        for file in sorted(files, key=lambda name: name != MANIFEST):
            self._system.rm_file(self._at(name, file))

    def _at(self, *names: str) -> str:
        return "/".join((self._root.rstrip("/"), *names))
