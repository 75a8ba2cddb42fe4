"""Records what served, when, why and at what cost, in the ledger: the git branch `nights`.

Each night is one commit (branch.py): its tree is the code commit's tree with the night's params.yaml,
dvc.lock and records in it; its parents are the night before and the code commit. The commit of a rollback has
the tree of the night that made the version that serves again.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from daybreak.contract import records
from daybreak.contract.errors import DataError, ReleaseError
from daybreak.contract.record_parts import Chain, Event
from daybreak.contract.record_types import (
    OF_A_NIGHT,
    Approval,
    Batch,
    Bill,
    Champion,
    Dataset,
    Evaluation,
    Events,
    Hold,
    Night,
    Plan,
    Predictions,
    Profile,
    Refit,
    Release,
    Report,
    Spans,
    Stop,
    Training,
    Verdict,
    Version,
)
from daybreak.storage import branch, ledger_notes
from daybreak.storage.branch import Commit
from daybreak.storage.checkout import git
from daybreak.storage.home import Home

log = logging.getLogger(__name__)

LOCK = "dvc.lock"  # digests of the data
MOST_OVERLAPPING = 16  # newest entries among which nights are looked for that were open at once
FAILED_TO_OPEN = "open.error"  # in the folder of records of a night that could not be opened


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One commit of the ledger and the records in it; None for the stages that the night did not reach.

    A rollback has the night that made the version which serves again, and no other record of it.
    """

    commit: str
    subject: str
    rollback: bool
    night: Night
    batch: Batch | None = None
    report: Report | None = None
    dataset: Dataset | None = None
    profile: Profile | None = None
    plan: Plan | None = None
    training: Training | None = None
    bill: Bill | None = None
    evaluation: Evaluation | None = None
    version: Version | None = None
    verdict: Verdict | None = None
    approval: Approval | None = None
    hold: Hold | None = None  # that a person's word left
    champion: Champion | None = None
    refit: Refit | None = None
    release: Release | None = None
    predictions: Predictions | None = None
    stop: Stop | None = None  # a person's
    events: Events | None = None  # None: made before there were any
    spans: Spans | None = None  # None: made before they were kept
    closed_at: datetime | None = None  # when the commit was made, UTC; None: the night is still open

    @property
    def serving(self) -> Release | None:
        """Returns what served once this commit was made."""
        return self.release or self.champion

    @property
    def usd(self) -> float | None:
        """Returns the dollars of all jobs of the night, failed jobs among them; None without a job."""
        refitted = self.refit.training if self.refit else None
        known = [job.cost_usd for job in (self.training, refitted) if job]
        return max([*known, *([self.bill.usd] if self.bill else [])], default=None)

    @property
    def promoted(self) -> bool:
        """Returns whether the version that the verdict is on serves from then on, as judged or refitted."""
        if self.release is None or self.verdict is None:
            return False
        judged = self.verdict.challenger
        return self.release.version == (self.refitted.number if self.refitted else judged)

    @property
    def chain(self) -> Chain | None:
        """Returns where its chain of refreshes stood; None where nothing was judged against an anchor."""
        return self.verdict.chain if self.verdict else None

    @property
    def is_cold(self) -> bool:
        """Returns whether its training began with new weights, as far as is known."""
        return bool(self.training and not self.training.warm)

    @property
    def stopped(self) -> Stop | None:
        """Returns the word of a person by which the night ended; None without one, or after a promotion."""
        return self.stop if self.release is None else None

    @property
    def refitted(self) -> Version | None:
        """Returns the refit that serves in place of the version that the verdict is on; None without one."""
        return self.refit.in_place_of(self.verdict.challenger) if self.refit and self.verdict else None


# The records of a rollback's commit itself; the rest of the tree comes from the night restored by it.
_OF_A_ROLLBACK = (Night, Verdict, Hold, Release, Events)


def with_newest_data(home: Home, commit: str) -> str:
    """Returns the entry from whose data a night after `commit` goes on: that one, unless nights overlapped.

    Of nights that were open at once, the one of an earlier day lacks what the others brought in, though it
    may be closed last, and promote. What a rollback brought back is not looked behind.
    """
    recent = with_batches(home, commit)
    if not recent:
        return commit
    since = recent[0].night.started_at
    beside = [entry for entry in recent if entry.closed_at and entry.closed_at > since]
    later = max(beside, key=lambda entry: entry.night.day, default=recent[0])
    return later.commit if later.night.day > recent[0].night.day else commit


