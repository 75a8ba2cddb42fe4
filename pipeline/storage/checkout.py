"""Runs git, and finds the home: the checkout whose nights these are."""

import logging
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.contract.errors import ParamsError, ReleaseError

log = logging.getLogger(__name__)


def git(
    *arguments: str, folder: Path | None = None, index: Path | None = None, text: str | None = None
) -> str:
    """Returns the output of a git command, stripped; ReleaseError with git's own message if it fails."""
    environment = {**os.environ, **({"GIT_INDEX_FILE": str(index)} if index else {})}
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder, env=environment, input=text, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        message = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise ReleaseError(f"git {arguments[0]} failed: {message}; fix it and run this again")
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
