"""Derives the events of a night from its records, and those of all nights and rollbacks from the ledger.

While a night runs, `note` adds what its records say by then to the events in its folder, each once;
`promote` and `close` commit them with the night, and a rollback commits its own. A night of the release
before has no events: they are derived from the records that the ledger holds, with the time at which it was
closed where no record has a better one.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.contract import clock, records
from pipeline.contract.errors import PipelineError
from pipeline.contract.formats import dollars, duration, one_line, quantity
from pipeline.contract.records import (
    Approval,
    Champion,
    Event,
    EventKind,
    Events,
    Night,
    Plan,
    Record,
    Release,
    Report,
    Training,
    Verdict,
)
from pipeline.registry import approval as approvals
from pipeline.storage import checkout, events, ledger
from pipeline.storage.ledger import Entry

log = logging.getLogger(__name__)

GATE = "gate"  # who decides where no person is asked
_READ: tuple[type[Record], ...] = (Champion, Report, Plan, Training, Verdict, Approval, Release)


def stream(history: Sequence[Entry]) -> list[Event]:
    """Returns the events of these entries of the ledger, newest first; `history` is newest first, too."""
    listed = [event for entry in history for event in reversed(of_entry(entry))]
    return sorted(listed, key=lambda event: event.at, reverse=True)


def of_entry(entry: Entry) -> tuple[Event, ...]:
    """Returns the events of a night or of a rollback: those that it recorded, else what its records say."""
    if entry.events is not None:
        return entry.events.events
    if entry.rollback:
        return (_rollback(entry),)
    closed_at, verdict = entry.closed_at, entry.verdict
    made = [*derive(entry, at=closed_at or clock.utc(), over=closed_at is not None)]
    if closed_at and verdict and verdict.failed:
        reason = verdict.reason.removeprefix(f"{verdict.failed} failed: ")
        made.append(
            Event(kind="failed", at=closed_at, night=entry.night.id, subject=verdict.failed, reason=reason)
        )
    return tuple(made)


def newest(last: int) -> list[Event]:
    """Returns the newest events of this home, those of open nights among them, newest first."""
    closed = {commit.night for commit in ledger.commits() if not commit.rollback}
    folders = [checkout.home(), *(checkout.home() / "nights").glob("*")]
    running = [event for folder in folders for event in events.read(folder) if event.night not in closed]
    listed = [*running, *stream(ledger.history(limit=last))]  # a commit has one event at least
    return sorted(listed, key=lambda event: event.at, reverse=True)[:last]


def of_night(name: str) -> list[Event]:
    """Returns the events of a night, and of rollbacks to its version, newest first."""
    commits = [commit for commit in ledger.commits() if commit.night == name]
    committed = stream(ledger.entries_of(commits))
    folders = (checkout.home() / "nights" / name, checkout.home())  # the latter of a night with --here
    here = [event for folder in folders for event in events.read(folder) if event.night == name]
    later = [event for event in here if event not in committed]
    return sorted([*later, *committed], key=lambda event: event.at, reverse=True)


def line(event: Event) -> str:
    """Returns an event as a line for the terminal.

    >>> at = datetime(2011, 9, 1, 2, 30, tzinfo=UTC)
    >>> line(Event(kind="late", at=at, night="2011-08-31", reason="it was to be decided until 02:00"))
    '2011-09-01 02:30  2011-08-31  late: it was to be decided until 02:00'
    >>> line(Event(kind="rolled back", at=at, night="n", version=2, champion=3, by="ann", reason="slow"))
    '2011-09-01 02:30  n  rolled back: version 2 in place of version 3, by ann: slow'
    """
    return f"{event.at:%Y-%m-%d %H:%M}  {event.night}  {said(event)}"


def said(event: Event) -> str:
    """Returns what happened, without when and in which night."""
    about = [event.subject] if event.kind in ("failed", "drift") else []
    if event.version:
        beside = "in place of" if event.kind in ("promoted", "rolled back") else "beside"
        about = [f"version {event.version}{f' {beside} version {event.champion}' if event.champion else ''}"]
    about += [f"by {event.by}"] if event.by else []
    return one_line(": ".join(filter(None, [event.kind, ", ".join(about), event.reason])))


def note(*, over: bool = False) -> tuple[Event, ...]:
    """Adds what the records of the night in this folder say to its events, and returns all of them.

    `over` says that nothing more will be decided. No night fails because its events cannot be written.
    """
    try:
        night = records.read(Night)
        by_name: dict[str, Any] = {kind.__name__.lower(): records.find(kind) for kind in _READ}
        entry = Entry(commit="", subject="", rollback=False, night=night, **by_name)
        at = clock.utc().replace(microsecond=0)
        failures = (failed(night, path.stem) for path in sorted(records.RUN.glob("*.error"))) if over else ()
        return events.add([*derive(entry, at=at, over=over), *failures])
    except (PipelineError, OSError) as error:
        log.warning("the events of this night are not noted: %s", error)
        return ()


def take_over(commit: str) -> tuple[Event, ...]:
    """Adds the events of the night's commit to those in this folder, and returns all of them."""
    try:
        committed = ledger.read_at(commit, Events)
        return events.add(committed.events if committed else ())
    except (PipelineError, OSError) as error:
        log.warning("the events of commit %s are not in the folder of its night: %s", commit[:9], error)
        return ()


