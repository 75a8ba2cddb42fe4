"""SIGTERM is kept for the loop to ask for, and loaders do not hear it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from torch.utils.data import DataLoader

from daybreak.training.termination import Termination, sigterm_blocked


@pytest.fixture(autouse=True)
def leave_signals_as_they_were() -> Iterator[None]:
    handler, mask = signal.getsignal(signal.SIGTERM), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.signal(signal.SIGTERM, lambda *_: None)  # one that is pending goes there
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    signal.signal(signal.SIGTERM, handler)


def test_it_is_kept_until_it_is_asked_for():
    termination = Termination()
    termination.listen()
    assert not termination()
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(3):
        heard(termination)


def heard(termination: Termination) -> None:
    """Asked again and again, as training does: a thread that took the signal may not have told yet.

    Like the backward pass, it lets go of the GIL between: in 3.11 a signal that another thread took may
    wait for that.
    """
    until = time.monotonic() + 300
    while not termination():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_it_is_kept_when_another_thread_takes_it():
    """Threads that began earlier do not block the signal, so that the system may pick such a thread."""
    termination = Termination()
    termination.listen()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    assert signal.SIGTERM not in signal.sigpending()
    heard(termination)


@pytest.mark.slow
def test_processes_of_a_data_set_do_not_hear_it():
    with sigterm_blocked():
        loader = iter(DataLoader(range(64), batch_size=1, num_workers=1, prefetch_factor=1))
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    next(loader)
    loaders = [process for process in psutil.Process().children() if process.pid != child.pid]
    assert loaders
    for process in [*loaders, child]:
        os.kill(process.pid, signal.SIGTERM)
    assert len([batch for batch in loader]) == 63
    child.communicate(b"\n")
    assert child.returncode == 0


def test_outside_of_training_it_ends_the_process():
    code = (
        "import os, signal; from daybreak.training.termination import sigterm_blocked\n"
        "with sigterm_blocked(): os.kill(os.getpid(), signal.SIGTERM); print('went on', flush=True)\n"
        "print('not ended')"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "went on\n")
