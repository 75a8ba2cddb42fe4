"""What served, when, why, and at what cost? The ledger: the git branch `nights`.

One commit a night: its tree is the code commit's tree with the night's params.yaml, dvc.lock and
records in it; its parents are the night before and the code commit. The branch moves by
compare-and-swap (`git update-ref NEW OLD`), so of two nights that follow the same one, one wins. A
rollback is a commit whose tree is that of the night which made the version that serves again.
"""

import itertools
import logging
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import records
from pipeline.errors import DataError, ParamsError, ReleaseError
from pipeline.records import (
    Batch,
    Champion,
    Dataset,
    Evaluation,
    Night,
    Plan,
    Profile,
    R,
    Record,
    Release,
    Report,
    Training,
    Verdict,
    Version,
)

log = logging.getLogger(__name__)

BRANCH = "refs/heads/nights"
_FIRST = "0" * 40  # git's name for "this ref must not exist yet"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One commit of the ledger and the records in it; None where the night did not get that far."""

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
    champion: Champion | None = None
    release: Release | None = None

    @property
    def serving(self) -> Release | None:
        """Who served once this commit was made."""
        return self.release or self.champion


_KINDS: tuple[type[Record], ...] = (
    Night, Batch, Report, Dataset, Profile, Plan, Training, Evaluation, Version, Verdict, Champion, Release,
)  # fmt: skip


def git(
    *arguments: str, folder: Path | None = None, index: Path | None = None, text: str | None = None
) -> str:
    """Output of a git command, stripped; ReleaseError with git's own words if it fails."""
    environment = {**os.environ, **({"GIT_INDEX_FILE": str(index)} if index else {})}
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder, env=environment, input=text, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        told = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise ReleaseError(f"git {arguments[0]} failed: {told}; mend it and run this again")
    return done.stdout.strip()


def home() -> Path:
    """Folder that holds `nights/` and `var/`: $PIPELINE_HOME, or the main worktree of this checkout."""
    if given := os.environ.get("PIPELINE_HOME"):
        return Path(given).resolve()
    try:
        common = git("rev-parse", "--path-format=absolute", "--git-common-dir")
    except ReleaseError:
        raise ParamsError(
            f"{Path.cwd()} is in no git checkout; run in a clone of the repository, or set PIPELINE_HOME"
        ) from None
    return Path(common).parent


def ledger_tip() -> str:
    """Newest commit of the ledger; "" before the first night."""
    return git("for-each-ref", "--format=%(objectname)", BRANCH, folder=home())


def text_at(commit: str, path: str | Path) -> str | None:
    """Text of a file in a commit, or None where it is missing."""
    try:
        return git("show", f"{commit}:{path}", folder=home()) + "\n"
    except ReleaseError:
        return None


def read_at(commit: str, kind: type[R]) -> R | None:
    """A record of a commit, or None where it is missing."""
    path = records.path_of(kind)
    text = text_at(commit, path) if commit else None
    return None if text is None else records.loads(kind, text, source=f"{commit[:9]}:{path}")


def champion_at(commit: str) -> Champion | None:
    """Who serves after that commit of the ledger."""
    release = read_at(commit, Release) or read_at(commit, Champion)
    if release is None:
        return None
    return Champion(**{name: getattr(release, name) for name in Release.__dataclass_fields__})


def history(limit: int | None = None) -> list[Entry]:
    """The ledger, newest first. A record of an older form counts as missing."""
    tip = ledger_tip()
    if not tip:
        return []
    commits = _commits(tip, limit)
    entries = []
    for (commit, subject, _, rollback), found in zip(commits, _records_at(commits), strict=True):
        if isinstance(found.get("night"), Night):
            entries.append(Entry(commit=commit, subject=subject, rollback=bool(rollback), **found))
    return entries


def commit_night(night: Night, *, message: str, folder: Path = Path()) -> str:
    """Commit the night in `folder` to the ledger and return the commit; the same one if asked again.

    Raises ReleaseError, and changes nothing, if another night has moved the ledger since `open`.
    """
    tip = ledger_tip()
    for commit, _, name, rollback in _commits(tip) if tip else []:
        if commit == night.previous:
            break
        if name == night.id and not rollback:
            return commit
    if tip != night.previous:
        winner = read_at(tip, Night)
        raise ReleaseError(
            f"night {night.id} follows {night.previous[:9] or 'nothing'}, but night "
            f"{winner.id if winner else '?'} has moved the ledger to {tip[:9] or 'nothing'} since; "
            f"nothing is changed, open a new night for {night.day}"
        )
    files = [Path("params.yaml"), Path("dvc.lock"), *sorted((folder / records.RUN).glob("*.json"))]
    files += sorted((folder / records.RUN).glob("*.error"))
    names = [str(f.relative_to(folder) if f.is_absolute() or folder != Path() else f) for f in files]
    names = [name for name in names if (folder / name).exists()]
    with tempfile.TemporaryDirectory() as scratch:
        index = Path(scratch) / "index"  # the user's own index is left alone, also with --here
        git("read-tree", night.code_commit, folder=folder, index=index)
        git("add", "--force", "--", *names, folder=folder, index=index)
        tree = git("write-tree", folder=folder, index=index)
    parents = [night.previous] * bool(night.previous) + [night.code_commit]
    return _move(tree, parents, expected=night.previous, message=f"{message}\n\nNight: {night.id}\n")


