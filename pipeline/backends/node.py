"""Runs the module of a job on one of its machines, until it has ended or its time is over.

Whatever rents the machine starts this on each of them. On SIGTERM, or at its time, the module has half a
minute to save, and the exit status is then 143, whatever the module itself returns.
"""

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.backends import torchrun
from pipeline.backends.torchrun import Place
from pipeline.contract.clock import Clock

STOP_S = 30.0  # from the request to end to the kill


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a machine of the job runs."""

    module: str
    arguments: Sequence[str]
    num_workers: int
    until: float  # seconds since 1970


def run(task: Task, *, place: Place | None = None) -> int:
    """Runs the module to its end, or until its time; returns its exit status as a shell reports it.

    `place` is that of this machine among those of the job, None where there is no other.
    """
    words = torchrun.command(
        task.module,
        task.arguments,
        num_workers=task.num_workers,
        place=place,
        meeting=os.environ.get("PIPELINE_ATTEMPT", "job"),
    )
    clock = Clock()  # that nobody sets meanwhile
    stopped: list[float] = []  # when it was asked to end
    started: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: object) -> None:
        stopped.append(clock.now())
        for process in started:
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):  # before the start: else a child could be left behind
        signal.signal(number, pass_on)
    process = subprocess.Popen(words, env={**torchrun.threads(task.num_workers), **os.environ})
    started.append(process)
    if stopped:
        process.terminate()
    while True:
        end = stopped[0] + STOP_S if stopped else task.until
        try:
            status = process.wait(min(1.0, max(0.01, end - clock.now())))
            if stopped and status:
                return 128 + signal.SIGTERM
            return status if status >= 0 else 128 - status
        except subprocess.TimeoutExpired:
            if clock.now() < end:
                continue
            if stopped:
                process.kill()
            else:
                pass_on(signal.SIGTERM, None)
