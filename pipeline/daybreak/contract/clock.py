"""Tells the time of a night, which runs evenly even if the clock of the machine is set meanwhile.

A night's deadlines are hours from its opening. `open` records when the machine was booted, by its clock of
that moment; the time of the night is that plus what has passed since the boot, also while a laptop slept. So
all processes of a night on this machine agree, and a clock that is set in the middle of it neither ends
training nor makes its heartbeats look old. Another machine, or the same one after a reboot, reads its clock
once in a process and goes on from there. Code outside of the folder of a night, such as `reap` and `watch`,
asks for the time of that night (`utc_of`).
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from daybreak.contract import records
from daybreak.contract.records import Night

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def since_boot() -> float:
    """Returns the seconds since the machine was booted, time asleep included."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def awake() -> float:
    """Returns seconds that pass only while the machine is awake, from some moment on; for silences."""
    return time.monotonic()


@cache
def boot() -> str:
    """Returns the name of this boot of the machine; "" where the platform gives it none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


@dataclass
class Clock:
    """The clock of a process; tests give it another wall clock and another count of seconds."""

    wall: Callable[[], float] = time.time
    passed: Callable[[], float] = since_boot
    _booted_at: dict[str, float] = field(default_factory=dict)  # by the folder of the night

    def now(self) -> float:
        """Returns the time of the night in whose folder this process is, in seconds since 1970."""
        return self.booted_at() + self.passed()

    def now_by(self, boot_id: str, booted_at: float) -> float:
        """Returns the time by a clock that was read on that boot; by today's on another boot or machine."""
        return booted_at + self.passed() if boot_id and boot_id == boot() else self.wall()

    def booted_at(self) -> float:
        """Returns when the machine was booted, by its clock when the night was opened or first asked for."""
        folder = os.getcwd()  # noqa: PTH109  asked three times an update, for which a Path is too slow
        if folder not in self._booted_at:
            self._booted_at[folder] = _recorded(Path(folder)) or self.wall() - self.passed()
        return self._booted_at[folder]

    def read_anew(self) -> float:
        """Reads the wall clock for a night that opens here, and returns when the machine was booted by it."""
        self._booted_at[os.getcwd()] = self.wall() - self.passed()  # noqa: PTH109
        return self.booted_at()


def _recorded(folder: Path) -> float:
    """Returns what the night in a folder has recorded on this boot; 0 where it has recorded nothing."""
    try:
        night = json.loads((folder / records.RUN / "night.json").read_text())
    except (OSError, ValueError):
        return 0.0
    same = boot() and isinstance(night, dict) and night.get("boot") == boot()
    return float(night["booted_at"]) if same else 0.0


_CLOCK = Clock()


def now() -> float:
    """Returns the time of the night in whose folder this process is, in seconds since 1970."""
    return _CLOCK.now()


def utc() -> datetime:
    """Returns the time of the night in whose folder this process is."""
    return datetime.fromtimestamp(now(), UTC)


def utc_of(night: Night) -> datetime:
    """Returns the time of a night, wherever this process is."""
    return datetime.fromtimestamp(now_by(night.boot, night.booted_at), UTC)


def now_by(boot_id: str, booted_at: float) -> float:
    """Returns the time by a clock that was read on that boot of this machine, or else by its clock of now."""
    return _CLOCK.now_by(boot_id, booted_at)


def booted_at() -> float:
    """Returns when this machine was booted, by the time of the night, in seconds since 1970."""
    return _CLOCK.booted_at()


def read_anew() -> float:
    """Reads the wall clock for a night that opens here, and returns when the machine was booted by it."""
    return _CLOCK.read_anew()
