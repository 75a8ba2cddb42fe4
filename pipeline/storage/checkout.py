"""Runs git, and finds the home: the checkout whose nights these are."""

import logging
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.contract.errors import ParamsError, ReleaseError

log = logging.getLogger(__name__)


def git(
    *arguments: str, folder: Path | None = None, index: Path | None = None, text: str | None = None
) -> str:
    """Returns the output of a git command, stripped; ReleaseError with git's own message if it fails.

    What a branch names is on the disk before the branch is moved; by git's default only the branch would be.
    """
    environment = {**os.environ, **({"GIT_INDEX_FILE": str(index)} if index else {})}
    done = subprocess.run(
        ["git", "-c", "core.fsync=committed,loose-object", *arguments],
        cwd=folder, env=environment, input=text, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        message = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        failure = ReleaseError(f"git {arguments[0]} failed: {message}; fix it and run this again")
        from pipeline.contract import disk

        number = disk.number_in(message)
        raise failure from (OSError(number, message) if number else None)
    return done.stdout.strip()


def home() -> Path:
    """Returns the folder with `nights/` and `var/`: $PIPELINE_HOME, or the main worktree of this checkout."""
    if given := os.environ.get("PIPELINE_HOME"):
        return Path(given).resolve()
    try:
        common = git("rev-parse", "--path-format=absolute", "--git-common-dir")
    except ReleaseError:
        raise ParamsError(
            f"{Path.cwd()} is not in a git checkout; run in a clone of the repository, or set PIPELINE_HOME"
        ) from None
    return Path(common).parent


def remove_worktrees(home: Path, folders: Iterable[Path]) -> None:
    """Removes worktrees, also those of which a killed call left only a part, which git refuses to remove."""
    for folder in folders:
        shutil.rmtree(folder)
    git("worktree", "prune", folder=home)


@contextmanager
def folders_alone(home: Path) -> Iterator[None]:
    """Holds the lock of the folders of nights: one process at a time makes or deletes any; others wait."""
    from pipeline.storage.journal import Timeout, alone

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