def derive(entry: Entry, *, at: datetime, over: bool) -> Iterator[Event]:
    """Yields the events that the records of a night tell of, in the order of its stages, without failures.

    Args:
        entry: the night, closed or not.
        at: the time of those events whose records have none.
        over: nothing more will be decided.
    """
    night, verdict, training = entry.night, entry.verdict, entry.training
    yield Event(kind="opened", at=night.started_at, night=night.id, reason=night.trigger)
    for drift in entry.report.drift if entry.report else ():
        if drift.value > drift.limit:
            seen = f"{drift.statistic} {quantity(drift.value)}, more than {quantity(drift.limit)}"
            yield Event(kind="drift", at=at, night=night.id, subject=drift.column, reason=seen)
    if plan := entry.plan:
        what = f"{plan.rental}: {duration(plan.expected_s)}, {dollars(plan.expected_usd)}"
        yield Event(kind="planned", at=at, night=night.id, subject=str(plan.rental), reason=what)
    if training and training.cost_usd > night.budget_usd:
        cost = f"its jobs cost {dollars(training.cost_usd)} of {dollars(night.budget_usd)}"
        yield Event(kind="over budget", at=training.ended_at or at, night=night.id, reason=cost)
    if verdict and verdict.approve_until:
        yield from _asked(night, verdict, entry.approval, at=verdict.decided_at or at)
    # A promotion that is late was noted as such before the ledger was moved.
    if (over or not entry.release) and at > night.decide_until and not (verdict and verdict.approve_until):
        due = f"it was to be decided until {night.decide_until:%Y-%m-%d %H:%M} UTC"
        yield Event(kind="late", at=at, night=night.id, reason=due)
    if entry.release:
        reason = approvals.reason(verdict, entry.approval) if verdict else ""
        yield promoted(night, entry.release, verdict, entry.approval, reason=reason, at=at)
    elif over and verdict and not verdict.failed:
        yield _refused(night, verdict, entry.approval, at=at)


def promoted(
    night: Night,
    release: Release,
    verdict: Verdict | None,
    approval: Approval | None,
    *,
    reason: str,
    at: datetime,
) -> Event:
    """Returns the event that tonight's version serves."""
    answer = approvals.answer_to(verdict, approval) if verdict else None
    return Event(
        kind="promoted", at=at, night=night.id, subject=str(release.version), version=release.version,
        champion=release.replaced, by=answer.by if answer else GATE, reason=reason,
    )  # fmt: skip


def rolled_back(release: Release, *, by: str, reason: str, at: datetime) -> Event:
    """Returns the event that an earlier version serves again."""
    return Event(
        kind="rolled back", at=at, night=release.night, subject=str(release.version), version=release.version,
        champion=release.replaced, by=by, reason=reason,
    )  # fmt: skip


def failed(night: Night, stage: str, run: Path = records.RUN) -> Event:
    """Returns the event that a stage failed, at the time when it left its sentence in the folder `run`."""
    path = run / f"{stage}.error"
    try:
        reason, seconds = path.read_text().strip(), path.stat().st_mtime
    except FileNotFoundError:
        reason, seconds = "look at its log", clock.now()
    at = datetime.fromtimestamp(int(seconds), UTC)
    return Event(kind="failed", at=at, night=night.id, subject=stage, reason=one_line(reason))


def _asked(night: Night, verdict: Verdict, approval: Approval | None, *, at: datetime) -> Iterator[Event]:
    question = Event(
        kind="question", at=at, night=night.id, version=verdict.challenger, champion=verdict.champion,
        subject=f"{verdict.challenger} {verdict.champion} {verdict.action}",
        reason=f"{verdict.action}: {verdict.reason}", until=verdict.approve_until,
    )  # fmt: skip
    yield question
    if answer := approvals.answer_to(verdict, approval):
        kind: EventKind = "approved" if answer.approved else "declined"
        yield replace(
            question, kind=kind, at=answer.answered_at, by=answer.by, reason=answer.reason, until=None
        )


def _refused(night: Night, verdict: Verdict, approval: Approval | None, *, at: datetime) -> Event:
    """Returns the event that the champion stays."""
    answer = approvals.answer_to(verdict, approval)
    return Event(
        kind="refused", at=at, night=night.id, subject=str(verdict.challenger), version=verdict.challenger,
        champion=verdict.champion, by=answer.by if answer else GATE if verdict.challenger else "",
        reason=f"{verdict.action}: {approvals.reason(verdict, approval, over=True)}",
    )  # fmt: skip


def _rollback(entry: Entry) -> Event:
    """Returns the event of a rollback by the release before, whose verdict says why."""
    release = entry.release or Release(version=0, replaced=0, night=entry.night.id)
    said = entry.verdict.reason if entry.verdict else entry.subject
    return rolled_back(
        release, by="", reason=said.partition(": ")[2] or said, at=entry.closed_at or entry.night.started_at
    )
