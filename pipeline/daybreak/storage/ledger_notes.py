"""Keeps notes in the ledger: what has to be known for good beside its entries, as that rows were erased.

A note is a commit with the tree before it and one record more. A night may follow the entry that it was
opened after with notes in between, so that nobody loses a night because a note was written meanwhile.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from daybreak.contract import records
from daybreak.contract.errors import ReleaseError
from daybreak.contract.formats import one_line
from daybreak.contract.record_parts import Erasure
from daybreak.contract.record_types import Note, Predictions
from daybreak.storage import branch
from daybreak.storage.checkout import git
from daybreak.storage.home import Home


def add(
    home: Home,
    text: str,
    *,
    versions: Sequence[int],
    recipe: str = "",
    lifts: Sequence[str] = (),
    erasure: Erasure | None = None,
    predictions: Predictions | None = None,
    at: str = "",
) -> str:
    """Commits a sentence about these versions on top of the ledger; returns the commit.

    Raises ReleaseError before the first night, and where the ledger has to be signed and is not.

    Args:
        home: whose nights these are.
        text: what was seen or done.
        versions: that it is about.
        recipe: that a person declares to be the one that these versions were made by.
        lifts: commits of the rollbacks and nights whose holds a person ends.
        erasure: what was erased.
        predictions: of a night that is in the ledger already.
        at: when, as 2011-09-30 03:00 UTC; now if empty.
    """
    made = Note(
        at=at or f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        text=one_line(text),
        versions=tuple(versions),
        recipe=recipe,
        lifts=tuple(lifts),
        erasure=erasure,
        predictions=predictions,
    )

    def put(tip: str, index: Path) -> None:
        if not tip:
            raise ReleaseError("no night was closed yet, so that there is no ledger to write to")
        git("read-tree", tip, folder=home.folder, index=index)
        branch.put_records(home, made, index=index)

    kinds = {"erasure": erasure, "predictions": predictions, "recipe": recipe, "lift": lifts, "edit": True}
    kind = next(kind for kind, given in kinds.items() if given)
    return branch.append(home, put, after=None, subject=made.text, trailers=f"Note: {kind}\n")


def read(home: Home, tip: str = "") -> tuple[Note, ...]:
    """Returns the notes of the ledger, oldest first; up to a commit, its newest if left out."""
    tip = tip or branch.ledger_tip(home)
    return _read(home, tip) if tip else ()


@lru_cache(maxsize=4)
def _read(home: Home, tip: str) -> tuple[Note, ...]:
    path = str(records.path_of(Note, records.RUN))
    commits = [one.id for one in reversed(branch.all_commits(home, tip)) if one.is_note]
    texts = branch.texts_at(home, commits, [path])
    return tuple(
        records.loads(Note, files.get(path, ""), source=f"{commit[:9]}:{path}")
        for commit, files in zip(commits, texts, strict=True)
    )


def faults(home: Home, tip: str) -> Iterator[str]:
    """Yields a sentence for each note up to a commit that changes more than it may, newest first.

    Who serves is read from the newest commit, so a note has to leave all other records as they were.
    """
    path = str(records.path_of(Note, records.RUN))
    for one in branch.all_commits(home, tip) if tip else ():
        if not one.is_note:
            continue
        words = ("diff-tree", "-r", "--name-only", "--no-commit-id", f"{one.id}^", one.id)
        changed = git(*words, folder=home.folder).splitlines() if len(one.parents) == 1 else []
        if changed != [path]:
            yield f"note {one.id[:9]} changes {', '.join(changed[:3]) or 'no record'}, not {path} alone"
