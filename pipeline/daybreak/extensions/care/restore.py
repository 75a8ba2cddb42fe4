"""Brings a ledger back that was lost or cut back: proposes a commit, and sets the branch to it when told to.

A commit may be known to git here, by the branch's reflog or as one that no branch has any more; then to a
remote; then to MLflow, by the tag `ledger` of its newest version. The first that is known is proposed, or one
that follows it. What MLflow alone names is shown, and taken only if a person names it: anyone who can write
to MLflow could name any commit. Where `release.require_signature` is set, a commit that is not signed is
passed over for the newest one before it that is, and is not taken by name either.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from daybreak.contract.errors import NothingToDo, PipelineError, ReleaseError, without_password
from daybreak.contract.sections import RegisterParams
from daybreak.extensions.care import audit
from daybreak.registry import aliases
from daybreak.rollout import ledger_copy
from daybreak.rollout.targets import expect_files
from daybreak.storage import branch, checkout, ledger, ledger_notes, signatures
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import session
from daybreak.storage.signatures import UNSIGNED

log = logging.getLogger(__name__)

MLFLOW = "MLflow"


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A commit that the ledger may end with, and what is known of it."""

    commit: str
    source: str  # who knows of it
    night: str
    closed: str
    num_nights: int
    version: int  # that serves then; 0: none
    is_signed: bool  # or need not be

    def __str__(self) -> str:
        """Returns it as a line for a person."""
        serves = f"version {self.version} serves" if self.version else "no version serves"
        return (
            f"{self.source}: {self.commit[:9]}, night {self.night}, {self.closed}, "
            f"{self.num_nights:,} entries, {serves}"
        )


def restore(home: Home, register: RegisterParams, *, commit: str = "", yes: bool = False) -> Iterator[str]:
    """Yields what is known of the ledger, line by line, and sets the branch if `yes`.

    Raises NothingToDo where nothing knows of more than the ledger has, and ReleaseError where a commit is not
    one of a whole ledger, or is not signed and has to be, or the branch has been moved meanwhile.

    Args:
        home: whose nights these are.
        register: name of the model, whose versions MLflow has.
        commit: that the ledger is to end with; the proposed one if empty.
        yes: set the branch; else it is only shown.
    """
    tip = branch.ledger_tip(home)
    yield f"the ledger, the git branch nights, {_end(home, tip)}"
    proposals = [*_here(home, tip), *_remotes(home, tip)]
    unsigned = [proposal for proposal in proposals if not proposal.is_signed]
    tags = [*_tagged(home, register, tip)]
    for proposal in proposals:
        yield f"{proposal}{'' if proposal.is_signed else f'; passed over, as it is {UNSIGNED}'}"
    for number, tag in tags:
        known = _proposal(home, tag, f"{MLFLOW}, by version {number}")
        yield str(known) if known else f"{MLFLOW}, by version {number}: {tag[:40]}, which git does not have"
        unsigned += [known] if known and not known.is_signed else []
    if commit:
        chosen: Proposal | None = _named(home, commit)
    else:
        chosen = _furthest(home, [proposal for proposal in proposals if proposal.is_signed])
    if chosen is None and unsigned:
        raise ReleaseError(
            f"{unsigned[0].commit[:9]}, which {unsigned[0].source} has, is {UNSIGNED}, and no other is "
            f"known; find out who wrote it, and bring the branch back from a backup or another clone"
        )
    if chosen is None and tags:
        raise ReleaseError(
            f"only MLflow names a commit that the ledger does not have; see that it is right and take it "
            f"with --commit {tags[0][1][:40]} --yes, or bring the branch back from a backup or another clone"
        )
    if chosen is None or chosen.commit == tip:
        raise NothingToDo("nothing knows of more than the ledger has")
    yield from _faults(home, chosen.commit)
    yield from _missing_files(home, register, chosen.commit)
    left_out = [
        one
        for one in (branch.commits_up_to(home, tip) if tip else ())
        if not branch.is_part(home, one.id, chosen.commit)
    ]
    if left_out:
        yield f"{len(left_out)} entries of today's ledger are not in it; they stay known as {tip}"
    if not yes:
        yield f"Set it with: daybreak restore {f'--commit {commit} ' if commit else ''}--yes"
        return
    branch.move_to(home, chosen.commit, expected=tip, message=f"restore: {chosen.source}")
    yield f"the ledger ends at {chosen.commit[:9]} now, by {chosen.source}; run daybreak watch"


def _missing_files(home: Home, register: RegisterParams, commit: str) -> Iterator[str]:
    """Yields why the version that serves by a commit cannot be loaded, where it cannot."""
    serving = ledger.champion_at(home, commit)
    if serving is None:
        return
    try:
        with session(home) as client:
            expect_files(home, client, register.name, serving)
    except PipelineError as error:
        yield f"look at this first: version {serving.version} would serve, and {error}"


