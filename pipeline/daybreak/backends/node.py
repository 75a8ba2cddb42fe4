"""Runs the module of a job on one machine, until the module ends or time is up.

The backend starts this on each machine. On SIGTERM, or when time is up, the module has half a minute to save,
and the exit status is then 143, whatever the module itself returns.

Where a job may go on with fewer machines, the first machine holds the rendezvous, and the job ends with it.
Another machine that ends otherwise has lost the first, and joins again when the first is back.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from daybreak.backends import torchrun
from daybreak.backends.torchrun import NodeRank
from daybreak.contract.clock import Clock

STOP_S = 30.0  # from the request to end to the kill
REJOIN_S = 2.0  # between two tries to join again


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a machine of the job runs."""

    module: str
    arguments: Sequence[str]
    num_workers: int
    until: float  # seconds since 1970


def run(task: Task, *, place: NodeRank | None = None) -> int:
    """Runs the module until it ends or time is up; returns the exit status as a shell reports it.

    `place` is the place of this machine among the job's machines, None for a single machine.
    """
    words = torchrun.command(
        task.module,
        task.arguments,
        num_workers=task.num_workers,
        place=place,
        meeting=os.environ.get("DAYBREAK_ATTEMPT", "job"),
    )
    modules = _Runs(words, {**torchrun.threads(task.num_workers), **os.environ}, until=task.until)
    modules.listen()
    status = modules.once()
    while place and place.is_elastic and place.rank and 0 < status < 128 and not modules.stopped:
        time.sleep(REJOIN_S)
        status = modules.once()
    return status


class _Runs:
    """Starts a command, once or more often, and passes signals on to it."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], *, until: float) -> None:
        self._words, self._environment, self._until = words, environment, until
        self._clock = Clock()  # that nobody sets meanwhile
        self._clock.follow(Path.cwd())  # of the night, where the node is on the host that opened it
        self._process: subprocess.Popen[bytes] | None = None
        self.stopped: list[float] = []  # when it was asked to end

    def listen(self) -> None:
        """Takes signals from now on: before the start, else a child could be left behind."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)

    def once(self) -> int:
        """Runs the command until it ends or time is up; returns the exit status."""
        process = self._process = subprocess.Popen(self._words, env=self._environment)
        if self.stopped:
            process.terminate()
        while True:
            end = self.stopped[0] + STOP_S if self.stopped else self._until
            try:
                status = process.wait(min(1.0, max(0.01, end - self._clock.now())))
                break
            except subprocess.TimeoutExpired:
                if self._clock.now() < end:
                    continue
                if self.stopped:
                    process.kill()
                else:
                    self._pass_on(signal.SIGTERM, None)
        if self.stopped and status:
            return 128 + signal.SIGTERM
        return status if status >= 0 else 128 - status

    def _pass_on(self, number: int, _: object) -> None:
        self.stopped.append(self._clock.now())
        if self._process:
            self._process.send_signal(number)
