"""Derives the events of a night from its records, and those of all nights and rollbacks from the ledger.

While a night runs, `note` adds events derived from its records to the events in its folder, each once;
`promote` and `close` commit them with the night, and a rollback commits its own. A night without events gets
them from its records in the ledger, with the time of closing where no record has a better time.
"""

import logging
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from daybreak.contract import clock, records
from daybreak.contract.errors import PipelineError
from daybreak.contract.formats import dollars, duration, one_line, quantity, short_id, size
from daybreak.contract.record_parts import Event, EventKind
from daybreak.contract.record_types import Approval, Events, Night, Release, Stop, Verdict
from daybreak.registry import approval as approvals
from daybreak.storage import branch, events, ledger, night_folders
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry
from daybreak.storage.night_folders import entry_of

log = logging.getLogger(__name__)

DECISIONS: tuple[EventKind, ...] = ("promoted", "refused", "stopped", "failed")  # that a night ends with
GATE = "gate"  # who decides where no person is asked
MONTH_SHARES = (0.8, 1.0)  # of the month's dollars
LOOKED_AT = 8  # newest entries of the ledger, for one whose predictions are late
GIVEN_UP_AFTER = timedelta(days=1)  # of a night that nobody closed


def stream(history: Sequence[Entry]) -> list[Event]:
    """Returns the events of these entries of the ledger, newest first; `history` is newest first, too."""
    listed = [event for entry in history for event in reversed(of_entry(entry))]
    return sorted(listed, key=lambda event: event.at, reverse=True)


def of_entry(entry: Entry) -> tuple[Event, ...]:
    """Returns the events of a night or a rollback: as recorded, else as derived from other records."""
    if entry.events is not None:
        return entry.events.events
    closed_at, verdict = entry.closed_at, entry.verdict
    made = [*derive(entry, at=closed_at or clock.utc(), over=closed_at is not None)]
    if closed_at and verdict and verdict.failed:
        reason = verdict.reason.removeprefix(f"{verdict.failed} failed: ")
        made.append(
            Event(kind="failed", at=closed_at, night=entry.night.id, subject=verdict.failed, reason=reason)
        )
    return tuple(made)


def newest(home: Home, last: int) -> list[Event]:
    """Returns the newest events of this home, those of open nights among them, newest first."""
    running = [
        event
        for folder, night in night_folders.unclosed(home)
        for event in events.read(folder)
        if event.night == night.id
    ]
    listed = [*running, *stream(ledger.history(home, limit=last))]  # a commit has one event at least
    return sorted(listed, key=lambda event: event.at, reverse=True)[:last]


def of_night(home: Home, name: str) -> list[Event]:
    """Returns the events of a night, and of rollbacks to its version, newest first."""
    commits = [commit for commit in ledger.commits(home) if commit.night == name]
    committed = stream(ledger.entries_of(home, commits))
    folders = (home.nights / name, home.folder)  # the latter of a night with --here
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
    return f"{event.at:%Y-%m-%d %H:%M}  {short_id(event.night)}  {sentence(event)}"


def sentence(event: Event) -> str:
    """Returns what happened, without when and in which night."""
    about = [event.subject] if event.kind in ("failed", "drift") else []
    if event.version:
        beside = "in place of" if event.kind in ("promoted", "rolled back") else "beside"
        about = [f"version {event.version}{f' {beside} version {event.champion}' if event.champion else ''}"]
    about += [f"by {event.by}"] if event.by else []
    return one_line(": ".join(filter(None, [event.kind, ", ".join(about), event.reason])))


def note(folder: Path, *, over: bool = False, more: Iterable[Event] = ()) -> tuple[Event, ...]:
    """Adds events derived from the records of the night in a folder, and `more`; returns all events.

    `over` says that nothing more will be decided. A night does not fail because events cannot be written.
    """
    run = folder / records.RUN
    try:
        entry = entry_of(folder)
        new = [*derive(entry, at=clock.utc().replace(microsecond=0), over=over)]
        if over:
            new += [failed(entry.night, path.stem, run) for path in sorted(run.glob("*.error"))]
        elif _lacks_predictions(entry) and not (run / "predict.skipped").exists():
            new.append(late_predictions(entry.night, at=clock.utc().replace(microsecond=0)))
        return events.add([*new, *more], folder)
    except (PipelineError, OSError) as error:
        log.warning("the events of this night are not noted: %s", error)
        return ()


