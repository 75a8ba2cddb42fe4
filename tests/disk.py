"""A folder on a disk that loses what was not synced, and all that may be left after a power failure.

Of a file only what was synced is left: what it held then, nothing where it never was. Of a folder any list of
its entries since it was synced last may be left, whatever became of other folders: the most that POSIX lets a
file system lose. The power may fail before and after each call that changes a folder or syncs.
"""

import os
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

Tree = frozenset[tuple[str, Any]]  # files with their bytes and folders with their trees, by name
CHANGES = ("mkdir", "rename", "replace", "rmdir", "unlink")


class Disk:
    """The disk of the folder `root`, from now on until the test ends; what is there already is synced."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._numbers: dict[int, int] = {}  # of inodes that live, since the kernel uses inodes again
        self._count = 0
        self._files: dict[int, bytes] = {}  # as synced
        self._folders: dict[int, list[dict[str, int]]] = {}  # entries as synced, and every change since
        self._left: set[Tree] = set()
        self._changed = True  # since what may be left was last added to that
        for path in (root, *root.rglob("*")):
            self._sync(path)
        for name in CHANGES:
            patch.setattr(os, name, self._watched(getattr(os, name)))
        patch.setattr(os, "fsync", self._watched(os.fsync, then=self._synced))

    def left_by(self, write: Callable[[], object]) -> set[Tree]:
        """Returns all that may be left where the power fails while something is written."""
        self._left, self._changed = set(), True
        write()
        return self._left

    def left(self) -> set[Tree]:
        """Returns all that may be left where the power fails now."""
        self._look()
        return set(self._trees(self._number(self._root)))

    def _watched(self, call: Callable[..., Any], then: Callable[..., None] = lambda *_: None) -> Any:
        def watched(*arguments: Any, **named: Any) -> Any:
            if self._is_elsewhere(arguments[0]):
                return call(*arguments, **named)
            self._fail()
            returned = call(*arguments, **named)
            then(*arguments)
            self._fail()
            return returned

        return watched

    def _is_elsewhere(self, path: int | str | Path) -> bool:
        if isinstance(path, int):
            return False
        return Path(path).is_absolute() and not Path(path).is_relative_to(self._root)

    def _fail(self) -> None:
        """Adds the files that a power failure now may leave, if files have changed since the last look."""
        self._look()
        if self._changed:
            self._left |= self.left()
            self._changed = False

    def _synced(self, handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        if path.is_relative_to(self._root):
            self._sync(path)

    def _sync(self, path: Path) -> None:
        self._look()
        self._changed = True
        number = self._number(path)
        if path.is_dir():
            self._folders[number] = self._folders[number][-1:]
        else:
            self._files[number] = path.read_bytes()

    def _look(self) -> None:
        """Notes what has changed in any folder."""
        there = [self._root, *self._root.rglob("*")]
        live = {path.lstat().st_ino for path in there}
        self._numbers = {inode: number for inode, number in self._numbers.items() if inode in live}
        for folder in (path for path in there if path.is_dir()):
            changes = self._folders.setdefault(self._number(folder), [{}])
            now = {path.name: self._number(path) for path in folder.iterdir()}
            if now != changes[-1]:
                changes.append(now)
                self._changed = True

    def _number(self, path: Path) -> int:
        inode = path.lstat().st_ino
        if inode not in self._numbers:
            self._count += 1
            self._numbers[inode] = self._count
        return self._numbers[inode]

    def _trees(self, folder: int) -> Iterator[Tree]:
        for entries in self._folders[folder]:
            children = [
                set(self._trees(child)) if child in self._folders else {self._files.get(child, b"")}
                for child in entries.values()
            ]
            for chosen in product(*children):
                yield frozenset(zip(entries, chosen, strict=True))


def restored(tree: Tree, folder: Path) -> Path:
    """Writes what was left into a folder, and returns it."""
    folder.mkdir(parents=True)
    for name, content in tree:
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            restored(content, folder / name)
    return folder
