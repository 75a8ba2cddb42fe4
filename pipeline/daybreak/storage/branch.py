"""Reads and writes the commits of the ledger, the git branch `nights`, and the files in them.

The branch moves by compare-and-swap (`git update-ref NEW OLD`), so if two nights follow the same commit, one
wins. Nights and rollbacks are the entries of the ledger (ledger.py); there are notes among them
(ledger_notes.py). A night that was closed as failed, and then went on and was decided, has a second commit,
which takes the place of the first: that one is no entry any more. So has one that could not be opened, and
then was.
"""

import json
import logging
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from daybreak.contract import clock, records
from daybreak.contract.errors import ReleaseError
from daybreak.contract.formats import one_line
from daybreak.contract.record_parts import Record
from daybreak.contract.record_types import Night
from daybreak.contract.records import R
from daybreak.contract.units import HOUR_S
from daybreak.storage import checkout, signatures
from daybreak.storage.checkout import git
from daybreak.storage.home import Home
from daybreak.storage.journal import alone

log = logging.getLogger(__name__)

BRANCH = "refs/heads/nights"
FETCHED = "refs/fetched-ledger/"  # the branch as remotes have it (daybreak/rollout/ledger_copy.py)
GIT_LOCK_S = 5  # git holds its lock of a branch for milliseconds; an older one was left behind
STORE_TRIES = 50  # of a pack
KEPT = "Daybreak moves its ledger to a commit of this pack\n"  # in the file beside the pack
_FIRST = "0" * 40  # git's name for "this ref must not exist yet"


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


def is_part(home: Home, commit: str, tip: str) -> bool:
    """Returns whether `commit` is `tip` or an ancestor; False if git lacks either commit."""
    command = ["git", "merge-base", "--is-ancestor", commit, tip]
    done = subprocess.run(command, cwd=home.folder, capture_output=True, check=False)
    return bool(commit and tip) and done.returncode == 0


def commits_up_to(home: Home, commit: str, limit: int | None = None) -> "Sequence[Commit]":
    """Returns the entries that a ledger which ends with this commit has, newest first; none for ""."""
    return _entries(home, commit, limit) if commit else ()


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


def read_at(home: Home, commit: str, kind: type[R]) -> R | None:
    """Returns a record of a commit, or None if it is missing."""
    path = records.path_of(kind, records.RUN)
    text = text_at(home, commit, path) if commit else None
    return None if text is None else records.loads(kind, text, source=f"{commit[:9]}:{path}")


def put_records(home: Home, *optional: Record | None, index: Path) -> None:
    """Puts records into an index of git, without files; None is skipped."""
    for record in filter(None, optional):
        put_text(home, records.path_of(type(record), records.RUN), records.dumps(record), index=index)


def put_text(home: Home, path: str | Path, text: str, *, index: Path) -> None:
    """Puts a text into an index of git, as the file at that path."""
    blob = git("hash-object", "-w", "--stdin", folder=home.folder, text=text, index=index)
    git("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}", folder=home.folder, index=index)


def append(
    home: Home,
    put: Callable[[str, Path], None],
    *,
    after: str | None,
    code: str = "",
    like: str = "",
    subject: str,
    trailers: str,
) -> str:
    """Makes the commit on top of the ledger, moves the branch to it, and returns it.

    Where a note came in between it is made anew on top of that. Raises ReleaseError, and changes nothing, if
    the newest entry is not `after`.

    Args:
        home: whose nights these are.
        put: puts the files of a commit that follows this one into an index of git.
        after: the entry that it follows; None: whichever is the newest.
        code: a second parent.
        like: a commit of the ledger whose files this one has again; they are neither read nor stored anew.
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
        parents = [parent for parent in (tip, code) if parent]
        words = (*_identity(home), *options, "commit-tree")
        with tempfile.TemporaryDirectory() as scratch:
            index = Path(scratch) / "index"
            put(tip, index)
            words = (*words, git("write-tree", folder=home.folder, index=index), *sign)
            words = (*words, *(word for parent in parents for word in ("-p", parent)), "-F", "-")
            text = f"{subject}\n\n{trailers}"
            commit = git(*words, folder=home.folder, text=text, at=clock.now(), index=index)
            known = [*parents, *([f"{like}^{{tree}}"] if like else [])]
            kept = _store(home, commit, known, index=index)
        try:
            move_to(home, commit, expected=tip, message=subject)
            return commit
        except ReleaseError as error:
            if ledger_tip(home) == tip:  # else by a note, or it is said in the next round
                raise _moved(after or tip, error) from None
        finally:
            kept.unlink(missing_ok=True)


def _store(home: Home, commit: str, known: Sequence[str], *, index: Path) -> Path:
    """Stores a commit with all that is not known, as one pack; returns the file that has git keep it.

    `git gc --prune=now` removes objects that no branch has when it begins, even where one has them before it
    ends; but no pack that is kept, and none that came after it began. So do `git fetch` and `git push` it.
    """
    revisions = "\n".join([commit, *(f"^{one}" for one in known), ""])
    base = index.parent / "pack"
    name = git("pack-objects", "--revs", "-q", str(base), folder=home.folder, text=revisions, index=index)
    packs = checkout.objects_of(home.folder) / "pack"
    for old in packs.glob("*.keep"):  # of a process that was killed
        with suppress(OSError):  # it is another user's, or gone meanwhile
            if time.time() - old.stat().st_mtime > HOUR_S and old.read_text(errors="replace") == KEPT:
                old.unlink()
    kept, pack = packs / f"pack-{name}.keep", Path(f"{base}-{name}.pack")
    for left in reversed(range(STORE_TRIES)):
        try:
            git("index-pack", "--stdin", f"--keep={KEPT.strip()}", folder=home.folder, pack=pack)
            break
        except ReleaseError:  # `git prune --expire=now` removes what is half written
            if not left:
                kept.unlink(missing_ok=True)
                raise
    return kept


def _moved(after: str, error: ReleaseError | None = None) -> ReleaseError:
    why = f" ({error})" if error else ""
    return ReleaseError(
        f"another night moved the ledger from {after[:9] or 'nothing'} first{why}; nothing is changed, "
        f"run this again"
    )


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


def _identity(home: Home) -> list[str]:
    """Options that name a committer if git knows none, as in a container."""
    try:
        git("var", "GIT_COMMITTER_IDENT", folder=home.folder)
    except ReleaseError:
        return ["-c", "user.name=Daybreak", "-c", "user.email=daybreak@localhost"]
    return []


def _damaged(commit: str, message: str) -> ReleaseError:
    where = f"commit {commit[:9]} of the ledger" if commit else "the ledger"
    return ReleaseError(
        f"{where} cannot be read: {' '.join(message.split())[:200]}; repair it with: daybreak repair"
    )


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
