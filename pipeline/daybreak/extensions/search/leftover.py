"""Searches in a process of its own, one at a time: when `daybreak night` ends, and by `daybreak search`."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from daybreak.contract import code_path, records
from daybreak.contract.errors import NothingToDo
from daybreak.contract.record_types import Night
from daybreak.extensions.search.settings import SearchParams
from daybreak.storage.home import Home


def search_leftover(home: Home) -> None:
    """Tries settings for the rest of the time of the newest night; a failure is said, and changes nothing."""
    if home.params_of(home.tonight).section(SearchParams).space:
        night = records.read(Night, home.records)
        with suppress(NothingToDo):  # where another search goes on
            run_search(home, night, until=night.decide_until.timestamp())  # which ends at once after that


def run_search(home: Home, night: Night, *, until: float) -> int:
    """Runs the search by the code of the night, which this process may not have; returns its exit status.

    Raises NothingToDo while another process searches in this home.
    """
    folder = home.nights / night.id
    module = "daybreak.extensions.search.searcher"
    with locked(home) as lock:
        done = subprocess.run(
            [sys.executable, "-P", "-m", module, str(home.folder), str(until)],
            cwd=folder,
            env={**os.environ, **code_path.environment(folder)},
            pass_fds=(lock,),  # held on by it where this process is killed
            check=False,
        )
    return done.returncode


@contextmanager
def locked(home: Home) -> Iterator[int]:
    """Yields the file that is locked while a search goes on; raises NothingToDo where one does already."""
    home.var.mkdir(exist_ok=True)
    with (home.var / "search.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NothingToDo("another search goes on in this home; wait for its end") from None
        yield lock.fileno()