def with_batches(home: Home, commit: str) -> list[Entry]:
    """Returns the newest entries up to `commit` that brought data in, newest first, since a rollback."""
    entries = entries_of(home, branch.commits_up_to(home, commit, MOST_OVERLAPPING))
    closed = takewhile(lambda entry: not entry.rollback, entries)
    return [entry for entry in closed if entry.batch]


def champion_at(home: Home, commit: str) -> Champion | None:
    """Returns the champion that serves after that commit of the ledger."""
    release = branch.read_at(home, commit, Release) or branch.read_at(home, commit, Champion)
    if release is None:
        return None
    return Champion(**{name: getattr(release, name) for name in Release.__dataclass_fields__})


def history(home: Home, limit: int | None = None) -> list[Entry]:
    """Returns the entries of the ledger, newest first. A record of an older form counts as missing."""
    return entries_of(home, commits(home, limit))


def entries_of(home: Home, commits: "Sequence[Commit]") -> list[Entry]:
    """Returns the entries of some commits, in their order; those without a readable night are left out."""
    noted = predictions_noted(home)
    entries = []
    for commit, by_name in zip(commits, _records_at(home, commits), strict=True):
        if isinstance(by_name.get("night"), Night):
            at = datetime.fromtimestamp(commit.time, UTC)
            if not commit.rollback and (predictions := noted.get(commit.night)):
                by_name["predictions"] = predictions
            entries.append(
                Entry(
                    commit=commit.id,
                    subject=commit.subject,
                    rollback=commit.rollback,
                    closed_at=at,
                    **by_name,
                )
            )
    return entries


def predictions_noted(home: Home) -> dict[str, Predictions]:
    """Returns by night the predictions that were written once the night was in the ledger."""
    return {note.predictions.night: note.predictions for note in ledger_notes.read(home) if note.predictions}


def commits(home: Home, limit: int | None = None) -> "Sequence[Commit]":
    """Returns the entries of the ledger, nights and rollbacks, newest first."""
    return branch.commits_up_to(home, branch.ledger_tip(home), limit)


def releases(home: Home) -> "list[Commit]":
    """Returns the commits that let another version serve, newest first; `serves` is its number."""
    listed = commits(home)
    silent = [commit.id for commit in listed if commit.serves is None]
    path = records.path_of(Release, records.RUN)
    read = dict(zip(silent, branch.texts_at(home, silent, [path]), strict=True))

    def serves(commit: Commit) -> int:
        if commit.serves is not None:
            return commit.serves
        text = read[commit.id].get(str(path))
        return records.loads(Release, text, source=f"{commit.id[:9]}:{path}").version if text else 0

    numbered = [replace(commit, serves=serves(commit)) for commit in listed]
    return [commit for commit in numbered if commit.serves]


def served(versions: Sequence[int]) -> list[int]:
    """Returns the versions that a rollback can go back to, oldest first, and at last the one that serves.

    A rollback takes promotions back, so the next rollback goes further back, not forward again.

    Args:
        versions: that came to serve, newest first.
    """
    left: dict[int, None] = {}  # in order; a ledger may have thousands
    for version in reversed(versions):
        while version in left:
            left.popitem()
        left[version] = None
    return list(left)


def promotions(home: Home, *versions: int) -> list[Entry | None]:
    """Returns the entry of the night that promoted each version; None where the ledger has none."""
    commits = {one.serves: one for one in releases(home) if not one.rollback and one.serves in versions}
    entries = {entry.commit: entry for entry in entries_of(home, list(commits.values()))}
    return [entries.get(commits[version].id) if version in commits else None for version in versions]


def evaluation_of(home: Home, release: Release | Champion) -> Evaluation | None:
    """Returns what the night that made the version of a release found of it; None if nothing."""
    made = (one.id for one in commits(home) if one.night == release.night and not one.rollback)
    return next(filter(None, (branch.read_at(home, one, Evaluation) for one in made)), None)


def versions(home: Home) -> list[Version]:
    """Returns the versions that the ledger has, refits among them, each once, the newest first."""
    made, refitted = str(records.path_of(Version, records.RUN)), str(records.path_of(Refit, records.RUN))
    nights = [one.id for one in commits(home) if not one.rollback]
    newest_first = []
    for text in branch.texts_at(home, nights, [made, refitted]):
        refit = records.loads(Refit, text[refitted], source=refitted) if refitted in text else None
        newest_first += [refit.version] if refit and refit.version else []
        newest_first += [records.loads(Version, text[made], source=made)] if made in text else []
    return list({version.number: version for version in newest_first}.values())