def _end(home: Home, tip: str) -> str:
    known = _proposal(home, tip, "") if tip else None
    return f"ends at {str(known).removeprefix(': ')}" if known else "is gone"


def _here(home: Home, tip: str) -> Iterator[Proposal]:
    """Yields the likeliest commit that git here knows, if it follows the ledger's end.

    Those before it in the list are not signed, and have to be.
    """
    for commit in branch.lost(home):
        known = _proposal(home, commit, "git here")
        if known and (not tip or branch.is_part(home, tip, commit)):
            proposals = [*_down_to_signed(home, known, tip)]
            yield from proposals
            if proposals[-1].is_signed:
                return


def _remotes(home: Home, tip: str) -> Iterator[Proposal]:
    for remote in ledger_copy.remotes(home):
        copy = ledger_copy.look(home, remote, tip=tip)
        if copy.state == "no answer":
            log.warning("%s", copy)
        known = _proposal(home, copy.commit, f"remote {without_password(remote)}") if copy.has_more else None
        if known:
            yield from _down_to_signed(home, known, tip)


def _down_to_signed(home: Home, known: Proposal, tip: str) -> Iterator[Proposal]:
    """Yields the proposal, and if it is unsigned, also the newest signed one before that the ledger lacks."""
    yield known
    signed = "" if known.is_signed else signatures.newest_signed(home, known.commit)
    if signed and not branch.is_part(home, signed, tip) and (before := _proposal(home, signed, known.source)):
        yield before


def _tagged(home: Home, register: RegisterParams, tip: str) -> Iterator[tuple[int, str]]:
    """Yields the newest version whose tag names a commit that the ledger does not have, and the commit."""
    try:
        with session(home) as client:
            newest = aliases.newest_tagged(client, register.name)
    except PipelineError as error:
        log.warning("%s", error)
        return
    if newest and not branch.is_part(home, newest[1], tip):
        yield newest


def _furthest(home: Home, proposals: list[Proposal]) -> Proposal | None:
    """Returns the first, or one further on that follows it."""
    chosen: Proposal | None = None
    for proposal in proposals:
        if chosen is None or branch.is_part(home, chosen.commit, proposal.commit):
            chosen = proposal
    return chosen


def _named(home: Home, commit: str) -> Proposal:
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    try:
        whole = checkout.git(*words, folder=home.folder)
    except ReleaseError:
        raise ReleaseError(
            f"git has no commit {commit}; fetch it from a backup or another clone, or choose another --commit"
        ) from None
    known = _proposal(home, whole, "named by --commit")
    if known is None:
        raise ReleaseError(f"{commit} is not a commit of a night; choose another --commit")
    if not known.is_signed:
        raise ReleaseError(
            f"{known.commit[:9]} is {UNSIGNED}, and release.require_signature is set; choose another --commit"
        )
    return known


def _proposal(home: Home, commit: str, source: str) -> Proposal | None:
    """Returns the proposal to restore a commit; None if git lacks the commit or no night made it."""
    if not branch.is_part(home, commit, commit):
        return None
    try:
        entries = branch.commits_up_to(home, commit)
        if not entries:
            return None
        serving = ledger.champion_at(home, commit)
    except PipelineError as error:
        log.warning("%s is not proposed: %s", commit[:9], error)
        return None
    closed = datetime.fromtimestamp(entries[0].time, UTC)
    return Proposal(
        commit=commit,
        source=source,
        night=entries[0].night,
        closed=f"{closed:%Y-%m-%d %H:%M} UTC",
        num_nights=len(entries),
        version=serving.version if serving else 0,
        is_signed=signatures.newest_signed(home, commit) == commit,
    )


def _faults(home: Home, commit: str) -> Iterator[str]:
    """Yields what is wrong with the releases of a ledger that ends there.

    Raises ReleaseError unless all its objects are whole and its entries follow each other.
    """
    checkout.git("fsck", "--no-dangling", "--no-reflogs", "--no-progress", commit, folder=home.folder)
    commits = branch.commits_up_to(home, commit)
    texts = branch.texts_at(home, [one.id for one in commits], [*audit.PATHS.values()])
    contents = [audit.decoded(files) for files in texts]
    if faults := [*audit.chain_faults(commits, contents), *ledger_notes.faults(home, commit)]:
        raise ReleaseError(f"{commit[:9]} ends no whole ledger: {faults[0]}; choose another --commit")
    yield from (f"look at this first: {fault}" for fault in audit.release_faults(commits, contents))