def note_failure(stage: str, folder: Path) -> Event:
    """Adds to the events of the night in a folder that a stage failed for good; returns that event."""
    run = folder / records.RUN
    event = failed(records.read(Night, run), stage, run)
    note_event(event, folder)
    return event


def note_event(event: Event, folder: Path) -> None:
    """Adds an event to those of the night in a folder, which does not fail where that cannot be."""
    try:
        events.add([event], folder)
    except (PipelineError, OSError) as error:
        log.warning("an event (%s) is not among those of its night: %s", event.kind, error)


def open_nights(home: Home) -> list[Entry]:
    """Returns the nights that were opened and not closed, newest first.

    A night that was to be decided more than a day ago was given up.
    """
    entries = []
    for folder, night in night_folders.unclosed(home):
        try:
            if folder != home.folder and clock.utc() - night.decide_until < GIVEN_UP_AFTER:
                entries.append(entry_of(folder))
        except (PipelineError, OSError) as error:  # broken: the others are looked at
            log.warning("night %s cannot be read: %s", folder.name, error)
    return sorted(entries, key=lambda entry: entry.night.started_at, reverse=True)


def unpredicted(home: Home) -> list[Path]:
    """Returns the folders of nights that have promoted and whose predictions are late."""
    promoted = (one for one in ledger.commits(home, LOOKED_AT) if one.serves and not one.rollback)
    late = []
    for folder in (home.nights / one.night for one in promoted):
        try:
            entry = entry_of(folder) if folder.exists() else None
        except (PipelineError, OSError) as error:  # broken: the others are looked at
            log.warning("night %s cannot be read: %s", folder.name, error)
            continue
        if entry and _lacks_predictions(entry) and not (folder / records.RUN / "predict.skipped").exists():
            assert entry.night.predict_until
            if clock.utc() - entry.night.predict_until < GIVEN_UP_AFTER:
                late.append(folder)
    return late


def low_disk(home: Home) -> list[Event]:
    """Returns that the disk of the home is nearly full, where it is; once a day is enough to tell it."""
    min_free_gb = home.last_params(home.folder).notify.min_free_gb
    free, now = shutil.disk_usage(home.folder).free, clock.utc().replace(microsecond=0)
    if free >= min_free_gb * 1e9:
        return []
    limit = f"less than notify.min_free_gb, {min_free_gb:g}"
    seen = f"the disk of {home.folder} has {size(free)} free, {limit}"
    return [Event(kind="disk low", at=now, night="", subject=str(now.date()), reason=seen)]


def take_over(home: Home, commit: str) -> tuple[Event, ...]:
    """Adds the events of the night's commit to those in this folder, and returns all of them."""
    try:
        committed = branch.read_at(home, commit, Events)
        return events.add(committed.events if committed else (), home.tonight)
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
    if not (verdict and verdict.failed == "open"):
        yield Event(kind="opened", at=night.started_at, night=night.id, reason=night.trigger)
    yield from _drifted(entry, at=at)
    if plan := entry.plan:
        what = f"{plan.rental}: {duration(plan.forecast.expected_s)}, {dollars(plan.forecast.expected_usd)}"
        yield Event(kind="planned", at=at, night=night.id, subject=str(plan.rental), reason=what)
    yield from _month_spent(entry, at=at)
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
        yield promoted(entry.release, verdict, entry.approval, reason=reason, at=at)
    elif entry.stopped:
        yield _stopped(entry, entry.stopped)
    elif over and verdict and not verdict.failed:
        yield _refused(night, verdict, entry.approval, at=at)