def commit_of(home: Home, night: Night) -> str:
    """Returns the commit of a night, which `promote` or `close` made; "" while it has none."""
    for commit in commits(home):
        if commit.id == night.previous:
            break
        if commit.night == night.id and not commit.rollback:
            return commit.id
    return ""


def is_over(home: Home, night: Night) -> bool:
    """Returns whether the night has made the last commit: a promotion, or the champion stays for good."""
    made = commit_of(home, night)
    return bool(made) and not _may_go_on(home, made)


def overtaken(home: Home, night: Night) -> str:
    """Returns by what the night was overtaken, as the end of a sentence; "" where it may still promote.

    A night is judged against the version that served when it was opened. Another night that promotes, or a
    rollback, overtakes it; a night that decided nothing, such as one without data, overtakes nobody.
    """
    tip, first = branch.ledger_tip(home), None
    for commit in branch.all_commits(home, tip) if tip else ():
        if commit.id == night.previous:
            break
        first = commit if commit.serves else first
    if first is None or (first.night == night.id and not first.rollback):
        return ""
    by = "a rollback" if first.rollback else f"night {first.night}"
    return f"was overtaken by {by}, by which version {first.serves} came to serve"


def new_night(home: Home, night: Night) -> str:
    """Returns the command that opens a night for the same day, by a name that no night has had."""
    names = {commit.night for commit in commits(home)}
    name, number = f"{night.day}-2", 2
    while name in names or (home.nights / name).exists():
        number += 1
        name = f"{night.day}-{number}"
    return f"daybreak {night.command} --day {night.day} --night {name}"


def before(home: Home, night: Night, *, limit: int) -> list[Entry]:
    """Returns the last nights that this one follows, oldest first, without rollbacks."""
    if not night.previous:
        return []
    entries = history(home, limit=2 * limit)  # rollbacks are among them
    commits = [entry.commit for entry in entries]
    if night.previous not in commits:
        return []
    followed = [entry for entry in entries[commits.index(night.previous) :] if not entry.rollback]
    return followed[:limit][::-1]


def commit_night(
    home: Home,
    night: Night,
    *,
    message: str,
    release: Release | None = None,
    events: Events | None = None,
) -> str:
    """Commits tonight, with this release; returns the commit, the same one on a retry.

    Neither the release nor its events are written to files before, so a release that `close` finds in a
    folder was decided. A night that failed was committed by `close`; if it goes on and is decided after all,
    a second commit follows. A night that was overtaken, or could not be opened, is committed without a
    release, and with the champion and the data of the newest entry, from which the next night goes on. Raises
    ReleaseError, and changes nothing, for a release of a night that was overtaken, or closed with a verdict
    to keep the champion.
    """
    made, folder = commit_of(home, night), home.tonight
    if made and (
        branch.read_at(home, made, Release) or (release is None and not _says_more(home, night, folder, made))
    ):
        return made
    if made and not _may_go_on(home, made):
        raise ReleaseError(
            f"night {night.id} is closed, and its champion stays; nothing is changed, open a new night with: "
            f"{new_night(home, night)}"
        )
    from daybreak.storage import snapshots

    snapshots.sync(home, folder)
    decided = release or records.find(Release, folder / records.RUN)
    trailers = f"Night: {night.id}\nServes: {decided.version if decided else 0}\n"
    while True:
        entry = next(iter(commits(home, 1)), None)
        newest = entry.id if entry else ""
        overtaken_by = overtaken(home, night)
        if overtaken_by and release:
            raise ReleaseError(
                f"night {night.id} {overtaken_by}; nothing is changed, open a new night with: "
                f"{new_night(home, night)}"
            )
        follows = newest
        is_followed = entry and entry.night == night.id and not entry.rollback
        if is_followed and (before := branch.read_at(home, newest, Night)):
            follows = before.previous  # `newest` is no entry any more once it is followed
        data_of = newest if overtaken_by or failed_to_open(folder) else ""
        now = replace(night, previous=follows)

        def put(tip: str, index: Path, now: Night = now, data_of: str = data_of) -> None:
            _put_night(home, now, folder, release, events, data_of=data_of, index=index)

        try:
            return branch.append(
                home, put, after=newest, code=night.code_commit, subject=message, trailers=trailers
            )
        except ReleaseError:
            if branch.newest_entry(home) == newest:  # else another came between, and may have decided nothing
                raise


