"""Reads how many bytes this process may still allocate, under the limits of its cgroups and of the machine.

A cgroup leaves its limit less the memory of all its processes, without page cache, which the kernel frees
first. In version 2 the limit is the lower of `memory.max`, beyond which the kernel kills, and `memory.high`,
beyond which it slows processes down. Files stay open, since they are read many times a second.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from daybreak.machines import this_machine

MEMINFO = Path("/proc/meminfo")
READ_BYTES = 8192
NO_LIMIT = 1 << 62  # version 1 reports about this for a group without a limit


@dataclass(frozen=True, kw_only=True)
class Left:
    """Bytes that may still be taken."""

    free_bytes: int  # below 0: more is used than may be
    limited: bool  # by a cgroup; else by the machine alone


@dataclass(frozen=True, kw_only=True)
class _Group:
    """The open files of a cgroup."""

    limits: Sequence[int]
    usage: int
    stat: int
    file_pages: Sequence[str]  # names in `stat`

    def free_bytes(self) -> int | None:
        """Returns the bytes that the group leaves; None where it has no limit."""
        limits = [int(text) for file in self.limits if (text := _text(file).strip()).isdigit()]
        if not limits or min(limits) >= NO_LIMIT:
            return None
        stat = dict(line.split() for line in _text(self.stat).splitlines())
        return min(limits) - int(_text(self.usage)) + sum(int(stat.get(name, 0)) for name in self.file_pages)


class FreeMemory:
    """The memory of this process's cgroups, as they were when it was made, and of the machine."""

    def __init__(self) -> None:
        self._groups = list(_groups())
        self._machine = _opened(MEMINFO) if MEMINFO.exists() else None

    def read(self) -> Left | None:
        """Returns what is left now; None where no kernel says so."""
        of_groups = []
        for group in self._groups:
            with suppress(OSError, ValueError):  # the group has just been removed
                if (free := group.free_bytes()) is not None:
                    of_groups.append(free)
        free_bytes = [*of_groups, *self._available()]
        return Left(free_bytes=min(free_bytes), limited=bool(of_groups)) if free_bytes else None

    def _available(self) -> Iterator[int]:
        """Yields the bytes that the kernel estimates to be available on the machine."""
        for line in _text(self._machine).splitlines() if self._machine is not None else ():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024


def _groups() -> Iterator[_Group]:
    """Yields this process's cgroup and its parents, in versions 2 and 1."""
    for folder, version in this_machine.own_cgroups("memory"):
        with suppress(OSError):
            yield _group_1(folder) if version == 1 else _group_2(folder)


def _group_1(folder: Path) -> _Group:
    return _Group(
        limits=(_opened(folder / "memory.limit_in_bytes"),),
        usage=_opened(folder / "memory.usage_in_bytes"),
        stat=_opened(folder / "memory.stat"),
        file_pages=("total_inactive_file", "total_active_file"),
    )


def _group_2(folder: Path) -> _Group:
    return _Group(
        limits=(_opened(folder / "memory.max"), _opened(folder / "memory.high")),
        usage=_opened(folder / "memory.current"),
        stat=_opened(folder / "memory.stat"),
        file_pages=("inactive_file", "active_file"),
    )


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _text(file: int) -> str:
    return os.pread(file, READ_BYTES, 0).decode()
