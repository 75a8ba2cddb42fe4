"""Implements the command `search` (daybreak/cli.py)."""

import time

from daybreak.contract import records
from daybreak.contract.errors import NothingToDo
from daybreak.contract.record_types import Night
from daybreak.contract.units import HOUR_S
from daybreak.extensions.search import proposal
from daybreak.extensions.search.leftover import locked, run_search
from daybreak.storage import ledger
from daybreak.storage.home import Home


def search(home: Home, *, night: str = "", hours: float = 0.0, forget: bool = False) -> int:
    """Try the settings of search.space on the samples of a night, and train the best as a changed recipe.

    Args:
        home: whose nights these are
        night: whose samples; the newest if left out
        hours: from now; until the night would have had to be decided if left out
        forget: rather have nights train params.yaml again, and forget what was tried
    """
    if forget:
        with locked(home):
            proposal.forget(home)
        return 0
    nights = (each for each in ledger.history(home) if not each.rollback)  # one names an old night
    entry = next((each for each in nights if each.night.id == night or not night), None)
    if entry is None or not records.path_of(Night, home.nights / entry.night.id / records.RUN).exists():
        raise NothingToDo("there is no night whose samples are here; run one: daybreak night")
    until = time.time() + hours * HOUR_S if hours else entry.night.decide_until.timestamp()
    if time.time() >= until:
        raise NothingToDo(f"the time of night {entry.night.id} is over; give more by --hours")
    return run_search(home, entry.night, until=until)
