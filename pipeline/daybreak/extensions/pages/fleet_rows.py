"""Reads the nights of each model of a fleet, closed and running, and writes pages over them as files."""

import contextlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from daybreak.contract.errors import PipelineError, sentence
from daybreak.contract.records import replace_text
from daybreak.extensions.pages import board, on_call, open_nights
from daybreak.extensions.pages.board import Model
from daybreak.extensions.pages.live import RunningPage
from daybreak.extensions.pages.on_call import Facts
from daybreak.gate import served_notices
from daybreak.report import links, message_log
from daybreak.report.night_rows import NightRow, NightRows
from daybreak.rollout import hold
from daybreak.storage import homes
from daybreak.storage.home import Home
from daybreak.storage.homes import FleetHome

NOW = "now.html"  # in `var` of the home that leads
Pages = Callable[[FleetHome, Sequence[NightRow]], dict[str, str]]


class FleetRows:
    """The rows of some homes, which stay in memory between looks."""

    def __init__(self) -> None:
        self._rows: dict[Path, NightRows] = {}

    def models(self, members: Sequence[FleetHome], *, pages: Pages) -> list[Model]:
        """Returns each home's model as it is now; a ledger that cannot be read hides no other.

        `pages` returns the address of each night's page by its id.
        """
        return [self._model(home, pages) for home in members]

    def _model(self, home: FleetHome, pages: Pages) -> Model:
        kept = self._rows.setdefault(home.folder, NightRows(home.home))
        try:
            rows, held = kept.newest(), hold.in_force(home.home)
        except PipelineError as error:
            return Model(name=home.model, rows=(), pages={}, fault=str(error))
        return Model(
            name=home.model,
            rows=rows,
            pages=pages(home, rows),
            notices=[*map(str, held), *served_notices.notices(home.home)],
            held_until=[one.hold.until for one in held if one.hold.until],
        )


def running(members: Sequence[FleetHome], *, now: datetime, pages: bool = False) -> list[RunningPage]:
    """Returns the running nights of these homes, each with the address of its page where there are `pages`.

    A home whose ledger cannot be read has none.
    """
    shown = []
    for home in members:
        with contextlib.suppress(PipelineError):
            for state in open_nights.states(home.home, now=now):
                href = links.served(home.model, state.night.id) if pages else ""
                shown.append(
                    RunningPage(state=state, model=home.model if len(members) > 1 else "", href=href)
                )
    return shown


def standing(rows: FleetRows, lead: Path, *, at: datetime) -> list[Facts]:
    """Returns what is on record now of each model of a fleet, and each home that has a fault."""
    members, faults = homes.examined(lead)
    broken = [Facts(model="A home of the fleet", rows=(), fault=fault) for fault in faults]
    return [*broken, *(_standing(rows, member, at=at) for member in members)]


def _standing(rows: FleetRows, member: FleetHome, *, at: datetime) -> Facts:
    try:
        return _read(rows, member, at=at)
    except (PipelineError, OSError, ValueError) as error:  # whatever is broken hides no other model
        return Facts(model=member.model, rows=(), fault=sentence(error))


def _read(rows: FleetRows, member: FleetHome, *, at: datetime) -> Facts:
    (model,) = rows.models([member], pages=lambda home, rows: {})
    if model.fault:
        return Facts(model=model.name, rows=(), fault=model.fault)
    home, notify = member.home, member.home.last_params(member.folder).notify
    running = open_nights.states(home, now=at)
    shown = {state.night.id for state in running}
    last = next((row.night for row in model.rows if not row.is_rollback), "")
    newest = running[0].night.id if running else last
    return Facts(
        model=model.name,
        rows=model.rows,
        running=running,
        overdue=[night for night in open_nights.overdue(home, now=at) if night.id not in shown],
        predict_skipped=open_nights.predict_skipped(home, newest) if newest else "",
        notices=model.notices,
        held_until=model.held_until,
        messages=message_log.read(home),
        notifies=bool(notify.command or notify.urls or notify.urgent_urls),
    )


def write_now(home: Home) -> Path:
    """Writes the page of what stands now to the home that leads the fleet of a home, and returns its path."""
    now = datetime.now(UTC)
    lead = homes.lead_of(home.folder)
    members, _ = homes.examined(lead)
    by = next((each.model for each in members if each.folder.resolve() == home.folder.resolve()), "")
    path = Home(lead).var / NOW
    replace_text(path, on_call.page(standing(FleetRows(), lead, at=now), at=now, by=by or home.folder.name))
    return path


def write_board(home: Home, *, all: bool) -> Path:
    """Writes the board of a home, or of all homes of its fleet, with further pages beside it.

    Returns the path of its first page.
    """
    now = datetime.now(UTC)
    path = home.var / "boards.html" if all else home.folder / links.BOARD
    here = FleetHome(folder=home.folder, model=home.folder.name, leads=True)
    members = homes.homes(homes.lead_of(home.folder)) if all else (here,)

    def pages(member: FleetHome, rows: Sequence[NightRow]) -> dict[str, str]:
        return links.nights(rows, board=path, home=member.folder)

    models = FleetRows().models(members, pages=pages)
    for name, text in board.files(models, name=path.stem, at=now, running=running(members, now=now)):
        replace_text(path.with_name(name), text)
    return path
