"""Gives the champion's recipe its turn while a changed recipe is tested over nights.

Such a test compares two recipes (daybreak/gate/recipe_test.py), so both have to go on being trained. A night
trains one of them: after one that trained the recipe under test, the next of the schedule opens at the commit
of the champion, with its `workload` and `train` and the rest of today's params.yaml. That night is a refresh
like any other, and scores the newest version of the recipe under test beside its own. An edit has the first
turn, and a night that a person starts always trains the checkout's recipe. Where a turn cannot be opened, or
failed before, the checkout's recipe is trained instead.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from ruamel.yaml import YAML

from daybreak.contract import code_path, params
from daybreak.contract.record_types import Ingredients, Release
from daybreak.contract.records import replace_text
from daybreak.contract.sections import Params
from daybreak.registry import lineage
from daybreak.storage import branch, checkout, ledger, source_code
from daybreak.storage.home import Home

log = logging.getLogger(__name__)

# How the trigger of a night begins that no person started by itself.
SCHEDULES = ("schedule", "assets", "nights ", "watch: ")
OF_A_RECIPE = ("workload", "train")  # sections of params.yaml
ASSIGNED = tuple(f"{section}{mark}" for section in OF_A_RECIPE for mark in ".=")
LOOKED_AT = 60  # newest nights, for one that failed
SAY_RECIPE = """
import sys
from pathlib import Path
from daybreak.registry.lineage import recipe
from daybreak.storage.home import Home
params = Home(Path(sys.argv[1])).params
print(recipe(params.workload, params.train))
"""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A night of the champion's recipe, while another is tested."""

    commit: str  # of the code
    params: str  # text of params.yaml that the champion was made by
    candidate: Release  # newest version of the recipe under test
    recipe: str  # of the champion, a digest


def of_champion(
    home: Home, root: Path, asked: Params, *, commit: str, trigger: str, assignments: Sequence[str]
) -> Turn | None:
    """Returns the turn of the champion's recipe; None where tonight is that of the checkout's.

    Args:
        home: whose nights these are.
        root: the checkout.
        asked: the checkout's params, with assignments.
        commit: that the checkout is at.
        trigger: who starts the night, and why.
        assignments: overrides of params.yaml; those of a recipe are to be trained tonight.
    """
    last = next(iter(ledger.history(home, 1)), None)
    by_person = not trigger.startswith(SCHEDULES) or any(one.startswith(ASSIGNED) for one in assignments)
    if last is None or by_person or not _tried(last):
        return None
    version, champion, verdict = last.version, last.champion, last.verdict
    assert version and champion and verdict
    recipe = lineage.recipe(asked.workload, asked.train)
    if recipe != verdict.recipe or lineage.is_declared_equal(home, champion, asked.workload, asked.train):
        return None  # an edit since, which has the first turn, or none that needs a test
    if why_not := _why_not(home, last):
        log.warning(
            "the champion's recipe does not have its turn, %s; tonight trains the checkout's", why_not
        )
        return None
    (made,) = ledger.promotions(home, champion.version)
    text = branch.text_at(home, made.commit, str(params.FILE)) if made else None
    ingredients = branch.read_at(home, last.commit, Ingredients)
    if made is None or text is None or ingredients is None:
        return None
    if others := _other_changes(root, made.night.code_commit, commit, ingredients):
        log.warning(
            "the champion's recipe does not have its turn, as Daybreak itself has changed since (%s); "
            "tonight trains the checkout's",
            ", ".join(others[:3]),
        )
        return None
    return Turn(
        commit=made.night.code_commit,
        params=text,
        candidate=Release(
            version=version.number,
            replaced=0,
            model_digest=version.model_digest,
            files_digest=version.files_digest,
            files=version.files,
            night=last.night.id,
            lineage={"recipe": verdict.recipe, "source": source_code.digest_of(ingredients.files)},
        ),
        recipe=champion.lineage.get("recipe", ""),
    )


def _tried(last: ledger.Entry) -> bool:
    """Returns whether a night trained a recipe that is tested over nights, and that does not serve yet."""
    verdict = last.verdict
    test = verdict.recipe_test if verdict else None
    if last.rollback or last.promoted or not (verdict and test):
        return False
    is_whole = last.version is not None and last.champion is not None
    return is_whole and verdict.recipe == test.recipe != test.against


def _why_not(home: Home, last: ledger.Entry) -> str:
    """Returns why the champion's recipe cannot have its turn after that night, as a clause; "" if it can."""
    tested = last.verdict.recipe if last.verdict else ""
    for entry in ledger.history(home, LOOKED_AT):
        candidate = entry.champion.candidate if entry.champion else None
        if candidate and candidate.lineage.get("recipe") == tested and entry.verdict is None:
            return f"since night {entry.night.id} failed when it had"
    return ""


def _other_changes(root: Path, before: str, now: str, ingredients: Ingredients) -> list[str]:
    """Returns files of Daybreak beside the workload's in which two commits of a checkout of it differ."""
    if code_path.source_of(root) is None:
        return []
    changed = checkout.git("diff", "--name-only", before, now, "--", code_path.SOURCE, folder=root)
    names = (name.removeprefix(f"{code_path.SOURCE}/") for name in changed.splitlines())
    return [name for name in names if name not in ingredients.files]


def take(turn: Turn, folder: Path) -> bool:
    """Writes the champion's recipe into the params.yaml of a folder at its commit.

    Returns False where that does not make the champion's recipe, so that the checkout's is trained instead.
    """
    yaml = YAML()
    path = folder / params.FILE
    values, theirs = yaml.load(path.read_text()), yaml.load(turn.params)
    for section in OF_A_RECIPE:
        values.pop(section, None)
        if section in theirs:
            values[section] = theirs[section]
    stream = StringIO()
    yaml.dump(values, stream)
    replace_text(path, stream.getvalue())
    done = subprocess.run(  # since this process may have imported the checkout's code
        [sys.executable, "-P", "-c", SAY_RECIPE, str(folder)],
        cwd=folder,
        env={**os.environ, **code_path.environment(folder)},
        text=True,
        capture_output=True,
        check=False,
    )
    if done.stdout.strip() != turn.recipe:
        why = done.stderr.strip().splitlines()[-1:] or ["its recipe is another one there"]
        log.warning(
            "the champion's recipe does not have its turn, as its commit %s does not make it again (%s); "
            "tonight trains the checkout's",
            turn.commit[:9],
            why[0],
        )
        return False
    log.info(
        "version %d is of a recipe that is tested over nights, so tonight the champion's has its turn, by "
        "the code of commit %s",
        turn.candidate.version,
        turn.commit[:9],
    )
    return True
