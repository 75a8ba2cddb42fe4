"""Implements the commands `status` and `pages` (daybreak/cli.py)."""

import json
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from daybreak.contract import records
from daybreak.contract.errors import NothingToDo, PipelineError, ReleaseError
from daybreak.report.night_rows import NightRow, NightRows
from daybreak.storage.home import Home

if TYPE_CHECKING:
    from daybreak.extensions.pages.running import RunningNight
    from daybreak.rollout.hold import InForce
    from daybreak.storage.homes import FleetHome

log = logging.getLogger("daybreak")

WATCH_S = 2.0  # between two looks at what runs


def status(home: Home, *, last: int = 14, all: bool = False, watch: bool = False, json_: bool = False) -> int:
    """Show what runs and the last nights as a table, and on stderr which processes of Airflow are not alive.

    Args:
        home: whose nights these are
        last: number of nights
        all: of each model of the fleet
        watch: go on showing what runs as it moves, until Ctrl-C; once, where the output is no terminal
        json_: as JSON: nights, newest first, and recipes that a person holds; with --all, for each model
    """
    from rich.console import Console

    from daybreak import airflow_health
    from daybreak.extensions.pages import board
    from daybreak.storage import homes

    if url := airflow_health.address(home):
        for sentence in airflow_health.late(url):
            log.warning("%s", sentence)
    here = homes.FleetHome(folder=home.folder, model=home.folder.name, leads=True)
    chosen = homes.homes(homes.lead_of(home.folder)) if all else (here,)
    if watch and Console().is_terminal:
        return _watch(chosen, last=last)
    nights = _nights(chosen, last) if all else {here.model: NightRows(home).newest(last)}
    running = {member.model: _running(member) for member in chosen}
    if json_:
        values = {
            member.model: {
                "nights": board.running_rows(running[member.model]) + board.status_rows(nights[member.model]),
                "holds": [json.loads(records.dumps(one.hold)) for one in _in_force(member)],
            }
            for member in chosen
        }
        if not all and not values[here.model]["nights"]:
            raise NothingToDo("the ledger has no night yet; run one with: make night")
        print(json.dumps(values if all else values[here.model]))
        return 0
    for member in chosen:
        model, rows = member.model, nights.get(member.model, [])
        if all:
            Console().print(model, style="bold", highlight=False)
        elif not rows and not running[model]:
            raise NothingToDo("the ledger has no night yet; run one with: make night")
        for each in board.status_of(rows, running[model], _notices(member)):
            Console().print(each, highlight=False)
    return 0


def _running(member: "FleetHome") -> "list[RunningNight]":
    """Returns the nights of a home that run."""
    from daybreak.extensions.pages import open_nights

    try:
        return open_nights.states(member.home, now=datetime.now(UTC))
    except ReleaseError as error:
        log.warning("%s: %s", member.model, error)
        return []


def _notices(member: "FleetHome") -> list[str]:
    """Returns the recipes of a home that a person holds, and served rows unlike training, a sentence each."""
    from daybreak.gate import served_notices

    return [*map(str, _in_force(member)), *served_notices.notices(member.home)]


def _in_force(member: "FleetHome") -> "list[InForce]":
    """Returns what persons said against recipes of a home, as long as it holds."""
    from daybreak.rollout import hold

    try:
        return hold.in_force(member.home)
    except PipelineError as error:
        log.warning("%s: %s", member.model, error)
        return []


def _watch(chosen: "Sequence[FleetHome]", *, last: int) -> int:
    """Shows last and running nights of these homes on the terminal, until Ctrl-C."""
    from rich.console import Group
    from rich.live import Live

    from daybreak.extensions.pages import board

    nights = {member.model: NightRows(member.home) for member in chosen}
    with Live(auto_refresh=False) as shown:
        while True:
            parts: list[Any] = []
            for member in chosen:
                parts += [member.model] if len(chosen) > 1 else []
                rows = nights[member.model].newest(last)
                parts += board.status_of(rows, _running(member), _notices(member))
            shown.update(Group(*parts), refresh=True)
            time.sleep(WATCH_S)


def _nights(chosen: "Sequence[FleetHome]", limit: int) -> dict[str, list[NightRow]]:
    """Returns the newest nights of each home, by its model; a ledger that cannot be read hides no other."""
    rows: dict[str, list[NightRow]] = {}
    for member in chosen:
        try:
            rows[member.model] = NightRows(member.home).newest(limit)
        except ReleaseError as error:
            log.warning("%s: %s", member.model, error)
            rows[member.model] = []
    return rows


def pages(home: Home, *, host: str = "127.0.0.1", port: int = 8010) -> int:
    """Show the nights of all models as pages that update while a night runs, at /nights, until Ctrl-C.

    Args:
        home: whose nights these are
        host: address to listen on
        port: port to listen on, 0 for any that is free
    """
    from daybreak.extensions.pages import night_pages

    night_pages.serve(home, host=host, port=port)
    return 0
