"""How do serving, registry and data revision move together, or not at all? One saga, in a journal.

    1 prepare   every follower lays ready what it needs; whatever fails here changes nothing
    2 decide    the ledger is moved by compare-and-swap: release and data revision are one commit
    3 follow    every follower shows what the ledger says
    4 read back every follower and the ledger are asked anew; only then is success said

Before step 1 the journal, `var/release.json`, says what is going to happen, and after step 4 it is removed.
Killed before step 2 all is old, after it all becomes new: whoever comes next (another promotion or rollback,
the hourly watch) reads the journal, asks the ledger which of the two it is, and makes everybody follow. A
file lock, which dies with its process, keeps sagas apart.

Getting ready may take longer than a call: NotYet leaves the journal as it is, with the time until which it
waits. The same release asked for again goes on from there; the hourly watch lets it wait that long; any
other promotion or rollback takes its place.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline.contract import records
from pipeline.contract.errors import DataError, NotYet, ReleaseError
from pipeline.contract.records import Champion, Release
from pipeline.registry.lineage import LOCK
from pipeline.rollout.targets import Follower
from pipeline.storage import ledger
from pipeline.storage.journal import Journal

log = logging.getLogger(__name__)

NUM_TRIES = 5
PATIENCE = timedelta(hours=2)  # for followers to get ready: what Vertex AI gives a deployment at most


@dataclass(frozen=True, kw_only=True)
class Move:
    """A release that is to be made, and the ledger that it was decided on."""

    kind: str  # promote or rollback
    release: Release
    tip: str  # the ledger's newest commit, as whoever decided saw it
    commit: Callable[[], str]  # moves the ledger, or raises ReleaseError and changes nothing


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """What became of a saga that was interrupted."""

    kind: str
    release: Release
    new: bool  # or all old


def journal() -> Journal:
    """Returns the journal of all sagas of this home; its file is missing where none is going on."""
    return Journal(ledger.home() / "var" / "release.json")


def run(move: Move, followers: Sequence[Follower]) -> str:
    """Make the release, and return its commit once everybody has been read back.

    Raises NotYet while a follower gets ready, and ReleaseError, with all as it was, if one cannot show it, is
    not ready in time, or the ledger has moved on.
    """
    with journal().alone():
        until = _waits(move)
        if until is None:
            _recover(followers)
            until = datetime.now(UTC) + PATIENCE
            _step("write the journal")
            _write(move)
        else:
            _write(move, until=until)  # nights may have closed meanwhile
        try:
            for follower in followers:
                _step(f"prepare {follower.name}")
                try:
                    follower.prepare(move.release)
                except NotYet as reason:
                    _give_up_after(until, reason, follower)
                    _write(move, until=until)
                    raise
            _step("move the ledger")
            commit = move.commit()
        except ReleaseError:
            _undo(move.release, followers)
            raise
        _follow(followers)
        _step("remove the journal")
        journal().remove()
        _step("done")
    return commit


def recover(followers: Sequence[Follower]) -> Recovered | None:
    """Bring a saga that was interrupted to its end, all new or all old; None where none was, or one waits."""
    with journal().alone():
        pending = _read() if journal().path.exists() else None
        waits = pending and pending.until and datetime.now(UTC) < pending.until
        if pending and waits and not _decided(pending.tip, pending.release):
            return None
        return _recover(followers)


def settle(followers: Sequence[Follower]) -> Champion:
    """Make everybody show what the ledger says; return who serves, as read back.

    Raises ReleaseError if the ledger names no champion, or somebody else keeps moving a follower.
    """
    with journal().alone():
        return _follow(followers)


def _recover(followers: Sequence[Follower]) -> Recovered | None:
    if not journal().path.exists():
        return None
    pending = _read()
    kind, release, new = pending.kind, pending.release, _decided(pending.tip, pending.release)
    log.warning(
        "a %s of version %d was interrupted; %s",
        kind, release.version, "it is finished now" if new else "all is as it was before",
    )  # fmt: skip
    if new:
        _follow(followers)
        journal().remove()
    else:
        _undo(release, followers)
    return Recovered(kind=kind, release=release, new=new)


def _follow(followers: Sequence[Follower]) -> Champion:
    """Make everybody show what the ledger says, and read it back; again while nights close meanwhile."""
    serving = None
    for _ in range(NUM_TRIES):
        tip = ledger.ledger_tip()
        serving = ledger.champion_at(tip)
        if serving is None:
            raise ReleaseError("the ledger names no champion; promote a version first")
        for follower in followers:
            _step(f"tell {follower.name}")
            follower.show(serving)
        _step("read back the followers")
        agreed = all(follower.shown() == serving.version for follower in followers)
        _step("read back the ledger")
        if agreed and ledger.ledger_tip() == tip:
            _check_data(serving)
            return serving
    raise ReleaseError(
        f"not all followers stay at version {serving.version if serving else 0}, which the ledger names: "
        f"{', '.join(f'{follower.name} shows {follower.shown()}' for follower in followers)}; "
        f"find out who else moves them, then run watch"
    )


def _check_data(serving: Release) -> None:
    """After a rollback, the data revision has to be that of the night whose version serves again."""
    commits = ledger.commits()
    made = next((commit for commit in commits if commit.night == serving.night and not commit.rollback), None)
    if commits[0].rollback and made and ledger.text_at(commits[0].id, LOCK) != ledger.text_at(made.id, LOCK):
        raise ReleaseError(
            f"version {serving.version} serves again, but {LOCK} of the ledger is not that of its night "
            f"{serving.night}; look at git log nights"
        )


def _undo(release: Release, followers: Sequence[Follower]) -> None:
    """Drop what was laid ready; nobody shows it yet."""
    for follower in followers:
        _step(f"undo {follower.name}")
        follower.forget(release)
    journal().remove()


def _decided(tip: str, release: Release) -> bool:
    """Has the ledger got the release since it was at `tip`?"""
    for commit in ledger.commits():
        if commit.id == tip:
            return False
        made = ledger.read_at(commit.id, Release)
        if made is not None and (made.version, made.night) == (release.version, release.night):
            return True
    return False


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """The release that the journal says is going on."""

    kind: str
    tip: str
    release: Release
    until: datetime | None  # it waits for a follower until then


def _waits(move: Move) -> datetime | None:
    """Until when the very same release may wait for its followers; None where another is going on or none."""
    if not journal().path.exists():
        return None
    pending = _read()
    same = (pending.kind, pending.release) == (move.kind, move.release)
    return pending.until if same and not _decided(pending.tip, pending.release) else None


def _give_up_after(until: datetime, reason: NotYet, follower: Follower) -> None:
    if datetime.now(UTC) >= until:
        raise ReleaseError(
            f"{follower.name} is not ready at {until:%Y-%m-%d %H:%M} UTC: {reason}; all stays as it was; "
            f"look at it there, then run promote or rollback again"
        ) from reason


def _write(move: Move, *, until: datetime | None = None) -> None:
    values: dict[str, Any] = {"kind": move.kind, "tip": move.tip}
    values |= {
        "release": json.loads(records.dumps(move.release)),
        "until": until.isoformat() if until else "",
    }
    journal().write(values)


def _read() -> _Pending:
    path = journal().path
    try:
        values = journal().read()
        release = records.loads(Release, json.dumps(values["release"]), source=str(path))
        until = datetime.fromisoformat(values["until"]) if values.get("until") else None
        return _Pending(kind=str(values["kind"]), tip=str(values["tip"]), release=release, until=until)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no journal ({error!r}); remove it and run watch") from None


def _step(name: str) -> None:
    log.debug("saga: %s", name)
