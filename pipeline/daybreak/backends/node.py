"""Runs the module of a job on one machine, until the module ends or time is up.

The backend starts this on each machine. On SIGTERM, or when time is up, the module has half a minute to save,
and the exit status is then 143, whatever the module itself returns.

Where a job may go on with fewer machines, the machines elect the one that holds the rendezvous
(host_election.py). If that is lost, the others elect anew and go on from the last checkpoint.

At the end each torchrun waits 300 s for those of the other machines, in vain if one is lost or its worker
crashed after the last update, and no option of torchrun changes that. A machine on which the result is whole
and no worker runs therefore waits for `EXIT_S` only, and has then succeeded.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from daybreak.backends import torchrun
from daybreak.backends.host_election import HostElection
from daybreak.backends.torchrun import NodeRank
from daybreak.contract.clock import Clock

STOP_S = 30.0  # from the request to end to the kill
REJOIN_S = 2.0  # between two tries to join again
EXIT_S = 20.0  # from the end of this machine's workers to its own, if others do not end
SIGNALS = 128  # exit statuses from it on are signals
TERMINATED = SIGNALS + signal.SIGTERM


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a machine of the job runs."""

    module: str
    arguments: Sequence[str]
    num_workers: int
    until: float  # seconds since 1970
    has_result: Callable[[], bool] = lambda: False  # whether this machine sees the whole result of the job


def run(
    task: Task,
    *,
    place: NodeRank | None = None,
    election: HostElection | None = None,
    send_result: Callable[[], None] = lambda: None,
) -> int:
    """Runs the module until it ends or time is up; returns the exit status as a shell reports it.

    Args:
        task: what this machine runs.
        place: of this machine among the job's machines, None for a single machine.
        election: of the host, where the job may go on with fewer machines.
        send_result: what is to be done before the job counts as ended.
    """
    runs = _Runs(
        {**torchrun.threads(task.num_workers), **os.environ},
        until=task.until,
        has_result=task.has_result if place and task.num_workers else lambda: False,
    )
    runs.listen()
    if place is None or election is None:
        status = runs.once(_words(task, place))
        send_result()
        return status
    status = _run_among_others(task, runs, place=place, election=election)
    with election.watched():
        send_result()
    election.end(status)
    return status


def _run_among_others(task: Task, runs: "_Runs", *, place: NodeRank, election: HostElection) -> int:
    """Runs the module until the job ends, and again under each newly elected host."""
    status = TERMINATED
    while term := election.seek(stopped=runs.is_over):
        if term.status is not None:
            return term.status
        rank = 0 if election.is_host else 1  # by which torchrun knows who holds the store
        with election.watched(stopped=runs.is_over) as is_over:
            words = _words(task, replace(place, rank=rank, master=term.address))
            status = runs.once(words, is_over=is_over)
        if runs.stopped or (status >= SIGNALS and not is_over()):
            election.resign()
            return status
        if status == 0:
            if election.succeed(stopped=runs.is_over):
                return 0
        elif election.is_host and not is_over():
            return status
        time.sleep(REJOIN_S)
    election.resign()
    return TERMINATED


def _words(task: Task, place: NodeRank | None) -> list[str]:
    return torchrun.command(
        task.module,
        task.arguments,
        num_workers=task.num_workers,
        place=place,
        meeting=os.environ.get("DAYBREAK_ATTEMPT", "job"),
    )


class _Runs:
    """Starts a command, once or more often, and passes signals on to it."""

    def __init__(
        self, environment: Mapping[str, str], *, until: float, has_result: Callable[[], bool]
    ) -> None:
        """Keeps when to end, and what says whether the result of a job on several machines is whole here."""
        self._environment, self._until, self._has_result = environment, until, has_result
        self._clock = Clock()  # that nobody sets meanwhile
        self._clock.follow(Path.cwd())  # of the night, where the node is on the host that opened it
        self._process: subprocess.Popen[bytes] | None = None
        self.stopped: list[float] = []  # when it was asked to end

    def listen(self) -> None:
        """Takes signals from now on: before the start, else a child could be left behind."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)

    def is_over(self) -> bool:
        """Returns whether nothing is to be started any more."""
        return bool(self.stopped) or self._clock.now() >= self._until

    def once(self, words: Sequence[str], *, is_over: Callable[[], bool] = lambda: False) -> int:
        """Runs a command until it ends, time is up, or it is over; returns the exit status.

        That is 0 where torchrun had to be ended, or failed, after the result was whole.
        """
        process = self._process = subprocess.Popen(words, env=self._environment)
        waits_in_vain = _waits_in_vain(process, self._has_result)
        if self.stopped:
            process.terminate()
        over: list[float] = []  # when it was seen to be over
        while True:
            if not (self.stopped or over) and is_over():
                over.append(self._clock.now())
                process.terminate()
            asked = self.stopped or over
            end = asked[0] + STOP_S if asked else self._until
            try:
                status = process.wait(min(1.0, max(0.01, end - self._clock.now())))
                break
            except subprocess.TimeoutExpired:
                if next(waits_in_vain):
                    process.kill()  # a request to end does not reach it while it waits for others
                if self._clock.now() < end:
                    continue
                if asked:
                    process.kill()
                else:
                    self._pass_on(signal.SIGTERM, None)
        if status and not (self.stopped or over) and self._has_result():
            return 0
        if self.stopped and status:
            return TERMINATED
        return status if status >= 0 else SIGNALS - status

    def _pass_on(self, number: int, _: object) -> None:
        self.stopped.append(self._clock.now())
        if self._process:
            self._process.send_signal(number)


def _waits_in_vain(torchrun: "subprocess.Popen[bytes]", has_result: Callable[[], bool]) -> Iterator[bool]:
    """Yields, at each look, whether torchrun has waited long enough for the other machines."""
    since = time.monotonic()
    while True:
        if _has_children(torchrun.pid) or not has_result():
            since = time.monotonic()
        yield time.monotonic() - since > EXIT_S


def _has_children(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).children())
    except psutil.NoSuchProcess:
        return False
