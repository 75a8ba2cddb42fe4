"""Reads the folder of a night, open or closed, as an entry of the ledger with what its stages left."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daybreak.contract import records
from daybreak.contract.records import (
    Approval,
    Batch,
    Champion,
    Dataset,
    Evaluation,
    Events,
    Night,
    Plan,
    Profile,
    Record,
    Refit,
    Release,
    Report,
    Stop,
    Training,
    Verdict,
    Version,
)
from daybreak.report import outcome
from daybreak.storage.ledger import Entry

_KINDS: tuple[type[Record], ...] = (
    Batch,
    Report,
    Dataset,
    Profile,
    Plan,
    Training,
    Evaluation,
    Version,
    Verdict,
    Approval,
    Champion,
    Refit,
    Release,
    Stop,
    Events,
)


def entry_of(folder: Path, history: Sequence[Entry] = ()) -> Entry:
    """Returns tonight as an entry of the ledger, read from the folder; its commit is "" before `close`."""
    run = folder / records.RUN
    night = records.read(Night, run)
    by_name: dict[str, Any] = {kind.__name__.lower(): records.find(kind, run) for kind in _KINDS}
    commits = [e.commit for e in history if e.night.id == night.id and not e.rollback]
    return Entry(commit=next(iter(commits), ""), subject="", rollback=False, night=night, **by_name)


def texts_of(folder: Path, ending: str) -> dict[str, str]:
    """Returns what stages that failed (`error`) or had nothing to do (`skipped`) wrote, in their order."""
    order = [stage for stage, _ in outcome.CHAIN]
    paths = (folder / records.RUN).glob(f"*.{ending}")
    ranked = sorted(paths, key=lambda p: (order.index(p.stem) if p.stem in order else len(order), p.stem))
    return {path.stem: path.read_text(errors="replace").strip() for path in ranked}
