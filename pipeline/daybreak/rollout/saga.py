"""Moves serving, registry and data revision together, or not at all, by one saga with a journal.

    1 prepare   every target makes its preparations; a failure in this step changes nothing
    2 decide    the ledger is moved by compare-and-swap: release and data revision are one commit
    3 follow    every target is made to show the ledger's champion
    4 read back every target and the ledger are read again; the saga succeeds only if they agree

Before step 1 the journal, `var/release.json`, records what is going to happen; after step 4 it is removed.
A saga killed before step 2 leaves everything old, one killed after it becomes all new: the next call (another
promotion or rollback, or the hourly watch) reads the journal, reads from the ledger which of the two it is,
and makes every target follow. A file lock, which dies with its process, keeps sagas apart.

Preparing may take longer than a call: NotYet leaves the journal in place, with the time until which the saga
waits. A retry of the same release goes on from there; the hourly watch lets the saga wait that long; any
other promotion or rollback replaces it.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from daybreak.contract import clock, records
from daybreak.contract.errors import DataError, NotYet, ReleaseError
from daybreak.contract.record_types import Champion, Release
from daybreak.registry.lineage import LOCK
from daybreak.rollout.targets import Target
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home

log = logging.getLogger(__name__)

NUM_TRIES = 5
PREPARE_LIMIT = timedelta(hours=2)  # for targets to get ready: the most that Vertex AI gives a deployment


@dataclass(frozen=True, kw_only=True)
class Move:
    """A release that is to be made, and the ledger that it was decided on."""

    kind: str  # promote or rollback
    release: Release
    tip: str  # the newest entry of the ledger when the release was decided
    commit: Callable[[], str]  # moves the ledger, or raises ReleaseError and changes nothing


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """What became of a saga that was interrupted."""

    kind: str
    release: Release
    new: bool  # finished, or else undone


def run(home: Home, move: Move, targets: Sequence[Target]) -> str:
    """Makes the release, and returns its commit once every target has been read back.

    Raises NotYet while a target gets ready, and ReleaseError, with nothing changed, if a target cannot show
    the release, a target is not ready in time, or the ledger has moved on.
    """
    with home.release_journal.alone():
        until = _waits(home, move)
        if until is None:
            _recover(home, targets)
            end = clock.utc() + PREPARE_LIMIT
            until = _WaitLimit(until=end, boot=clock.boot(), booted_at=clock.booted_at())
            _step("write the journal")
            _write(home, move)
        else:
            _write(home, move, until=until)  # nights may have closed meanwhile
        try:
            for target in targets:
                _step(f"prepare {target.name}")
                try:
                    target.prepare(move.release)
                except NotYet as pending:
                    _give_up_after(until, pending, target)
                    _write(home, move, until=until)
                    raise
            _step("move the ledger")
            commit = move.commit()
        except ReleaseError:
            _undo(home, move.release, targets)
            raise
        _follow(home, targets)
        _step("remove the journal")
        home.release_journal.remove()
        _step("done")
    return commit


def recover(home: Home, targets: Sequence[Target]) -> Recovered | None:
    """Finishes or undoes an interrupted saga; returns None where none was interrupted, or it still waits."""
    with home.release_journal.alone():
        entry = _read(home) if home.release_journal.path.exists() else None
        waits = entry and entry.until and not entry.until.is_over
        if entry and waits and not _decided(home, entry.tip, entry.release):
            return None
        return _recover(home, targets)


def settle(home: Home, targets: Sequence[Target]) -> Champion:
    """Makes every target show what the ledger says; returns the champion, as read back.

    Raises ReleaseError if the ledger names no champion, or something else keeps moving a target.
    """
    with home.release_journal.alone():
        return _follow(home, targets)


def _recover(home: Home, targets: Sequence[Target]) -> Recovered | None:
    if not home.release_journal.path.exists():
        return None
    entry = _read(home)
    kind, release, new = entry.kind, entry.release, _decided(home, entry.tip, entry.release)
    log.warning(
        "a %s of version %d was interrupted; %s",
        kind,
        release.version,
        "it is finished now" if new else "it is undone now",
    )
    if new:
        _follow(home, targets)
        home.release_journal.remove()
    else:
        _undo(home, release, targets)
    return Recovered(kind=kind, release=release, new=new)


def _follow(home: Home, targets: Sequence[Target]) -> Champion:
    """Makes every target show the champion and reads it back; repeats if a night closes meanwhile."""
    serving = None
    for _ in range(NUM_TRIES):
        tip = branch.ledger_tip(home)
        serving = ledger.champion_at(home, tip)
        if serving is None:
            raise ReleaseError("the ledger names no champion; promote a version first")
        for target in targets:
            _step(f"show {target.name}")
            target.show(serving)
        _step("read back the targets")
        agreed = all(target.shown() == serving.version for target in targets)
        _step("read back the ledger")
        if agreed and branch.ledger_tip(home) == tip:
            _check_data(home, serving)
            return serving
    raise ReleaseError(
        f"not all targets stay at version {serving.version if serving else 0}, which the ledger names: "
        f"{', '.join(f'{target.name} shows {target.shown()}' for target in targets)}; "
        f"find out what else moves them, then run watch"
    )


def _check_data(home: Home, serving: Release) -> None:
    """Raises ReleaseError after a rollback whose data revision is not that of the version's own night."""
    commits = ledger.commits(home)
    made = next((commit for commit in commits if commit.night == serving.night and not commit.rollback), None)
    if (
        commits[0].rollback
        and made
        and branch.text_at(home, commits[0].id, LOCK) != branch.text_at(home, made.id, LOCK)
    ):
        raise ReleaseError(
            f"version {serving.version} serves again, but {LOCK} of the ledger is not that of its night "
            f"{serving.night}; look at git log nights"
        )


