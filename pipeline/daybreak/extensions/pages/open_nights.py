"""Reads what the nights of a home that are not closed have written (running.py)."""

import contextlib
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from daybreak.backends.submission_journal import SubmissionJournal
from daybreak.contract import records
from daybreak.contract.errors import PipelineError
from daybreak.contract.record_types import Cards, Night
from daybreak.contract.sections import PlanParams
from daybreak.extensions.pages import running
from daybreak.extensions.pages.running import NightFacts, RunningJob, RunningNight
from daybreak.jobs import submissions
from daybreak.jobs.cost_tracker import JOBS, spent_usd
from daybreak.jobs.heartbeats import Heartbeats
from daybreak.jobs.submissions import JobAttempts
from daybreak.report import links, outcome
from daybreak.storage import jsonl, night_folders
from daybreak.storage.home import Home
from daybreak.training.recipe import Recipe

log = logging.getLogger(__name__)

CONFIDENCE = PlanParams().confidence


def states(home: Home, *, now: datetime) -> list[RunningNight]:
    """Returns the nights of the home that run, the one that was opened last first."""
    nights = []
    for folder, _ in night_folders.unclosed(home):
        try:
            facts = facts_of(home, folder)
        except (PipelineError, OSError, ValueError, KeyError) as error:  # half of it may be gone
            log.debug("%s is not shown as a running night: %s", folder, error)
            continue
        if running.is_open(facts, now=now):
            nights.append(running.running(facts, now=now))
    return sorted(nights, key=lambda state: state.night.started_at, reverse=True)


def overdue(home: Home, *, now: datetime) -> list[Night]:
    """Returns the nights of the home that are past their deadline and not closed, the last one first."""
    late = [night for _, night in night_folders.unclosed(home) if now >= night.decide_until]
    return sorted(late, key=lambda night: night.started_at, reverse=True)


def predict_skipped(home: Home, night: str) -> str:
    """Returns why a night had nothing to predict; "" where it had."""
    path = home.nights / night / records.RUN / "predict.skipped"
    return path.read_text(errors="replace").strip() if path.exists() else ""


def facts_of(home: Home, folder: Path) -> NightFacts:
    """Returns what the night in a folder has written; PipelineError or OSError where it cannot be read."""
    view = outcome.view_of(folder)
    entry = view.entry
    job = _job(folder)
    usd = entry.training.cost_usd if entry.training else 0.0
    with contextlib.suppress(OSError, ValueError, KeyError):  # a cost that is just being written
        usd = max(usd, spent_usd(folder / JOBS, night=entry.night.id))
    return NightFacts(
        view=view,
        job=job,
        usd=usd,
        confidence=_confidence(home, folder),
        written_at=datetime.fromtimestamp(max(map(_written_at, _written(folder))), UTC),
        cards=str(_written_at(records.path_of(Cards, folder / records.LOOKS)) or ""),
        has_page=folder.name == entry.night.id and (folder / links.PAGE).exists(),
    )


def _job(folder: Path) -> RunningJob | None:
    """Returns the facts of the job that was asked for last; None before the first."""
    asked = list((folder / JOBS).glob(f"*/{submissions.FILE}"))
    if not asked:
        return None
    path = max(asked, key=_written_at).parent
    text = (path / "job.json").read_text()
    return RunningJob(
        recipe=records.loads(Recipe, text, source=str(path / "job.json")),
        attempts=JobAttempts(path),
        heartbeats=Heartbeats(jsonl.newest(path / "progress.jsonl")),
        waits=next((each.waits for each in SubmissionJournal(path).submissions()[-1:]), ""),
    )


def _written(folder: Path) -> Iterator[Path]:
    yield folder / records.RUN
    yield from (folder / records.RUN).glob("*.*")
    yield from (folder / JOBS).glob("*/*.json*")


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _confidence(home: Home, folder: Path) -> float:
    """Returns `plan.confidence` of the night in a folder."""
    try:
        return home.params_of(folder).plan.confidence
    except PipelineError:
        return CONFIDENCE
