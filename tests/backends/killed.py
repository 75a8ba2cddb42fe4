"""A process that is killed while it asks for a job, at any line of the backend."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from daybreak.backends.ownership import home_token
from daybreak.contract.backend import Backend, Job
from daybreak.contract.errors import JobError, NotYet
from daybreak.storage.home import Home

PLACES = tuple(
    str(Path(__file__).parents[2] / "pipeline" / "daybreak" / name)
    for name in (
        "backends/",
        "extensions/",
        "contract/records.py",
        "storage/journal.py",
        "storage/request_journal.py",
    )
)
KILLED = 9
Make = Callable[[], Backend]


@contextmanager
def killed_at(
    line: int,
    *,
    counted: list[int],
    within: Callable[[str], bool] = lambda path: path.startswith(PLACES),
    kill: Callable[[], object] = lambda: os._exit(KILLED),
) -> Iterator[None]:
    """The process dies, as by SIGKILL, when so many lines of the backend have been run; counts them."""

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not within(frame.f_code.co_filename):
            return None
        if event == "line":
            counted[0] += 1
            if counted[0] == line:
                kill()
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def in_a_process(act: Callable[[], object]) -> tuple[int, str]:
    """Exit status and result of the work in a fork; a kill leaves everything as it is."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reader)
            os.write(writer, str(act()).encode())
            status = 0
        except (JobError, NotYet) as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text


def submit(make: Make, job: Job, *, line: int = 0) -> tuple[int, str]:
    """Submit in a process of its own, which is killed at that line (0: is not); status, and handle."""

    def act() -> str:
        with killed_at(line, counted=[0]):
            return make().submit(job)

    return in_a_process(act)


def lines_of(make: Make, job: Job) -> int:
    """How many lines of the backend one undisturbed submission runs, the home having its token."""
    assert home_token(Home.here())

    def act() -> int:
        counted = [0]
        with killed_at(0, counted=counted):
            make().submit(job)
        return counted[0]

    return int(in_a_process(act)[1])
