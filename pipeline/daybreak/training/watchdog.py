"""Detects hangs: a thread in each worker that ends its process when training hangs, so that all restart.

A hang is no update for longer than `hang_after_s`, `UPDATES` times the time of an update, and `LONGEST` times
the longest pause so far (a save, a run of the compiler). Before the second update there is nothing to compare
with, and the launcher's own limit applies. Where one worker hangs, the others hang in the next collective,
and the first that detects it ends: torchrun then ends the rest, even a stopped one, and restarts all from the
last checkpoint. A thread suffices, as waiting for collectives and devices releases the interpreter's lock;
where a process never releases it, the launcher detects the hang by the age of the heartbeat.
"""

import faulthandler
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from statistics import median

UPDATES = 10
LONGEST = 3
POLL_S = 1.0


class Watchdog:
    """Counts the time without an update; `on_hang` gets a description of the hang before the process ends."""

    def __init__(
        self,
        *,
        hang_after_s: float,
        on_hang: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hang_after_s, self._on_hang, self._clock = hang_after_s, on_hang, clock
        self._poll_s = min(POLL_S, hang_after_s / 4)
        self._lasted: deque[float] = deque(maxlen=64)
        self._longest_s = self._quiet_s = 0.0
        self._last_beat = self._last_look = clock()
        self._num_beats = self._num_seen = 0
        self._is_alive = False  # since the last look
        self._ended = threading.Event()

    def start(self) -> None:
        """Starts to watch."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stops watching, after the last update."""
        self._ended.set()

    def beat(self) -> None:
        """Records that an update begins, so the one before is done."""
        now = self._clock()
        if self._num_beats:
            self._lasted.append(now - self._last_beat)
        self._longest_s = max(self._longest_s, now - self._last_beat if self._num_beats > 1 else 0.0)
        self._last_beat = now
        self._num_beats += 1

    def alive(self) -> None:
        """Records that what is no update, such as a validation, goes on: no time to compare updates with."""
        self._last_beat, self._is_alive = self._clock(), True

    def hung(self) -> str:
        """Returns a description of the hang, or "" if there is none; call it every `POLL_S`.

        A call counts two intervals at most, so the time that the process itself was stopped does not count.
        """
        now = self._clock()
        passed_s, self._last_look = min(now - self._last_look, 2 * self._poll_s), now
        if self._num_beats != self._num_seen or self._is_alive:
            self._num_seen, self._quiet_s, self._is_alive = self._num_beats, 0.0, False
            return ""
        self._quiet_s += passed_s
        if self._num_beats < 2:
            return ""
        update_s = median(tuple(self._lasted))
        if self._quiet_s <= max(self._hang_after_s, UPDATES * update_s, LONGEST * self._longest_s):
            return ""
        return (
            f"no update for {self._quiet_s:.0f} s, where one takes {update_s:.3g} s; read the stacks in the "
            f"job's log, or raise train.hang_after_s ({self._hang_after_s:g}) if a pause may last that long"
        )

    def _watch(self) -> None:
        while not self._ended.wait(self._poll_s):
            message = self.hung()
            if message:
                self._on_hang(message)
                faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
                os._exit(1)
