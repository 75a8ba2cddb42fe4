"""Implements the command `search` (daybreak/cli.py)."""

import fcntl
import os
import subprocess
import sys
import time
from contextlib import suppress

from daybreak.contract import code_path, records
from daybreak.contract.errors import NothingToDo
from daybreak.contract.record_types import Night
from daybreak.contract.units import HOUR_S
from daybreak.extensions.search.settings import SearchParams
from daybreak.storage import ledger
from daybreak.storage.home import Home


def search(home: Home, *, night: str = "", hours: float = 0.0) -> int:
    """Try the settings of search.space on the samples of a night, and train the best as a changed recipe.

    Args:
        home: whose nights these are
        night: whose samples; the newest if left out
        hours: from now; until the night would have had to be decided if left out
    """
    entry = next((each for each in ledger.history(home) if each.night.id == night or not night), None)
    if entry is None or not records.path_of(Night, home.nights / entry.night.id / records.RUN).exists():
        raise NothingToDo("there is no night whose samples are here; run one: daybreak night")
    until = time.time() + hours * HOUR_S if hours else entry.night.decide_until.timestamp()
    if time.time() >= until:
        raise NothingToDo(f"the time of night {entry.night.id} is over; give more by --hours")
    return _search(home, entry.night, until=until)


def search_leftover(home: Home) -> None:
    """Tries settings for the rest of the time of the newest night; a failure is said, and changes nothing."""
    if home.params_of(home.tonight).section(SearchParams).space:
        night = records.read(Night, home.records)
        with suppress(NothingToDo):  # where another search goes on
            _search(home, night, until=night.decide_until.timestamp())  # which ends at once after that


def _search(home: Home, night: Night, *, until: float) -> int:
    """Runs the search by the code of the night, which this process may not have; returns its exit status.

    Raises NothingToDo while another process searches in this home.
    """
    folder = home.nights / night.id
    module = "daybreak.extensions.search.searcher"
    home.var.mkdir(exist_ok=True)
    with (home.var / "search.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NothingToDo("another search goes on in this home; wait for its end") from None
        done = subprocess.run(
            [sys.executable, "-P", "-m", module, str(home.folder), str(until)],
            cwd=folder,
            env={**os.environ, **code_path.environment(folder)},
            check=False,
        )
    return done.returncode
