"""Gives the champion's recipe its turn while a changed recipe is tested over nights.

Such a test compares two recipes (daybreak/gate/recipe_test.py), so both have to go on being trained. A night
trains one of them: after one of the schedule that trained the recipe under test, the next opens at the commit
of the champion, with its `workload` and `train` and the rest of today's params.yaml. That night is a refresh
like any other, and scores the newest version of the recipe under test beside its own. A night that a person
starts always trains the checkout's recipe.
"""

import logging
import os
import subprocess
import sys
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from ruamel.yaml import YAML

from daybreak.contract import code_path, params
from daybreak.contract.record_types import Ingredients, Release
from daybreak.contract.records import replace_text
from daybreak.storage import branch, checkout, ledger, source_code
from daybreak.storage.home import Home

log = logging.getLogger(__name__)

BY_HAND = "manual"  # how the trigger of a night begins that a person started
OF_A_RECIPE = ("workload", "train")  # sections of params.yaml
SAY_RECIPE = """
import sys
from pathlib import Path
from daybreak.registry.lineage import recipe
from daybreak.storage.home import Home
print(recipe(Home(Path(sys.argv[1])).params))
"""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A night of the champion's recipe, while another is tested."""

    commit: str  # of the code
    params: str  # text of params.yaml that the champion was made by
    candidate: Release  # newest version of the recipe under test
    recipe: str  # of the champion, a digest


def of_champion(home: Home, root: Path, *, commit: str, trigger: str) -> Turn | None:
    """Returns the turn of the champion's recipe; None where tonight is that of the checkout's.

    Args:
        home: whose nights these are.
        root: the checkout.
        commit: that it is at; after a new one, the checkout's recipe has the first turn.
        trigger: who starts the night, and why.
    """
    newest = ledger.history(home, 2)
    last = newest[0] if newest else None
    if last is None or trigger.startswith(BY_HAND) or not _tried(last) or last.night.code_commit != commit:
        return None
    version, champion = last.version, last.champion
    turn_before = newest[1].champion if len(newest) > 1 else None
    if turn_before and turn_before.candidate and newest[1].verdict is None:
        log.warning(
            "the champion's recipe does not have its turn, since night %s failed when it had",
            newest[1].night.id,
        )
        return None
    assert version and champion and last.verdict
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
            night=last.night.id,
            lineage={"recipe": last.verdict.recipe, "source": source_code.digest_of(ingredients.files)},
        ),
        recipe=champion.lineage.get("recipe", ""),
    )


def _tried(last: ledger.Entry) -> bool:
    """Returns whether a night trained a recipe that is tested over nights, and that does not serve yet."""
    verdict = last.verdict
    test = verdict.recipe_test if verdict else None
    if last.rollback or last.promoted or last.night.chosen or not (verdict and test):
        return False
    is_whole = last.version is not None and last.champion is not None
    return is_whole and verdict.recipe == test.recipe != test.against


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
