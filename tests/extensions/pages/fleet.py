"""A fleet of two homes, each with a history of nights; pages are laid for the newest ones."""

import subprocess
from datetime import UTC, date, datetime
from pathlib import Path

from daybreak.report import links, page
from daybreak.storage import ledger
from daybreak.storage.home import Home
from tests.report.histories import nights, write_ledger
from tests.report.nights import lay

ROOT = Path(__file__).parents[3]
GIT = ["git", "-c", "user.name=A Test", "-c", "user.email=test@example.org"]
PAGE = """<!doctype html><html lang="en"><title>A night</title>
<header><nav aria-label="Other pages"><a href="../../../../var/board.html">Board</a></nav>
<h1>Night</h1></header>"""


def make(folder: Path, *, num: int = 60, last: date | None = None, **seeds: int) -> Path:
    """The leading home of a fleet: the first model is its own, and every model has another seed."""
    last = last or datetime.now(UTC).date()
    for model, seed in seeds.items():
        home = folder / model
        (home / "var").mkdir(parents=True)
        subprocess.run([*GIT, "init", "--quiet"], cwd=home, check=True)
        params = (ROOT / "params.yaml").read_text()
        assert "register: {name: daybreak}" in params or "name: daybreak" in params
        (home / "params.yaml").write_text(params.replace("name: daybreak", f"name: {model}"))
        subprocess.run([*GIT, "add", "params.yaml"], cwd=home, check=True)
        subprocess.run([*GIT, "commit", "--quiet", "--message=Begin"], cwd=home, check=True)
        write_ledger(home, list(nights(num, last=last, seed=seed)))
    lead, *others = seeds
    (folder / lead / "fleet.yaml").write_text(f"homes: [{', '.join(f'../{model}' for model in others)}]\n")
    return folder / lead


def lay_page(home: Path, night: str, text: str = PAGE) -> None:
    """Lay the page of a night, as `close` leaves it."""
    path = home / "nights" / night / links.PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def lay_night(home: Path, night: str) -> None:
    """Lay the page of a closed night as `close` writes it, from its records in the ledger."""
    history = ledger.history(Home(home))
    entry = next(entry for entry in history if entry.night.id == night)
    page.write(Home(home), lay(entry, home / "nights" / night, scores=False), history)
