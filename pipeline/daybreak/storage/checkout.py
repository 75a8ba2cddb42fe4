"""Runs git: what a checkout holds, and the worktrees of a home."""

import contextlib
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from daybreak.contract.errors import ParamsError, ReleaseError

log = logging.getLogger(__name__)

COMPILED = "__pycache__"
_SETTINGS = {
    "core.hooksPath": os.devnull,
    # settings of a user that would change what is written or read here
    "color.diff": "false",
    "color.ui": "false",
    "core.commentChar": "#",
    "core.quotePath": "false",
    "diff.relative": "false",
    "i18n.commitEncoding": "UTF-8",
    "i18n.logOutputEncoding": "UTF-8",
    "log.showSignature": "false",
    "status.showUntrackedFiles": "normal",
    "trailer.separators": ":",
    "worktree.useRelativePaths": "false",
}
OPTIONS = tuple(word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}"))

LEAD = Path("var/lead.json")


def git(
    *arguments: str,
    folder: Path | None = None,
    index: Path | None = None,
    text: str | None = None,
    pack: Path | None = None,
    at: float | None = None,
) -> str:
    """Returns the output of a git command, stripped; ReleaseError with git's own message if it fails.

    The command reads `text`, or the file `pack`. `at` is the time of a commit in seconds since 1970; without
    it git reads the clock of the machine. Objects for a private `index` are written beside it, to the folder
    `objects`, where no `git gc` of the repository removes them.
    What a branch names is on the disk before the branch is moved; by git's default only the branch would be.
    So is an index that is written; reading commands, such as `status`, write none. Hooks of the user do not
    run: the branch of the ledger moves many times a night, and none of it is the user's work. Nor does the
    user's configuration change what the output looks like (`OPTIONS`).
    """
    dates = {f"GIT_{who}_DATE": f"@{int(at)}" for who in ("AUTHOR", "COMMITTER")} if at is not None else {}
    environment = {"GIT_OPTIONAL_LOCKS": "0", **dates, **os.environ, "LC_ALL": "C"}
    if index and folder:
        own = index.parent / "objects"
        own.mkdir(exist_ok=True)
        shared = json.dumps(str(objects_of(folder)), ensure_ascii=False)  # git reads C's quotes
        environment |= {"GIT_INDEX_FILE": str(index), "GIT_OBJECT_DIRECTORY": str(own)}
        environment |= {"GIT_ALTERNATE_OBJECT_DIRECTORIES": shared}
    with pack.open("rb") if pack else contextlib.nullcontext() as file:
        done = subprocess.run(
            ["git", "-c", f"core.fsync={'none' if index else 'all'}", *OPTIONS, *arguments],
            cwd=folder,
            env=environment,
            **({"stdin": file} if file else {"input": text}),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        message = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        failure = ReleaseError(
            _of_another_user(message) or f"git {arguments[0]} failed: {message}; fix it and run this again"
        )
        from daybreak.contract import disk

        number = disk.number_in(message, at=folder or Path())
        raise failure from (OSError(number, message) if number else None)
    return done.stdout.strip()


def objects_of(folder: Path) -> Path:
    """Returns where git keeps the objects of a checkout, which all of its worktrees share."""
    return Path(git("rev-parse", "--path-format=absolute", "--git-path", "objects", folder=folder))


def _of_another_user(message: str) -> str:
    """Returns a sentence for git's refusal of a repository that another user owns; "" for other messages."""
    refused = re.search(r"dubious ownership in repository at '([^']+)'", message)
    if refused is None:
        return ""
    owner = "another user"
    with contextlib.suppress(OSError):  # which this user may not look at
        owner = f"user {Path(refused[1]).stat().st_uid}"
    return (
        f"{refused[1]} is {owner}'s, and git reads it for no other (this is user {os.getuid()}); run this as "
        f"its owner, or allow it: git config --global --add safe.directory {shlex.quote(refused[1])}"
    )


@dataclass(frozen=True, kw_only=True)
class Membership:
    """What a home that shares another's Airflow, MLflow and router keeps of that, in `LEAD`."""

    lead: str  # folder of the home whose fleet.yaml names this one; kept as the way from here
    member: str  # this home's own folder; kept as the way from there
    model: str  # which distinguishes the homes
    own_registry: bool  # its versions were in an MLflow of its own before, and stay there

    def write(self, home: Path) -> None:
        """Writes it to the home that is a member."""
        from daybreak.contract.records import replace_text

        ways = {"lead": os.path.relpath(self.lead, home), "member": os.path.relpath(home, self.lead)}
        (home / LEAD).parent.mkdir(parents=True, exist_ok=True)
        replace_text(home / LEAD, json.dumps(asdict(self) | ways) + "\n")


def membership(home: Path) -> Membership | None:
    """Returns of which fleet a home is a member; None for one that is by itself, or leads.

    Raises ParamsError where `daybreak fleet` did not write the file, and in a home that was copied or moved
    away from its fleet, since a copy would write to the fleet's versions, and delete from them.
    """
    member = kept_membership(home)
    if member and member.member != str(home.resolve()):
        raise ParamsError(
            f"{home} was copied or moved from {member.member}, a member of the fleet of {member.lead}, whose "
            f"MLflow keeps its versions; name it in {Path(member.lead) / 'fleet.yaml'} and run daybreak "
            f"fleet there, or remove {home / LEAD} and begin without versions"
        )
    return member


def kept_membership(home: Path) -> Membership | None:
    """Returns the membership as it is kept, also in a copy of the home that is the member."""
    try:
        kept = Membership(**json.loads((home / LEAD).read_text()))
        lead = (home / kept.lead).resolve()
        return replace(kept, lead=str(lead), member=str((lead / kept.member).resolve()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ParamsError(
            f"{home / LEAD} cannot be read ({error}); write it again by daybreak fleet in the home "
            f"with fleet.yaml"
        ) from None


def unignored(
    folder: Path, *, leaving_out: Iterable[str] = (), tracked: bool = False, around: tuple[Path, ...] = ()
) -> list[Path]:
    """Returns the files in a folder that git does not ignore, committed or not, in order of their paths.

    The files of a link to a folder, and of another repository in it, count too. The list is empty outside a
    checkout, and where git ignores all there is, as of a package in `.venv`.

    Args:
        folder: whose files are listed.
        leaving_out: names in it that do not count.
        tracked: only files that are committed, or added to be.
        around: the folders whose listing led here by a link; a link back to one of them is not followed.
    """
    others = () if tracked else ("--others", "--exclude-standard")
    words = ["git", "ls-files", "--cached", *others, "-z", "--", ".", *(f":!{name}" for name in leaving_out)]
    done = subprocess.run(words, cwd=folder, capture_output=True, check=False)
    named = (
        [folder / name for name in os.fsdecode(done.stdout).split("\0") if name]
        if not done.returncode
        else []
    )
    around = (*around, folder.resolve())
    files = [path for path in named if path.is_file()]
    for path in set(named).difference(files):
        target = path.resolve()
        if path.is_dir() and not any(each.is_relative_to(target) for each in around):
            inside = unignored(target, tracked=tracked, around=around) or walked(target)
            files += [path / file.relative_to(target) for file in inside]
    return sorted(path for path in dict.fromkeys(files) if COMPILED not in path.parts)


def walked(folder: Path) -> Iterator[Path]:
    """Yields all files below a folder, through links too, but for what git and Python keep there."""
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if name not in (".git", COMPILED)]
        yield from (Path(parent, name) for name in names if name != ".git")


def add_worktree(home: Path, folder: Path, commit: str) -> None:
    """Checks a commit out in a new folder below the home; the caller holds `folders_alone`.

    Its `.git` leads to the home by a relative path. With Git's absolute path, a night of a copied home would
    run in the original's repository, and take the original for its home.
    """
    prune_worktrees(home)
    git("worktree", "add", "--force", "--detach", str(folder), commit, folder=home)
    link = folder / ".git"
    kept = Path(link.read_text().removeprefix("gitdir: ").strip())
    link.write_text(f"gitdir: {relative(kept, to=folder, inside=home)}\n")


def relative(path: Path, *, to: Path, inside: Path) -> Path:
    """Returns the path as it is from another folder of a home, so that it holds wherever the home lies.

    It stays absolute where one of the two is not inside of the home, as on another disk by a link.
    """
    folder, target, inside = to.resolve(), path.resolve(), inside.resolve()
    if folder.is_relative_to(inside) and target.is_relative_to(inside):
        return Path(os.path.relpath(target, folder))
    return path


def remove_worktrees(home: Path, folders: Iterable[Path]) -> None:
    """Removes worktrees, also partial ones left by a killed call, which git refuses to remove."""
    _find_worktrees(home)
    for folder in folders:
        shutil.rmtree(folder)
    prune_worktrees(home)


def prune_worktrees(home: Path) -> None:
    """Has git forget the worktrees of nights that are gone; the caller holds `folders_alone`.

    While git adds a worktree it is locked, and stays so, and is never forgotten, where that is killed.
    """
    _find_worktrees(home)
    common = Path(git("rev-parse", "--path-format=absolute", "--git-common-dir", folder=home))
    for locked in common.glob("worktrees/*/locked"):
        place = locked.with_name("gitdir")
        is_night = not place.exists() or Path(place.read_text().strip()).is_relative_to(home / "nights")
        if is_night and locked.read_text().strip() == "initializing":
            locked.unlink()
    git("worktree", "prune", folder=home)


def _find_worktrees(home: Path) -> None:
    """Tells git where the nights are now: it would forget those of a home that was moved.

    A copy's list has the folders of the original, so Git would forget the copy's folders.
    """
    common = Path(git("rev-parse", "--path-format=absolute", "--git-common-dir", folder=home))
    for link in home.glob("nights/*/.git"):
        kept = (link.parent / link.read_text().removeprefix("gitdir: ").strip()) if link.is_file() else home
        place = common / "worktrees" / kept.name / "gitdir"  # of this repository, whatever the link says
        if place.exists() and place.read_text().strip() != str(link):
            place.write_text(f"{link}\n")


@contextmanager
def folders_alone(home: Path) -> Iterator[None]:
    """Holds the lock of the folders of nights: one process at a time makes or deletes any; others wait."""
    from daybreak.storage.journal import Timeout, alone

    path = home / "var" / "nights.lock"
    lock = alone(path, wait=False)
    try:
        lock.acquire()
    except Timeout:
        log.info("another process opens or prunes a night; waiting until it is done")
        lock = alone(path)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
