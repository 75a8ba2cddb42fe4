"""Tells the time of a night, which runs evenly even if the clock of the machine is set meanwhile.

A night's deadlines are hours from its opening. `open` records when the machine was booted, by its clock of
that moment; the time of the night is that plus what has passed since the boot, also while a laptop slept. A
process that works on a night follows its clock from its entry point on. So all of them agree on this machine,
and a clock that is set in the middle of the night neither ends training nor makes its heartbeats look old.
Another machine, or the same one after a reboot, reads its clock once in a process and goes on from there.
Code that is about another night, such as `reap` and `watch`, asks for the time of that one (`utc_of`).
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from daybreak.contract import records
from daybreak.contract.record_types import Night

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
    _booted_at: float | None = None  # None: not read yet

    def now(self) -> float:
        """Returns the time of the night that this process follows, in seconds since 1970."""
        return self.booted_at() + self.passed()

    def now_by(self, boot_id: str, booted_at: float) -> float:
        """Returns the time by a clock that was read on that boot; by today's on another boot or machine."""
        return booted_at + self.passed() if boot_id and boot_id == boot() else self.wall()

    def booted_at(self) -> float:
        """Returns when the machine was booted, by its clock when the night was opened or first asked for."""
        return self.read_anew() if self._booted_at is None else self._booted_at

    def read_anew(self) -> float:
        """Reads the wall clock for a night that opens here, and returns when the machine was booted by it."""
        self._booted_at = self.wall() - self.passed()
        return self._booted_at

    def follow(self, folder: Path) -> None:
        """Goes on by the clock of the night in a folder; by today's where it recorded none on this boot."""
        self._booted_at = _recorded(folder) or self.wall() - self.passed()


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
    """Returns the time of the night that this process follows, in seconds since 1970."""
    return _CLOCK.now()


def utc() -> datetime:
    """Returns the time of the night that this process follows."""
    return datetime.fromtimestamp(now(), UTC)


def utc_of(night: Night) -> datetime:
    """Returns the time of any night."""
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


def follow(folder: Path) -> None:
    """Goes on by the clock of the night in a folder, as an entry point of a process has it do."""
    _CLOCK.follow(folder)
