"""Reads the nights of each model of a fleet, closed and running, and writes the board over them as files."""

import contextlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from daybreak.contract.errors import PipelineError
from daybreak.contract.records import replace_text
from daybreak.extensions.pages import board, open_nights
from daybreak.extensions.pages.board import Model
from daybreak.extensions.pages.live import RunningPage
from daybreak.gate import served_notices
from daybreak.report import links
from daybreak.report.night_rows import NightRow, NightRows
from daybreak.rollout import hold
from daybreak.storage import homes
from daybreak.storage.home import Home
from daybreak.storage.homes import FleetHome

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
    texts = board.files(models, name=path.stem, at=now, running=running(members, now=now))
    for name, text in texts.items():
        replace_text(path.with_name(name), text)
    return path
