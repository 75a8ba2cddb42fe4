"""Runs git, and finds the home: the checkout whose nights these are."""

import os
import subprocess
from pathlib import Path

from pipeline.contract.errors import ParamsError, ReleaseError


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