def commit_rollback(
    target: str, release: Release, verdict: Verdict, *, expected_tip: str, message: str
) -> str:
    """Commit the tree of `target`, with this release and verdict in it, on top of `expected_tip`.

    Raises ReleaseError, and changes nothing, if the ledger is no longer at `expected_tip`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        index = Path(scratch) / "index"
        git("read-tree", target, folder=home(), index=index)
        for record in (release, verdict):
            blob = git("hash-object", "-w", "--stdin", folder=home(), text=records.dumps(record))
            entry = f"100644,{blob},{records.path_of(type(record))}"
            git("update-index", "--add", "--cacheinfo", entry, folder=home(), index=index)
        tree = git("write-tree", folder=home(), index=index)
    trailers = f"Night: {release.night}\nRollback: {release.champion}\n"
    return _move(tree, [expected_tip], expected=expected_tip, message=f"{message}\n\n{trailers}")


def _move(tree: str, parents: Sequence[str], *, expected: str, message: str) -> str:
    flags = [word for parent in parents for word in ("-p", parent)]
    commit = git(*_identity(), "commit-tree", tree, *flags, "-F", "-", folder=home(), text=message)
    try:
        git("update-ref", "-m", message.splitlines()[0], BRANCH, commit, expected or _FIRST, folder=home())
    except ReleaseError as error:
        raise ReleaseError(
            f"another night moved the ledger from {expected[:9] or 'nothing'} first ({error}); "
            f"nothing is changed, open a new night"
        ) from None
    return commit


def _identity() -> list[str]:
    """A name to commit under, where git knows none, as in a container."""
    try:
        git("var", "GIT_COMMITTER_IDENT", folder=home())
    except ReleaseError:
        return ["-c", "user.name=Daybreak", "-c", "user.email=daybreak@localhost"]
    return []


def _commits(tip: str, limit: int | None = None) -> list[tuple[str, str, str, str]]:
    """Commit, subject, night and rollback of the ledger's commits, newest first."""
    trailers = [f"%(trailers:key={key},valueonly,separator=%x20)" for key in ("Night", "Rollback")]
    count = [] if limit is None else [f"--max-count={limit}"]
    form = "%x00".join(["%H", "%s", *trailers])
    lines_of_log = git("log", "--first-parent", *count, f"--format={form}", tip, folder=home())
    lines = (line.split("\0") for line in lines_of_log.splitlines())
    # The first night's only parent is a code commit, which names no night.
    return [(c, s, n, r) for c, s, n, r in itertools.takewhile(lambda line: bool(line[2]), lines)]


def _records_at(commits: Sequence[tuple[str, str, str, str]]) -> list[dict[str, Any]]:
    """Records of each commit by name, read by one `git cat-file`."""
    paths = {kind.__name__.lower(): records.path_of(kind) for kind in _KINDS}
    asked = [(c, name, path) for c, *_ in commits for name, path in paths.items()]
    request = "".join(f"{commit}:{path}\n" for commit, _, path in asked)
    done = subprocess.run(
        ["git", "cat-file", "--batch"], cwd=home(), input=request.encode(), capture_output=True, check=True
    )
    found: dict[str, dict[str, Any]] = {commit: {} for commit, *_ in commits}
    at = 0
    for commit, name, path in asked:
        end = done.stdout.index(b"\n", at)
        header, at = done.stdout[at:end].split(), end + 1
        if header[-1] == b"missing":
            continue
        size = int(header[2])
        text, at = done.stdout[at : at + size].decode(), at + size + 1
        kind = next(k for k in _KINDS if records.path_of(k) == path)
        try:
            found[commit][name] = records.loads(kind, text, source=f"{commit[:9]}:{path}")
        except DataError as error:
            log.warning("%s", error)
    return [found[commit] for commit, *_ in commits]
