"""Asks a team's class for its cards as a night does, of the samples and the model of a trial."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from daybreak.contract.sections import WorkloadPlug
from daybreak.contract.workload import ARRAYS
from daybreak.evaluation import evaluator
from daybreak.evaluation.scores import SCORES, Columns, write_scores
from daybreak.extensions.trial.rehearsal import CODE
from daybreak.registry.weights import MODEL
from daybreak.report import cards
from daybreak.storage.home import Home

NIGHT = "try"  # name of the night that the class is told of


def try_cards(
    plug: WorkloadPlug,
    home: Home,
    *,
    folder: Path,
    day: date,
    model: Path,
    columns: Columns,
    losses: Sequence[tuple[int, float]],
    validations: Sequence[tuple[int, float]],
) -> tuple[str, list[str]]:
    """Returns how many cards are shown, and a sentence on each that is not.

    The class is asked twice, each time in a process of its own with the limits of a night: before the model
    is scored, and after it.

    Args:
        plug: the class.
        home: its secrets are kept from the class.
        folder: the current folder, with the samples and the code.
        day: whose rows the samples are made of.
        model: folder of the trial's model.
        columns: its scores of these samples, as scores.npy has them.
        losses: samples trained on and mean losses of the trial's updates.
        validations: samples trained on and mean scores.
    """
    SCORES.parent.mkdir(parents=True, exist_ok=True)
    write_scores(columns, len(next(iter(columns.values()))))
    MODEL.symlink_to(model)
    scored = cards.facts(NIGHT, day, losses=losses, validations=validations, metrics=evaluator.means(columns))
    counts, faults = [], []
    for when, known in (("before the model is scored", cards.facts(NIGHT, day)), ("after it", scored)):
        made = cards.made(plug, known, folder=folder, code=folder / CODE, arrays=ARRAYS, home=home)
        failed = [card for card in made if card.failed]
        faults += [f"{when}, {card.title!r} is not shown: {card.failed}" for card in failed]
        counts.append(f"{len(made) - len(failed)} {when}")
    return ", ".join(counts), faults
