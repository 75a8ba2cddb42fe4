"""How much other processes slow this one, with processes that really burn the cores."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from daybreak.machines import contention, this_machine

BURN = "while True: pass"


def work(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


@pytest.fixture
def burners() -> Iterator[None]:
    """Two processes a core, each of which burns it."""
    command = [sys.executable, "-c", BURN]
    burning = [subprocess.Popen(command) for _ in range(2 * this_machine.num_cores())]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_processes_that_burn_the_cores_are_seen(burners: None) -> None:
    with contention.measured() as seen:
        work(1.0)
    assert seen.is_high
    assert 0.3 < seen.share <= 1


def test_time_that_this_process_sleeps_is_no_contention() -> None:
    with contention.measured() as seen:
        time.sleep(0.2)
    assert 0 <= seen.share <= 1


def clocks(*, wall_s: float, own_s: float, waited_s: float | None, all_s: float) -> contention._Clocks:
    return contention._Clocks(wall_s=wall_s, own_s=own_s, waited_s=waited_s, all_s=all_s)


@pytest.mark.parametrize(
    ("own_s", "waited_s", "all_s", "share"),
    [
        (20, 0, 20, 0),  # alone on two cores for ten seconds
        (20, 10, 20, 0),  # its own threads wait for each other
        (10, 10, 20, 0.5),  # half of the time others ran
        (10, 0, 20, 0),  # others ran on the other core, and were not in the way
        (10, None, 20, 0.5),  # where the kernel does not count, all others are in the way
    ],
)
def test_waits_count_as_far_as_others_used_the_cores(
    own_s: float, waited_s: float | None, all_s: float, share: float
) -> None:
    before = clocks(wall_s=0, own_s=0, waited_s=None if waited_s is None else 0, all_s=0)
    after = clocks(wall_s=10, own_s=own_s, waited_s=waited_s, all_s=all_s)
    assert contention._share(before, after, num_cores=2) == pytest.approx(share)