def _month_spent(entry: Entry, *, at: datetime) -> Iterator[Event]:
    """Yields that the night took the month's dollars beyond a share of them that people hear of."""
    month = entry.night.month
    if month is None or entry.usd is None:
        return
    now = month.spent_usd + entry.usd
    for share in MONTH_SHARES:
        if month.spent_usd < share * month.usd <= now:
            spent = f"{dollars(now)} of this month's {dollars(month.usd)} are spent (night.usd_per_month)"
            yield Event(
                kind="month budget", at=at, night=entry.night.id, subject=f"{share:.0%}", reason=spent
            )


def _drifted(entry: Entry, *, at: datetime) -> Iterator[Event]:
    for drift in entry.report.drift if entry.report else ():
        if drift.value > drift.limit:
            seen = f"{drift.statistic} {quantity(drift.value)}, more than {quantity(drift.limit)}"
            yield Event(kind="drift", at=at, night=entry.night.id, subject=drift.column, reason=seen)


def promoted(
    release: Release,
    verdict: Verdict | None,
    approval: Approval | None,
    *,
    reason: str,
    at: datetime,
) -> Event:
    """Returns the event that tonight's version serves."""
    answer = approvals.answer_to(verdict, approval) if verdict else None
    return _released("promoted", release, by=answer.by if answer else GATE, reason=reason, at=at)


def rolled_back(release: Release, *, by: str, reason: str, at: datetime) -> Event:
    """Returns the event that an earlier version serves again."""
    return _released("rolled back", release, by=by, reason=reason, at=at)


def _released(
    kind: Literal["promoted", "rolled back"], release: Release, *, by: str, reason: str, at: datetime
) -> Event:
    return Event(
        kind=kind,
        at=at,
        night=release.night,
        subject=str(release.version),
        version=release.version,
        champion=release.replaced,
        by=by,
        reason=reason,
    )


def failed(night: Night, stage: str, run: Path) -> Event:
    """Returns the event that a stage failed, at the time when it left its sentence in the folder `run`."""
    path = run / f"{stage}.error"
    try:
        reason, seconds = path.read_text().strip(), path.stat().st_mtime
    except FileNotFoundError:
        reason, seconds = "look at its log", clock.now()
    at = datetime.fromtimestamp(int(seconds), UTC)
    return Event(kind="failed", at=at, night=night.id, subject=stage, reason=one_line(reason))


def _lacks_predictions(entry: Entry) -> bool:
    """Returns whether predictions of a version that serves were to be written by now, and are not."""
    until, serves = entry.night.predict_until, entry.champion or entry.release
    return until is not None and serves is not None and not entry.predictions and clock.utc() > until


def late_predictions(night: Night, *, at: datetime) -> Event:
    """Returns the event that the night's predictions missed their deadline."""
    due = f"its predictions were to be written until {night.predict_until:%Y-%m-%d %H:%M} UTC"
    return Event(kind="late", at=at, night=night.id, subject="predictions", reason=due)


def _asked(night: Night, verdict: Verdict, approval: Approval | None, *, at: datetime) -> Iterator[Event]:
    question = Event(
        kind="question",
        at=at,
        night=night.id,
        version=verdict.challenger,
        champion=verdict.champion,
        subject=f"{verdict.challenger} {verdict.champion} {verdict.action}",
        reason=f"{verdict.action}: {verdict.reason}",
        until=verdict.approve_until,
    )
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
        kind="refused",
        at=at,
        night=night.id,
        subject=str(verdict.challenger),
        version=verdict.challenger,
        champion=verdict.champion,
        by=answer.by if answer else GATE if verdict.challenger else "",
        reason=f"{verdict.action}: {approvals.reason(verdict, approval, over=True)}",
    )


def _stopped(entry: Entry, stop: Stop) -> Event:
    """Returns the event that a person ended the night."""
    return Event(
        kind="stopped",
        at=stop.stopped_at,
        night=entry.night.id,
        by=stop.by,
        version=entry.version.number if entry.version else 0,
        champion=entry.champion.version if entry.champion else 0,
        reason=stop.reason,
    )
