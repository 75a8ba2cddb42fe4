"""Tries rules and package of a team on one day and one batch, as far as weights loaded again: `try`.

    daybreak try

It runs in a process that has what a rented machine would get: the files that git lists, in another folder,
and Daybreak. So a module that git ignores is missed here, and not an hour into the first night.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import IO, Any

from daybreak.contract import code_path, errors
from daybreak.contract.errors import JobError, PipelineError
from daybreak.storage import checkout
from daybreak.storage.home import VARIABLE, Home

# Ctrl-C ends the process at once, also amid its imports; who waits for it says so.
CHECKS = """\
import runpy, signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
runpy.run_module("daybreak.extensions.trial.row_checks", run_name="__main__", alter_sys=True)
"""
CODE, FAULT, DOUBTS = "code", "fault.json", "doubts.json"  # in the folder of the process


def rehearse(home: Path, day: date | None = None, *, lines: IO[str] | None = None) -> tuple[str, ...]:
    """Runs one day through the package of `home`, and prints a line for each check.

    Args:
        home: folder of params.yaml, in a git checkout.
        day: whose rows to take; the newest whose labels are known if None.
        lines: file that the lines are written to; standard output if None.

    Returns:
        Sentences on what a night would refuse, or not be able to judge.

    Raises:
        PipelineError: what the team's code does wrong.
    """
    Home(home).params_of(home)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch).resolve()
        _copy_code(home, folder / CODE)
        frame = Path(__file__).resolve().parents[3]
        environment = {**os.environ, **code_path.environment(folder / CODE), VARIABLE: str(home.resolve())}
        environment["PYTHONPATH"] += f"{os.pathsep}{frame}"
        words = [sys.executable, "-c", CHECKS, str(home.resolve()), str(day or "")]
        to: dict[str, Any] = {"stdout": lines, "stderr": subprocess.STDOUT} if lines else {}
        status = subprocess.run(words, cwd=folder, env=environment, check=False, **to).returncode
        if (folder / FAULT).exists():
            fault = json.loads((folder / FAULT).read_text())
            kind: type[PipelineError] = getattr(errors, fault["kind"])
            raise kind(fault["text"])
        if status:
            raise JobError(f"the process ended with status {status}; look at what it printed above")
        return tuple(json.loads((folder / DOUBTS).read_text()))


def _copy_code(home: Path, folder: Path) -> None:
    """Copies the files of the checkout that git does not ignore, uncommitted ones too."""
    for path in checkout.unignored(home):
        to = folder / path.relative_to(home)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
