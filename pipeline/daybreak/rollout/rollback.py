"""Stage rollback: lets an earlier version serve again, by the saga of a promotion; it needs no verdict."""

import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from daybreak.contract.errors import NothingToDo, ParamsError, ReleaseError
from daybreak.contract.formats import one_line, short_id
from daybreak.contract.record_types import Champion, Release, Verdict
from daybreak.contract.sections import RegisterParams
from daybreak.contract.user import user
from daybreak.registry import aliases
from daybreak.rollout import hold, night_events, saga
from daybreak.rollout.lost_ledger import expect_ledger
from daybreak.rollout.targets import Target, release_targets
from daybreak.storage import branch, ledger, night_folders
from daybreak.storage.branch import Commit
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry
from daybreak.storage.mlflow_client import session

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

RECENT = 20  # newest entries that are searched for the same request


def rollback(
    home: Home,
    register: RegisterParams,
    *,
    reason: str,
    to: int | str = 0,
    steps: int = 1,
    hold_days: int = -1,
    by: str = "",
    once: str = "",
    yes: bool = False,
) -> Release:
    """Lets an earlier version serve again: alias and data revision go back together, and are read back.

    Nothing is changed where the files of that version are gone or damaged. Finishes an interrupted rollback
    instead, where there is one. Raises NothingToDo where the version serves already, or a person at the
    terminal says no; ReleaseError where there is none to go back to, and NotYet while a release target gets
    ready.

    Args:
        home: whose nights these are.
        register: name of the model
        reason: why; the ledger and the registry keep it
        to: the version that is to serve, or the night or the day that made it; found by `steps` if 0
        steps: how many promotions to take back
        hold_days: days on which their recipes serve only if a person approves; until `lift` if -1, none if 0
        by: who rolls back; you if left out
        once: name of a request that may be sent again, such as "run 7"; it takes effect once
        yes: do not ask at a terminal whether it is to be done
    """
    name = register.name
    if not reason.strip():
        raise ParamsError("a rollback needs a reason, which the ledger keeps; give --reason TEXT")
    with session(home) as client:
        targets = release_targets(home, client, name)
        if finished := _finished(home, client, name, targets):
            return finished
        tip = branch.newest_entry(home)
        serving = _serving(home, register)
        if once and (done := _done(home, once)):
            return done
        night = _to_serve_again(home, serving, to=to, steps=steps)
        if not (yes or home.release_journal.path.exists()):  # asked before a target got ready
            _ask(name, night, serving=serving)
        why = f"{reason}{f' ({once})' if once else ''}"
        move = _move(home, night, serving, tip=tip, why=why, by=by or user(), hold_days=hold_days)
        saga.run(home, move, targets)
        return move.release


def _serving(home: Home, register: RegisterParams) -> Release | Champion:
    """Returns the release that serves; raises ReleaseError where none does, or where the ledger is lost."""
    newest = next(iter(ledger.history(home, limit=1)), None)
    if newest and newest.serving:
        return newest.serving
    expect_ledger(home, register)
    raise ReleaseError("no version was ever promoted; there is nothing to roll back")


def _to_serve_again(home: Home, serving: Release | Champion, *, to: int | str, steps: int) -> Entry:
    """Returns the night that promoted the version which is to serve; NothingToDo where that one serves."""
    releases = ledger.releases(home)
    number = version_of(home, str(to or 0)) or steps_back(releases, steps)
    if number == serving.version:
        raise NothingToDo(f"version {number} serves already")
    (night,) = ledger.entries_of(home, [promotion_of(releases, number)])
    return night


