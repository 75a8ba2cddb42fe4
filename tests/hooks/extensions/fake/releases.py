"""Hooks for verdicts, releases and pages."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from daybreak.contract.record_parts import Event
from daybreak.contract.record_types import Release
from daybreak.contract.sections import Params
from daybreak.evaluation.live_judge import LiveJudge
from daybreak.rollout.targets import Target
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import Log

NOTES = "notes.txt"


class Users(LiveJudge):
    """Judges by two users."""

    def preflight(self, home: Home, params: Params) -> Iterator[tuple[str, bool, str]]:
        """Yields that there are too few."""
        yield "users", False, f"two users for gate.scores: {params.gate.scores}; find more"


class Sign(Target):
    """Shows nothing yet."""

    name = "sign"

    def __init__(self, home: Home, log: Log) -> None:
        self.home, self.log = home, log

    def shown(self) -> int:
        """Returns the champion of the log."""
        return self.log.traffic.read().champion

    def show(self, release: Release) -> None:
        """Shows nothing."""


def checks(home: Home, params: Params) -> Iterator[tuple[str, bool, str]]:
    """Yields that a name of a model is too short."""
    yield "register.name", False, f"{params.register_.name} is too short"


def note(home: Home, commit: str) -> None:
    """Adds a line with the commit to a file of the home."""
    with (home.var / NOTES).open("a") as file:
        file.write(f"{commit}\n")


def board(home: Home, *, all: bool) -> Path:
    """Writes a page, and returns where it is."""
    page = home.folder / "board.txt"
    page.write_text(f"all: {all}")
    return page


def now(home: Home) -> None:
    """Notes that it was called."""
    with (home.var / NOTES).open("a") as notes:
        notes.write("now\n")


def told(home: Home) -> bool:
    """Notes that it was called."""
    with (home.var / NOTES).open("a") as notes:
        notes.write("told\n")
    return True


def digest(home: Home, *, told: Sequence[str]) -> Event | None:
    """Returns a message of two lines, unless it was sent."""
    at, text = datetime(2025, 1, 3, 7, tzinfo=UTC), "two models\nare well"
    if str(at.date()) in told:
        return None
    return Event(kind="digest", at=at, night="", subject=str(at.date()), reason=text)
