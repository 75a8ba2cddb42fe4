"""Says what is wrong with a disk where something could not be written: full, a quota, read-only, another's.

It also syncs files to disk that a power failure must not take, and removes those that have grown old.

The writer may be Python, git, SQLite, Arrow, DuckDB or DVC, and each wraps the system's error in another one.
So the system's error is found among the causes, or else by the system's words in the text.
"""

import errno
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from daybreak.contract.formats import size

# Words of Linux, and of SQLite and git where they have others of their own that name the cause.
_WORDS = {
    errno.ENOSPC: ("No space left on device", "database or disk is full", "Out of diskspace"),
    errno.EDQUOT: ("Disk quota exceeded",),
    errno.EIO: ("Input/output error",),
    errno.EROFS: ("Read-only file system", "attempt to write a readonly database"),
}
# SQLite's texts where a quota is used up or no file can be made, but also for errors of our own.
_OF_THE_DISK, _OF_ANYTHING = "disk I/O error", "unable to open database file"
TRIED_BYTES = 1 << 16
_PATH = re.compile(r"'(/[^'\n]+)'|(?<![\w.:/])(/[^\s:;,'\"]+)")


def sync(folder: Path) -> None:
    """Brings all to the disk of a folder that was written to it, whichever process and library wrote it.

    Raises OSError where the disk does not take it.
    """
    import ctypes  # here, as what is wrong with a disk is also asked by a user who may read little

    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:  # macOS
        os.sync()
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        if syncfs(handle):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(handle)


def remove_old(folder: Path, *, after: timedelta) -> None:
    """Removes the files and folders in a folder that have not been changed for so long.

    What another process removes too, or a disk that is read-only keeps, is passed over.
    """
    before = time.time() - after.total_seconds()
    for path in folder.glob("*"):
        with suppress(OSError):
            if path.stat().st_mtime < before:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def fault(error: BaseException) -> str:
    """Returns what is wrong with the disk and how to go on, as a sentence; "" where that is not the cause."""
    for cause in _causes(error):
        number, path = _number(cause), _path(cause)
        if number is not None:
            return f"{_what(number, path)}, then {_go_on()}"
    return ""


def raise_fault(record: logging.LogRecord) -> bool:
    """Filters a library's log: raises an error that the library only logs, where the disk is to blame."""
    error = record.exc_info[1] if record.exc_info else sys.exc_info()[1]
    if error and fault(error):
        raise error
    return True


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def _number(error: BaseException) -> int | None:
    """Returns the number of the system's error, where it is one of the disk's."""
    if isinstance(error, OSError) and error.errno in _WORDS:
        return error.errno
    if isinstance(error, PermissionError) and not _may_change(_path(error)):
        return errno.EACCES
    if hasattr(error, "exit_status"):  # a sentence of ours, which may be about another machine
        return None
    return number_in(str(error), at=_path(error))


def number_in(text: str, *, at: Path) -> int | None:
    """Returns the number of the disk's error that a text names, or None.

    Where SQLite's text does not tell, the number comes from writing a small file at the same path.
    """
    if _OF_THE_DISK in text:
        return _tried(_nearest(at)) or errno.EIO
    if _OF_ANYTHING in text:
        return _tried(_nearest(at))
    return next((number for number, words in _WORDS.items() if any(word in text for word in words)), None)


def _tried(folder: Path) -> int | None:
    """Returns the number of the disk's error that a small file in a folder meets, or None."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(TRIED_BYTES))
    except OSError as error:
        return error.errno if error.errno in (*_WORDS, errno.EACCES) else None
    return None


def _may_change(path: Path) -> bool:
    """Whether this process may write to a path, or make it where it is missing."""
    return os.access(_nearest(path, of_any_kind=True), os.W_OK)


def _path(error: BaseException) -> Path:
    """Returns the path that an error is about, or the folder of this process."""
    named = (error.filename2 or error.filename) if isinstance(error, OSError) else None  # a copy's, if any
    if isinstance(error, PermissionError) and named is None:  # Arrow's, with a path that may be relative
        named = next(iter(re.findall(r"'([^'\n]+)'", str(error))), None)
    if isinstance(named, str | os.PathLike):
        return Path(named)
    paths = [Path(one or other) for one, other in _PATH.findall(str(error).partition("\n")[0])]
    return next((path for path in paths if _nearest(path) != Path("/")), Path.cwd())


def _nearest(path: Path, *, of_any_kind: bool = False) -> Path:
    """Returns the nearest folder, or thing of any kind, at or above a path that this process can see."""
    path = path.absolute()
    is_there = os.path.exists if of_any_kind else os.path.isdir  # a Path raises where it may not look
    return next((each for each in (path, *path.parents) if is_there(each)), Path("/"))


def _what(number: int, path: Path) -> str:
    folder = _nearest(path)
    if number == errno.EACCES:
        place, user = _nearest(path, of_any_kind=True), os.getuid()
        owner = place.stat().st_uid
        return f"user {user} may not write {place}, which is user {owner}'s; change its owner (chown)"
    disk = folder.resolve()
    disk = next((each for each in (disk, *disk.parents) if each.is_mount()), disk)
    if number == errno.EROFS:
        return f"the disk {disk} is read-only, or {path.absolute()} is; make it writable"
    if number == errno.EDQUOT:
        return f"the quota of user {os.getuid()} on the disk {disk} is used up; free some space, or raise it"
    state = os.statvfs(folder)
    free = size(state.f_bavail * state.f_frsize)
    if state.f_files and not state.f_favail:
        return f"the disk {disk} has no room for another file ({free} free); delete some files"
    if number == errno.EIO:
        return (
            f"the disk {disk} cannot be read or written ({free} free); free some space, or look at the disk"
        )
    return f"the disk {disk} is full ({free} free); free some space"


def _go_on() -> str:
    """Returns how to go on with what this process did."""
    here = Path.cwd()
    if here.parent.name == "nights":
        return f"go on with: daybreak night --night {here.name}"
    return "run this again"
