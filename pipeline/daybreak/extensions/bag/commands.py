"""Implements the command `bag` (daybreak/cli.py)."""

import sys
from typing import TYPE_CHECKING

from daybreak.storage import ledger
from daybreak.storage.home import Home

if TYPE_CHECKING:
    from daybreak.extensions.bag.dispatcher import BagOutcome, Dispatcher
    from daybreak.extensions.bag.state import BagState


def bag(
    home: Home,
    program: str,
    *,
    runs: int,
    needed: int = 0,
    machines: int = 0,
    minutes: float = 0.0,
    save_s: float = 0.0,
    hours: float = 24.0,
    name: str = "",
    dry_run: bool = False,
    json_: bool = False,
) -> int:
    """Run a command once per seed on the planned machines, which may be taken away, until enough are done.

    Args:
        home: whose nights these are
        program: the command with its arguments, in which {seed} stands for 0 to RUNS - 1
            and {folder} for where it writes
        runs: how many seeds
        needed: how many runs have to be done; all of them if left out
        machines: how many at once; plan.max_machines if left out
        minutes: minutes that one run takes, to predict cost and time; nothing is predicted if left out
        save_s: seconds in which it saves its state to {folder}; 0: a lost run starts over
        hours: hours after which its machines end; the same command then continues the bag
        name: name of the folder var/bags/NAME; derived from the program if left out
        dry_run: only predict cost and time
        json_: print the prediction and the outcome as JSON
    """
    from daybreak.check import NUM_NIGHTS, planned
    from daybreak.extensions.bag import request, words
    from daybreak.extensions.spot.hazard import spot_lives

    loaded = home.params
    backend = loaded.backend.make(home)
    rental, machine = planned(home, loaded, backend)
    asked = request.BagRequest(
        command=program,
        num_runs=runs,
        num_needed=needed,
        num_machines=machines or loaded.plan.max_machines,
        run_s=60 * minutes,
        save_s=save_s,
        hours=hours,
        name=name,
    )
    dispatcher = request.dispatcher(
        home,
        asked,
        backend=backend,
        machine=machine,
        rental=rental,
        spot=loaded.plan.spot,
        lives=spot_lives(ledger.history(home, limit=NUM_NIGHTS)),
    )
    forecast = dispatcher.forecast()
    if not json_:
        print(words.prediction(dispatcher.bag, forecast, machine, num_machines=asked.num_machines))
    outcome = None if dry_run else _run_with_bar(dispatcher, num_needed=needed or runs)
    if json_:
        print(words.document(dispatcher.bag, forecast, machine, outcome))
    elif outcome:
        print(words.ending(outcome))
    return 0


def _run_with_bar(dispatcher: "Dispatcher", *, num_needed: int) -> "BagOutcome":
    from tqdm import tqdm

    with tqdm(total=num_needed, desc="bag", unit="run", disable=not sys.stderr.isatty()) as bar:

        def show(state: "BagState") -> None:
            bar.n = len(state.done)
            bar.set_postfix(machines=len(state.live), lost=len(state.lost))

        return dispatcher.run(show)
