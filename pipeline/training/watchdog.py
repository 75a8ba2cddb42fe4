"""Does training still move? A thread in each worker that ends its process if not, so that all start again.

No update for `hang_after_s`, for `UPDATES` times what an update takes and for `LONGEST` times the longest
pause so far (a save, a pass through the compiler) is a hang. Before the second update nothing is known, and
the launcher's own patience holds. Where one worker hangs, the others hang in the next collective, and any
that notices ends: torchrun then ends the rest, also a stopped one, and starts all from the last checkpoint.
A thread suffices, as collectives and devices are waited for without the interpreter's lock; a process that
never gives that back is found by the launcher, from the age of the heartbeat.
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
    """Counts the time without an update; `told` gets the sentence of a hang before the process ends."""

    def __init__(
        self,
        *,
        hang_after_s: float,
        told: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hang_after_s, self._told, self._clock = hang_after_s, told, clock
        self._poll_s = min(POLL_S, hang_after_s / 4)
        self._lasted: deque[float] = deque(maxlen=64)
        self._longest_s = self._quiet_s = 0.0
        self._last_beat = self._last_look = clock()
        self._num_beats = self._num_seen = 0
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """The last update was taken."""
        self._ended.set()

    def beat(self) -> None:
        """An update begins, so the one before is done."""
        now = self._clock()
        if self._num_beats:
            self._lasted.append(now - self._last_beat)
        self._longest_s = max(self._longest_s, now - self._last_beat if self._num_beats > 1 else 0.0)
        self._last_beat = now
        self._num_beats += 1

    def hung(self) -> str:
        """The sentence of a hang, or ""; to be asked every `POLL_S`.

        Counted in looks: a process that was itself stopped for a while finds that it has not looked.
        """
        now = self._clock()
        passed_s, self._last_look = min(now - self._last_look, 2 * self._poll_s), now
        if self._num_beats != self._num_seen:
            self._num_seen, self._quiet_s = self._num_beats, 0.0
            return ""
        self._quiet_s += passed_s
        if self._num_beats < 2:
            return ""
        update_s = median(tuple(self._lasted))
        if self._quiet_s <= max(self._hang_after_s, UPDATES * update_s, LONGEST * self._longest_s):
            return ""
        return (
            f"no update for {self._quiet_s:.0f} s, where one takes {update_s:.3g} s; the stacks are in "
            f"log.txt; raise train.hang_after_s ({self._hang_after_s:g}) if a pause may last that long"
        )

    def _watch(self) -> None:
        while not self._ended.wait(self._poll_s):
            sentence = self.hung()
            if sentence:
                self._told(sentence)
                faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
                os._exit(1)