def failed_to_open(folder: Path) -> bool:
    """Returns whether the night in a folder could not be opened."""
    return (folder / records.RUN / FAILED_TO_OPEN).exists()


def _put_night(
    home: Home,
    night: Night,
    folder: Path,
    release: Release | None,
    events: Events | None,
    *,
    data_of: str,
    index: Path,
) -> None:
    """Puts the files of a night into an index, with the champion and the data of another if that is named."""
    files = [folder / "params.yaml", *sorted((folder / records.RUN).glob("*.json"))]
    files += [] if data_of else [folder / LOCK]
    committing = "promote" if release else "close"  # it may have failed before, and succeeds by this commit
    failed = sorted((folder / records.RUN).glob("*.error"))
    files += [path for path in failed if path.stem != committing]
    names = [str(path.relative_to(folder)) for path in files if path.exists()]
    git("read-tree", night.code_commit, folder=folder, index=index)
    git("add", "--force", "--", *names, folder=folder, index=index)
    branch.put_records(home, night, release, events, index=index)
    if data_of:
        branch.put_records(home, _passed_on(home, data_of), index=index)
        if (lock := branch.text_at(home, with_newest_data(home, data_of), LOCK)) is not None:
            branch.put_text(home, LOCK, lock, index=index)


def _passed_on(home: Home, commit: str) -> Champion | None:
    """Returns the champion after that commit, with the anchor of its chain if that is known."""
    serving, before = champion_at(home, commit), branch.read_at(home, commit, Champion)
    return replace(serving, anchor=before.anchor) if serving and before else serving


def _says_more(home: Home, night: Night, folder: Path, commit: str) -> bool:
    """Returns whether a night that had failed when it was committed has a verdict by now, or a hold."""
    verdict = records.find(Verdict, folder / records.RUN)
    hold = records.find(Hold, folder / records.RUN)
    is_new = hold is not None and hold != branch.read_at(home, commit, Hold)
    if verdict and verdict.challenger:
        is_new = is_new or verdict != branch.read_at(home, commit, Verdict)
    return is_new and _may_go_on(home, commit) and not overtaken(home, night)


def _may_go_on(home: Home, commit: str) -> bool:
    """Returns whether a night may be decided after this commit: a stage failed, or there was no verdict."""
    if branch.read_at(home, commit, Release) or branch.read_at(home, commit, Stop):
        return False
    verdict = branch.read_at(home, commit, Verdict)
    words = ("ls-tree", "--name-only", "--full-tree", commit, "--", f"{records.RUN}/")
    failed = any(name.endswith(".error") for name in git(*words, folder=home.folder).splitlines())
    return failed or verdict is None or not verdict.challenger


def commit_rollback(
    home: Home,
    target: str,
    release: Release,
    verdict: Verdict,
    event: Event,
    *,
    hold: Hold | None = None,
    after: str,
    message: str,
) -> str:
    """Commits the tree of `target`, with these records of the rollback in it, after an entry of the ledger.

    Raises ReleaseError, and changes nothing, if `after` is not the newest entry any more.
    """

    def put(tip: str, index: Path) -> None:
        git("read-tree", target, folder=home.folder, index=index)
        left = str(records.path_of(Hold, records.RUN))  # of the night that made the version
        git("update-index", "--force-remove", left, folder=home.folder, index=index)
        branch.put_records(home, release, verdict, hold, Events(events=(event,)), index=index)

    trailers = f"Night: {release.night}\nRollback: {release.version}\n"
    return branch.append(home, put, after=after, like=target, subject=message, trailers=trailers)


def _records_at(home: Home, commits: Sequence[Commit]) -> list[dict[str, Any]]:
    """The records of each commit by name."""
    kinds = {str(records.path_of(kind, records.RUN)): kind for kind in OF_A_NIGHT}
    read: list[dict[str, Any]] = []
    for commit, texts in zip(
        commits, branch.texts_at(home, [c.id for c in commits], list(kinds)), strict=True
    ):
        read.append({})
        for path, text in texts.items():
            if commit.rollback and kinds[path] not in _OF_A_ROLLBACK:
                continue
            try:
                record = records.loads(kinds[path], text, source=f"{commit.id[:9]}:{path}")
                read[-1][kinds[path].__name__.lower()] = record
            except DataError as error:
                log.warning("%s", error)
    return read
