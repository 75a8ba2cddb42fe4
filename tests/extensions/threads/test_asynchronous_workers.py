"""Workers as processes: one that is killed ends all of them, and nothing waits for it for ever."""

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from daybreak.contract.errors import Interrupted
from daybreak.contract.workload import TrainingProgress
from daybreak.extensions.threads.asynchronous_workers import BatchPart, Done, Gradient, Processes

pytestmark = pytest.mark.slow


def part(number: int) -> BatchPart:
    return BatchPart(
        number=number,
        indices=np.arange(1),
        progress=TrainingProgress(update=number),
        options=(),
        micro_batch_size=1,
        measures_noise=False,
    )


class Killed:
    """Trainee whose process is killed at a part with an odd number: in `gradient` or `apply`."""

    def __init__(self, where: str) -> None:
        self.where = where

    def gradient(self, part: BatchPart) -> Gradient:
        self._meet("gradient", part)
        return Gradient(loss=1.0, tensors=(), buffers=(), noise=None, num_passes=1, takes_s=0.0, short=False)

    def apply(self, gradient: Gradient, part: BatchPart) -> Done:
        self._meet("apply", part)
        return Done(
            loss=1.0, noise=None, num_passes=1, gradient_s=0.0, apply_s=0.0, is_update=True, short=False
        )

    def _meet(self, where: str, part: BatchPart) -> None:
        if where == self.where and part.number % 2:
            os.kill(os.getpid(), signal.SIGKILL)


def waited(processes: Processes) -> None:
    for _ in range(100):
        processes.wait(0.5)


def within(seconds: float, call: Any) -> None:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive()


@pytest.mark.parametrize("where", ["gradient", "apply"])
def test_the_death_of_one_ends_all_and_is_no_final_error(where):
    processes = Processes(Killed(where))
    for worker in range(3):
        processes.send(worker, part(worker))
    pids = processes.pids()
    with pytest.raises(Interrupted, match="ended with -9; the job goes on from its last checkpoint"):
        waited(processes)
    assert processes.pids() == []
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    within(10, processes.close)


def test_a_lock_that_a_dead_worker_holds_is_not_waited_for():
    processes = Processes(Killed("apply"))
    processes.send(0, part(0))
    processes.send(1, part(1))
    os.waitid(os.P_PID, processes.pids()[1], os.WEXITED | os.WNOWAIT)
    with pytest.raises(Interrupted):
        processes.stop(0)
    within(10, processes.close)


def test_a_trainer_that_holds_sigterm_back_ends_with_all_its_workers():
    program = """
import signal
from tests.extensions.threads.test_asynchronous_workers import Killed, part, waited
from daybreak.extensions.threads.asynchronous_workers import Processes
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
processes = Processes(Killed("nowhere"))
processes.send(0, part(0))
print(*processes.pids(), flush=True)
raise SystemExit(3)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 3, ended.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(ended.stdout), 0)
