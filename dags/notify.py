"""Calls the command line from a DAG, and notifies people of what fails or takes too long.

A message goes to the task log and to the notifier named in params.yaml (`notify.command`).
"""

import json
import logging
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

MLFLOW_UI = os.environ.get("MLFLOW_UI", "http://127.0.0.1:5000")
NOTHING_TO_DO = 99
HOME = Path(os.environ.get("PIPELINE_HOME", Path(__file__).resolve().parents[1]))


def night_of(run_id: str) -> str:
    """Returns the name of the night that a run of the DAG is; the same after a clear."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", run_id).strip(".-_") or "night"


def record_of(run_id: str, name: str) -> dict[str, Any]:
    """Returns a record of the night that a run of the DAG is; {} before its stage wrote it."""
    call = [sys.executable, "-m", "pipeline", "show", name, "--night", night_of(run_id)]
    done = subprocess.run(call, cwd=HOME, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode not in (0, NOTHING_TO_DO):
        raise RuntimeError(f"{' '.join(call[1:])} failed: {done.stderr.strip()}")
    record: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return record


def command(arguments: str, folder: str = "") -> str:
    """Returns a shell command that runs the command line of the pipeline in a folder below PIPELINE_HOME.

    It runs this interpreter: the standard input of a task is a socket, so bash may take itself for a remote
    shell and read ~/.bashrc, which may put another python first.
    """
    path = f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"'
    return f"{path} && cd {shlex.quote(str(HOME))}{folder} && python -m pipeline {arguments}"


def tell(text: str, *options: str) -> None:
    """Logs the text and hands it to the notifier; a failure of the notifier is logged, not raised."""
    log.error(text)
    call = [sys.executable, "-m", "pipeline", "notify", *options]
    try:
        subprocess.run(call, cwd=HOME, input=text, capture_output=True, text=True, timeout=120, check=True)
    except subprocess.CalledProcessError as error:
        log.error("the notifier failed: %s", error.stderr.strip())
    except (OSError, subprocess.TimeoutExpired) as error:
        log.error("the notifier failed: %s; look at notify.command in params.yaml", error)


def failed(context: Any) -> None:
    """Notifies of a task that failed for good; the command line adds the sentence that the stage left."""
    task = context["ti"]
    text = f"Daybreak: {task.dag_id}.{task.task_id} failed in run {task.run_id}"
    tell(text, "--night", night_of(task.run_id), "--stage", task.task_id)


def late(*, context: Any, hours: float) -> None:
    """Notifies that Airflow's deadline has passed; the night ends by its own deadline, not by this one."""
    run = context["dag_run"]["dag_run_id"]
    tell(f"Daybreak: run {run} was not done {hours:g} hours after it was due; look at its tasks")