def _undo(home: Home, release: Release, targets: Sequence[Target]) -> None:
    """Discards the targets' preparations, none of which is live yet, and removes the journal."""
    for target in targets:
        _step(f"undo {target.name}")
        target.discard(release)
    home.release_journal.remove()


def _decided(home: Home, tip: str, release: Release) -> bool:
    """Returns whether the release is in the ledger after the commit `tip`."""
    for commit in ledger.commits(home):
        if commit.id == tip:
            return False
        decided = branch.read_at(home, commit.id, Release)
        if decided is not None and (decided.version, decided.night) == (release.version, release.night):
            return True
    return False


@dataclass(frozen=True, kw_only=True)
class _WaitLimit:
    """When a saga stops waiting for a target, by the clock of the process that began it."""

    until: datetime
    boot: str  # of the machine, and when that was by this clock
    booted_at: float

    @property
    def is_over(self) -> bool:
        """Returns whether it has passed."""
        return clock.now_by(self.boot, self.booted_at) >= self.until.timestamp()


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """The content of the journal."""

    kind: str
    tip: str
    release: Release
    until: _WaitLimit | None


def _waits(home: Home, move: Move) -> _WaitLimit | None:
    """Returns until when the release of `move` may wait for targets; None unless its saga is under way."""
    if not home.release_journal.path.exists():
        return None
    entry = _read(home)
    same = (entry.kind, entry.release) == (move.kind, move.release)
    return entry.until if same and not _decided(home, entry.tip, entry.release) else None


def _give_up_after(limit: _WaitLimit, pending: NotYet, target: Target) -> None:
    if limit.is_over:
        raise ReleaseError(
            f"{target.name} is not ready at {limit.until:%Y-%m-%d %H:%M} UTC: {pending}; nothing was "
            f"changed; look at it there, then run promote or rollback again"
        ) from pending


def _write(home: Home, move: Move, *, until: _WaitLimit | None = None) -> None:
    document: dict[str, Any] = {"kind": move.kind, "tip": move.tip}
    document["release"] = json.loads(records.dumps(move.release))
    document["until"] = until.until.isoformat() if until else ""
    if until:
        document |= {"boot": until.boot, "booted_at": until.booted_at}
    home.release_journal.write(document)


def _read(home: Home) -> _Entry:
    path = home.release_journal.path
    try:
        document = home.release_journal.read()
        release = records.loads(Release, json.dumps(document["release"]), source=str(path))
        until = None
        if document.get("until"):
            at, boot, booted_at = document["until"], document.get("boot", ""), document.get("booted_at", 0.0)
            until = _WaitLimit(until=datetime.fromisoformat(at), boot=str(boot), booted_at=float(booted_at))
        return _Entry(kind=str(document["kind"]), tip=str(document["tip"]), release=release, until=until)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a valid journal ({error!r}); remove it and run watch") from None


def _step(name: str) -> None:
    log.debug("saga: %s", name)
