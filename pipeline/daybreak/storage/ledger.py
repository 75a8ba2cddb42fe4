"""Records what served, when, why and at what cost, in the ledger: the git branch `nights`.

Each night is one commit: its tree is the code commit's tree with the night's params.yaml, dvc.lock and
records in it; its parents are the night before and the code commit. The branch moves by compare-and-swap
(`git update-ref NEW OLD`), so if two nights follow the same commit, one wins. The commit of a rollback has
the tree of the night that made the version that serves again.

Nights and rollbacks are the entries of the ledger; there are notes among them (ledger_notes.py). A night that
was closed as failed, and then went on and was decided, has a second commit, which takes the place of the
first: that one is no entry any more. So has one that could not be opened, and then was.
"""

import json
import logging
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from daybreak.contract import clock, records
from daybreak.contract.errors import DataError, ReleaseError
from daybreak.contract.formats import one_line
from daybreak.contract.record_types import (
    OF_A_NIGHT,
    Approval,
    Batch,
    Champion,
    Dataset,
    Evaluation,
    Event,
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
from daybreak.contract.records import R
from daybreak.storage import signatures
from daybreak.storage.checkout import git
from daybreak.storage.home import Home
from daybreak.storage.journal import alone

log = logging.getLogger(__name__)

BRANCH = "refs/heads/nights"
LOCK = "dvc.lock"  # digests of the data
FETCHED = "refs/fetched-ledger/"  # the branch as remotes have it (daybreak/rollout/ledger_copy.py)
FAILED_TO_OPEN = "open.error"  # in the folder of records of a night that could not be opened
GIT_LOCK_S = 5  # git holds its lock of a branch for milliseconds; an older one was left behind
_FIRST = "0" * 40  # git's name for "this ref must not exist yet"


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
    evaluation: Evaluation | None = None
    version: Version | None = None
    verdict: Verdict | None = None
    approval: Approval | None = None
    champion: Champion | None = None
    refit: Refit | None = None
    release: Release | None = None
    stop: Stop | None = None  # a person's
    events: Events | None = None  # None: made before there were any
    closed_at: datetime | None = None  # when the commit was made, UTC; None: the night is still open

    @property
    def serving(self) -> Release | None:
        """Returns what served once this commit was made."""
        return self.release or self.champion

    @property
    def promoted(self) -> bool:
        """Returns whether the version that the verdict is on serves from then on, as judged or refitted."""
        if self.release is None or self.verdict is None:
            return False
        judged = self.verdict.challenger
        return self.release.version == (self.refitted.number if self.refitted else judged)

    @property
    def stopped(self) -> Stop | None:
        """Returns the word of a person by which the night ended; None without one, or after a promotion."""
        return self.stop if self.release is None else None

    @property
    def refitted(self) -> Version | None:
        """Returns the refit that serves in place of the version that the verdict is on; None without one."""
        return self.refit.in_place_of(self.verdict.challenger) if self.refit and self.verdict else None


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A commit of the ledger, without its records."""

    id: str
    parents: tuple[str, ...]
    time: int  # seconds since 1970
    subject: str
    night: str
    rollback: bool
    serves: int | None  # the version that serves from then on, 0: as before; None: the commit does not say
    is_note: bool = False  # no night and no rollback


# The records of a rollback's commit itself; the rest of the tree comes from the night restored by it.
_OF_A_ROLLBACK = (Night, Verdict, Release, Events)


def ledger_tip(home: Home) -> str:
    """Returns the newest commit of the ledger; "" before the first night."""
    return git("for-each-ref", "--format=%(objectname)", BRANCH, folder=home.folder)


def newest_entry(home: Home) -> str:
    """Returns the newest night or rollback of the ledger; "" before the first night."""
    return _newest_entry(home, ledger_tip(home))


def _newest_entry(home: Home, tip: str) -> str:
    return next((one.id for one in commits_up_to(home, tip, 1)), tip)


def expect_signed(home: Home) -> str:
    """Returns the newest commit; ReleaseError where `release.require_signature` asks for its signature."""
    tip = ledger_tip(home)
    signatures.expect_signed(home, tip, branch=BRANCH)
    return tip


def text_at(home: Home, commit: str, path: str | Path) -> str | None:
    """Returns the text of a file in a commit, or None if it is missing; ReleaseError if it cannot be read."""
    try:
        return git("show", f"{commit}:{path}", folder=home.folder) + "\n"
    except ReleaseError as error:
        try:
            is_listed = git(
                "ls-tree", "--name-only", "--full-tree", commit, "--", str(path), folder=home.folder
            )
        except ReleaseError:
            is_listed = "the commit itself cannot be read"
        if is_listed:
            raise _damaged(commit, str(error)) from None
        return None


def read_at(home: Home, commit: str, kind: type[R]) -> R | None:
    """Returns a record of a commit, or None if it is missing."""
    path = records.path_of(kind, records.RUN)
    text = text_at(home, commit, path) if commit else None
    return None if text is None else records.loads(kind, text, source=f"{commit[:9]}:{path}")


def champion_at(home: Home, commit: str) -> Champion | None:
    """Returns the champion that serves after that commit of the ledger."""
    release = read_at(home, commit, Release) or read_at(home, commit, Champion)
    if release is None:
        return None
    return Champion(**{name: getattr(release, name) for name in Release.__dataclass_fields__})


def history(home: Home, limit: int | None = None) -> list[Entry]:
    """Returns the entries of the ledger, newest first. A record of an older form counts as missing."""
    return entries_of(home, commits(home, limit))


def entries_of(home: Home, commits: "Sequence[Commit]") -> list[Entry]:
    """Returns the entries of some commits, in their order; those without a readable night are left out."""
    entries = []
    for commit, by_name in zip(commits, _records_at(home, commits), strict=True):
        if isinstance(by_name.get("night"), Night):
            at = datetime.fromtimestamp(commit.time, UTC)
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


def commits(home: Home, limit: int | None = None) -> "Sequence[Commit]":
    """Returns the entries of the ledger, nights and rollbacks, newest first."""
    return commits_up_to(home, ledger_tip(home), limit)


def releases(home: Home) -> "list[Commit]":
    """Returns the commits that let another version serve, newest first; `serves` is its number."""
    listed = commits(home)
    silent = [commit.id for commit in listed if commit.serves is None]
    path = records.path_of(Release, records.RUN)
    read = dict(zip(silent, texts_at(home, silent, [path]), strict=True))

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
    tip, first = ledger_tip(home), None
    for commit in all_commits(home, tip) if tip else ():
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
    return f"daybreak night --day {night.day} --night {name}"


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
        read_at(home, made, Release) or (release is None and not _says_more(home, night, folder, made))
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
        if is_followed and (before := read_at(home, newest, Night)):
            follows = before.previous  # `newest` is no entry any more once it is followed
        data_of = newest if overtaken_by or failed_to_open(folder) else ""
        tree = _tree_of(home, replace(night, previous=follows), folder, release, events, data_of=data_of)
        try:
            return append(
                home, _always(tree), after=newest, code=night.code_commit, subject=message, trailers=trailers
            )
        except ReleaseError:
            if newest_entry(home) == newest:  # else another came in between, which may have decided nothing
                raise


def failed_to_open(folder: Path) -> bool:
    """Returns whether the night in a folder could not be opened."""
    return (folder / records.RUN / FAILED_TO_OPEN).exists()


def _tree_of(
    home: Home, night: Night, folder: Path, release: Release | None, events: Events | None, *, data_of: str
) -> str:
    """Returns the tree of a night's commit, with the champion and the data of another if that is named."""
    files = [folder / "params.yaml", *sorted((folder / records.RUN).glob("*.json"))]
    files += [] if data_of else [folder / LOCK]
    committing = "promote" if release else "close"  # it may have failed before, and succeeds by this commit
    failed = sorted((folder / records.RUN).glob("*.error"))
    files += [path for path in failed if path.stem != committing]
    names = [str(path.relative_to(folder)) for path in files if path.exists()]
    with tempfile.TemporaryDirectory() as scratch:
        index = Path(scratch) / "index"  # the user's own index is left alone, also with --here
        git("read-tree", night.code_commit, folder=folder, index=index)
        git("add", "--force", "--", *names, folder=folder, index=index)
        put_records(home, night, release, events, index=index)
        if data_of:
            put_records(home, _passed_on(home, data_of), index=index)
            if (lock := text_at(home, data_of, LOCK)) is not None:
                _put(home, LOCK, lock, index=index)
        return git("write-tree", folder=folder, index=index)


def _always(tree: str) -> Callable[[str], str]:
    return lambda tip: tree


def _passed_on(home: Home, commit: str) -> Champion | None:
    """Returns the champion after that commit, with the anchor of its chain if that is known."""
    serving, before = champion_at(home, commit), read_at(home, commit, Champion)
    return replace(serving, anchor=before.anchor) if serving and before else serving


def _says_more(home: Home, night: Night, folder: Path, commit: str) -> bool:
    """Returns whether a night that had failed when it was committed has a verdict by now that counts."""
    verdict = records.find(Verdict, folder / records.RUN)
    is_new = verdict is not None and verdict.challenger != 0 and verdict != read_at(home, commit, Verdict)
    return is_new and _may_go_on(home, commit) and not overtaken(home, night)


def _may_go_on(home: Home, commit: str) -> bool:
    """Returns whether a night may be decided after this commit: a stage failed, or there was no verdict."""
    if read_at(home, commit, Release) or read_at(home, commit, Stop):
        return False
    verdict = read_at(home, commit, Verdict)
    words = ("ls-tree", "--name-only", "--full-tree", commit, "--", f"{records.RUN}/")
    failed = any(name.endswith(".error") for name in git(*words, folder=home.folder).splitlines())
    return failed or verdict is None or not verdict.challenger


def commit_rollback(
    home: Home, target: str, release: Release, verdict: Verdict, event: Event, *, after: str, message: str
) -> str:
    """Commits the tree of `target`, with these records of the rollback in it, after an entry of the ledger.

    Raises ReleaseError, and changes nothing, if `after` is not the newest entry any more.
    """
    with tempfile.TemporaryDirectory() as scratch:
        index = Path(scratch) / "index"
        git("read-tree", target, folder=home.folder, index=index)
        put_records(home, release, verdict, Events(events=(event,)), index=index)
        tree = git("write-tree", folder=home.folder, index=index)
    trailers = f"Night: {release.night}\nRollback: {release.version}\n"
    return append(home, lambda tip: tree, after=after, subject=message, trailers=trailers)


def put_records(home: Home, *optional: Record | None, index: Path) -> None:
    """Puts records into an index of git, without files; None is skipped."""
    for record in filter(None, optional):
        _put(home, records.path_of(type(record), records.RUN), records.dumps(record), index=index)


def _put(home: Home, path: str | Path, text: str, *, index: Path) -> None:
    """Puts a text into an index of git, as the file at that path."""
    blob = git("hash-object", "-w", "--stdin", folder=home.folder, text=text)
    git("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}", folder=home.folder, index=index)


def append(
    home: Home,
    tree_after: Callable[[str], str],
    *,
    after: str | None,
    code: str = "",
    subject: str,
    trailers: str,
) -> str:
    """Makes the commit on top of the ledger, moves the branch to it, and returns it.

    Where a note came in between it is made anew on top of that. Raises ReleaseError, and changes nothing, if
    the newest entry is not `after`.

    Args:
        home: whose nights these are.
        tree_after: returns the tree of a commit that follows this one.
        after: the entry that it follows; None: whichever is the newest.
        code: a second parent.
        subject: in which people's words are; it is made one line.
        trailers: what kind of a commit it is.
    """
    subject = one_line(subject)
    while True:
        tip = ledger_tip(home)
        signatures.expect_signed(home, tip, branch=BRANCH)
        if after is not None and _newest_entry(home, tip) != after:
            raise _moved(after)
        options, sign = signatures.signing_options(home)
        parents = [word for parent in (tip, code) if parent for word in ("-p", parent)]
        words = (*_identity(home), *options, "commit-tree", tree_after(tip), *sign, *parents, "-F", "-")
        commit = git(*words, folder=home.folder, text=f"{subject}\n\n{trailers}", at=clock.now())
        try:
            move_to(home, commit, expected=tip, message=subject)
            return commit
        except ReleaseError as error:
            if ledger_tip(home) == tip:  # else by a note, or it is said in the next round
                raise _moved(after or tip, error) from None


def _moved(after: str, error: ReleaseError | None = None) -> ReleaseError:
    why = f" ({error})" if error else ""
    return ReleaseError(
        f"another night moved the ledger from {after[:9] or 'nothing'} first{why}; nothing is changed, "
        f"run this again"
    )


def is_part(home: Home, commit: str, tip: str) -> bool:
    """Returns whether `commit` is `tip` or an ancestor; False if git lacks either commit."""
    command = ["git", "merge-base", "--is-ancestor", commit, tip]
    done = subprocess.run(command, cwd=home.folder, capture_output=True, check=False)
    return bool(commit and tip) and done.returncode == 0


def commits_up_to(home: Home, commit: str, limit: int | None = None) -> "Sequence[Commit]":
    """Returns the entries that a ledger which ends with this commit has, newest first; none for ""."""
    return _entries(home, commit, limit) if commit else ()


def lost(home: Home) -> list[str]:
    """Returns commits of nights that git here has and the ledger has not, followed by none, likeliest first.

    First comes the last tip of the branch by its reflog, which is deleted with the branch; then, by number of
    nights, commits that are on no branch any more, and tips of remotes as of the last push or fetch. A night
    that lost the race for the ledger leaves such a commit too.
    """
    words = ("fsck", "--unreachable", "--no-reflogs", "--no-progress", "--connectivity-only")
    unreachable = [
        line.split()[-1] for line in git(*words, folder=home.folder).splitlines() if " commit " in line
    ]
    try:
        moves = git("reflog", "show", "--format=%H", BRANCH, "--", folder=home.folder).splitlines()
    except ReleaseError:
        moves = []
    candidates = [*unreachable, *moves, *_copies(home)]
    if not candidates:
        return []
    of_ledger = "%(trailers:key=Night,key=Note,valueonly,separator=%x20)"
    words = ("log", "--no-walk", "--ignore-missing", f"--format=%ct|%H|%P|{of_ledger}", "--stdin")
    shown = git(*words, folder=home.folder, text="\n".join(candidates))
    fields = [line.split("|", 3) for line in shown.splitlines()]
    tip = ledger_tip(home)
    known = {parent for _, _, parents, _ in fields for parent in parents.split()}
    known |= {one.id for one in all_commits(home, tip)} if tip else set()
    at = {commit: int(time) for time, commit, _, kind in fields if kind and commit not in known}
    # Larger is likelier: the newest move of the branch, then the most nights, then the newest.
    rank = {commit: len(moves) - place for place, commit in reversed([*enumerate(moves)])}
    return sorted(at, key=lambda one: (rank.get(one, 0), len(all_commits(home, one)), at[one]), reverse=True)


def _copies(home: Home) -> list[str]:
    """Returns the tips of the ledger at remotes, as of the last fetch."""
    listed = git("for-each-ref", "--format=%(objectname) %(refname)", folder=home.folder).splitlines()
    of_remotes = [line.split(" ", 1) for line in listed if " refs/remotes/" in line or f" {FETCHED}" in line]
    return [
        commit
        for commit, name in of_remotes
        if name.startswith(FETCHED) or name.endswith(BRANCH.removeprefix("refs/heads"))
    ]


def move_to(home: Home, commit: str, *, expected: str, message: str) -> None:
    """Lets the ledger end with this commit; ReleaseError if it does not end with `expected` any more.

    Removes git's lock of the branch where a git process that was killed left it behind.
    """
    words = ("update-ref", "--create-reflog", "-m", message, BRANCH, commit, expected or _FIRST)
    try:
        git("-c", f"core.filesRefLockTimeout={1000 * GIT_LOCK_S}", *words, folder=home.folder)
    except ReleaseError:
        path = git("rev-parse", "--path-format=absolute", "--git-path", f"{BRANCH}.lock", folder=home.folder)
        with alone(home.var / "ledger.lock"):  # so that no two remove it, the later one a new lock
            lock = Path(path)
            if not lock.exists() or time.time() - lock.stat().st_mtime < GIT_LOCK_S:
                raise
            log.warning("git was interrupted while it moved %s; removing %s", BRANCH, lock)
            lock.unlink()
            git(*words, folder=home.folder)


def _damaged(commit: str, message: str) -> ReleaseError:
    where = f"commit {commit[:9]} of the ledger" if commit else "the ledger"
    return ReleaseError(
        f"{where} cannot be read: {' '.join(message.split())[:200]}; repair it with: daybreak repair"
    )


def _identity(home: Home) -> list[str]:
    """Options that name a committer if git knows none, as in a container."""
    try:
        git("var", "GIT_COMMITTER_IDENT", folder=home.folder)
    except ReleaseError:
        return ["-c", "user.name=Daybreak", "-c", "user.email=daybreak@localhost"]
    return []


def _entries(home: Home, tip: str, limit: int | None) -> tuple[Commit, ...]:
    """The ledger's entries up to `tip`, newest first."""
    num = limit
    while True:
        commits = all_commits(home, tip, num)
        entries = tuple(_in_force(commits))[:limit]
        if num is None or len(entries) == limit or len(commits) < num:
            return entries
        num *= 2  # there were others among them


def _in_force(commits: Iterable[Commit]) -> Iterator[Commit]:
    """Yields the entries among commits, newest first, without those whose night has a later commit."""
    later = None
    for one in commits:
        if one.is_note:
            continue
        if later is None or one.rollback or later.rollback or one.night != later.night:
            yield one
        later = one


@lru_cache(maxsize=8)  # what a commit follows never changes
def all_commits(home: Home, tip: str, limit: int | None = None) -> tuple[Commit, ...]:
    """Returns the ledger's commits up to `tip`, notes and replaced ones among them, newest first."""
    keys = ("Night", "Rollback", "Serves", "Note")
    trailers = [f"%(trailers:key={key},valueonly,separator=%x20)" for key in keys]
    count = [] if limit is None else [f"--max-count={limit}"]
    form = "%x00".join(["%H", "%P", "%ct", "%s", *trailers])
    # Apart by NUL, which no commit can hold: a subject may have characters that Python takes for line ends.
    listed = git("log", "-z", "--first-parent", *count, f"--format={form}", tip, folder=home.folder)
    fields = listed.removesuffix("\0").split("\0")
    num = 4 + len(trailers)
    commits: list[Commit] = []
    for start in range(0, len(fields), num):
        commit, parents, time, subject, night, rollback, serves, note = fields[start : start + num]
        if not (night or note):  # a code commit, the only parent of the first night
            break
        made = Commit(
            id=commit,
            parents=tuple(parents.split()),
            time=int(time),
            subject=subject,
            night=night,
            rollback=bool(rollback),
            serves=int(serves or rollback) if serves or rollback else None,
            is_note=not night,
        )
        commits.append(made)
        if len(made.parents) == 1 and not (made.rollback or made.is_note) and _follows_none(home, commit):
            break  # whatever the message of the code commit before says
    return tuple(commits)


def _follows_none(home: Home, commit: str) -> bool:
    """Returns whether a night's record says that it is the first.

    A night of code that is the ledger's own commit has a single parent, too.
    """
    text = text_at(home, commit, records.path_of(Night, records.RUN))
    return text is not None and bool(json.loads(text).get("previous") == "")


def texts_at(home: Home, commits: Sequence[str], paths: Sequence[str | Path]) -> list[dict[str, str]]:
    """Returns the texts of files in each commit by path, without missing ones; read by one `git cat-file`."""
    wanted = [(number, str(path)) for number in range(len(commits)) for path in paths]
    request = "".join(f"{commits[number]}:{path}\n" for number, path in wanted)
    done = subprocess.run(
        ["git", "cat-file", "--batch"],
        cwd=home.folder,
        input=request.encode(),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise _damaged("", done.stderr.decode())
    texts: list[dict[str, str]] = [{} for _ in commits]
    at = 0
    for number, path in wanted:
        end = done.stdout.index(b"\n", at)
        header, at = done.stdout[at:end].split(), end + 1
        if header[-1] == b"missing":
            continue
        size = int(header[2])
        texts[number][path], at = done.stdout[at : at + size].decode(), at + size + 1
    return texts


def _records_at(home: Home, commits: Sequence[Commit]) -> list[dict[str, Any]]:
    """The records of each commit by name."""
    kinds = {str(records.path_of(kind, records.RUN)): kind for kind in OF_A_NIGHT}
    read: list[dict[str, Any]] = []
    for commit, texts in zip(commits, texts_at(home, [c.id for c in commits], list(kinds)), strict=True):
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