def _move(
    home: Home, night: Entry, serving: Release | Champion, *, tip: str, why: str, by: str, hold_days: int
) -> saga.Move:
    """Returns the move back to the version of a night, with what the ledger is to say of it."""
    assert night.release is not None
    release = Release(
        version=night.release.version,
        replaced=serving.version,
        model_digest=night.release.model_digest,
        files_digest=night.release.files_digest,
        files=night.release.files,
        night=night.night.id,
        lineage=night.release.lineage,
    )
    verdict = Verdict(
        action="reject",
        champion=release.version,
        challenger=serving.version,
        reason=f"rolled back from version {serving.version} to {release.version}: {why}",
    )
    at = datetime.now(UTC).replace(microsecond=0)
    event = night_events.rolled_back(release, by=by, reason=one_line(why), at=at)
    held = hold.of_rollback(
        home,
        ledger.releases(home),
        to=release.version,
        serving=serving.version,
        days=hold_days,
        since=night_folders.newest_day(home),
        by=by,
        reason=one_line(why),
    )
    if held:
        log.info("%s", hold.consequence(held))
    return saga.Move(
        kind="rollback",
        release=release,
        tip=tip,
        commit=lambda: ledger.commit_rollback(
            home, night.commit, release, verdict, event, hold=held, after=tip, message=verdict.reason[:200]
        ),
    )


def _finished(home: Home, client: "MlflowClient", name: str, targets: Sequence[Target]) -> Release | None:
    """Finishes a rollback that was interrupted, and returns its release; None where none was."""
    left = saga.recover(home, targets)
    if left and left.new and left.kind == "rollback":
        return left.release
    newest = next(iter(ledger.history(home, limit=1)), None)
    if not (newest and newest.rollback and newest.serving):
        return None
    if aliases.status(client, name, newest.serving.version) == aliases.SERVING:
        return None  # an alias that shows another version now was moved by hand
    log.warning("finishing the rollback to version %d that was interrupted", newest.serving.version)
    saga.settle(home, targets)
    return newest.release


def _ask(name: str, night: Entry, *, serving: Release | Champion) -> None:
    """Asks a person at a terminal whether it is to be done; raises NothingToDo unless the answer is yes."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    assert night.release is not None
    question = (
        f"Version {serving.version} of {name} serves. "
        f"Let version {night.release.version}, of night {night.night.id}, serve again? [y/N] "
    )
    sys.stderr.write(question)  # the record is on standard output
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NothingToDo(f"nothing is changed: version {serving.version} serves on")


def _done(home: Home, once: str) -> Release | None:
    """Returns the release of the rollback that this request has made, where the newest entries have it."""
    for entry in ledger.history(home, limit=RECENT):
        if entry.rollback and entry.verdict and entry.verdict.reason.endswith(f"({once})"):
            return entry.release
    return None


def steps_back(releases: Sequence[Commit], steps: int) -> int:
    """Returns the version that served `steps` promotions ago; `releases` are the ledger's, newest first.

    Raises ReleaseError where there were fewer promotions.
    """
    served = ledger.served([commit.serves or 0 for commit in releases])
    if not 1 <= steps < len(served):
        raise ReleaseError(
            f"cannot take back {steps} promotion{'s' * (steps != 1)}: versions that serve or served are "
            f"{', '.join(map(str, served)) or 'none'}; choose fewer --steps, or --to VERSION"
        )
    return served[-1 - steps]


def promotion_of(releases: Sequence[Commit], number: int) -> Commit:
    """Returns the commit of the night that promoted the version; raises ReleaseError where none did."""
    promotions = {commit.serves: commit for commit in releases if not commit.rollback}
    if number not in promotions:
        served = ", ".join(str(one) for one in sorted(filter(None, promotions))) or "none"
        raise ReleaseError(f"version {number} was never promoted; choose one of: {served}")
    return promotions[number]


def version_of(home: Home, text: str) -> int:
    """Returns the version that a person names: by its number, or by the name or the day of its night.

    Of a day with several nights, the newest that released a version counts; of a night, its refit. Raises
    NothingToDo, with why, where that night made none, and ReleaseError where there was no such night.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    nights = [entry for entry in ledger.history(home) if not entry.rollback]
    named = [e for e in nights if text in (e.night.id, short_id(e.night.id), str(e.night.day))]
    if released := [entry.release.version for entry in named if entry.release]:
        return released[0]
    if versions := [version.number for entry in named if (version := entry.refitted or entry.version)]:
        return versions[0]
    if named and (verdict := named[0].verdict):
        raise NothingToDo(f"night {named[0].night.id} made no version: {verdict.reason}")
    made = [entry for entry in nights if entry.version]
    last = f"; the newest that made one is {made[0].night.id}" if made else ""
    raise ReleaseError(f"{text} is not a version, nor a night of the ledger that made one{last}")
