"""Reads the nights of each model of a fleet, closed and running, and writes the board over them as files."""

import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from daybreak.contract.errors import PipelineError
from daybreak.contract.records import replace_text
from daybreak.report import board, links, open_nights
from daybreak.report.board import Model
from daybreak.report.live import Shown
from daybreak.report.night_rows import NightRow, NightRows
from daybreak.storage.homes import FleetHome

Pages = Callable[[FleetHome, Sequence[NightRow]], dict[str, str]]


class FleetRows:
    """The rows of some homes, which stay in memory between looks."""

    def __init__(self) -> None:
        self._rows: dict[Path, NightRows] = {}

    def models(self, homes: Sequence[FleetHome], *, pages: Pages) -> list[Model]:
        """Returns each home's model as it is now; a ledger that cannot be read hides no other.

        `pages` returns the address of each night's page by its id.
        """
        return [self._model(home, pages) for home in homes]

    def _model(self, home: FleetHome, pages: Pages) -> Model:
        kept = self._rows.setdefault(home.folder, NightRows(home.home))
        try:
            rows = kept.newest()
        except PipelineError as error:
            return Model(name=home.model, rows=(), pages={}, fault=str(error))
        return Model(name=home.model, rows=rows, pages=pages(home, rows))


def running(homes: Sequence[FleetHome], *, now: datetime, pages: bool = False) -> list[Shown]:
    """Returns the running nights of these homes, each with the address of its page where there are `pages`.

    A home whose ledger cannot be read has none.
    """
    shown = []
    for home in homes:
        with contextlib.suppress(PipelineError):
            for state in open_nights.states(home.home, now=now):
                href = links.served(home.model, state.night.id) if pages else ""
                shown.append(Shown(state=state, model=home.model if len(homes) > 1 else "", href=href))
    return shown


def write(path: Path, homes: Sequence[FleetHome], *, at: datetime) -> None:
    """Writes the board of these homes to a file, with further pages beside that file."""

    def pages(home: FleetHome, rows: Sequence[NightRow]) -> dict[str, str]:
        return links.nights(rows, board=path, home=home.folder)

    models = FleetRows().models(homes, pages=pages)
    texts = board.files(models, name=path.stem, at=at, running=running(homes, now=at))
    for name, text in texts.items():
        replace_text(path.with_name(name), text)
