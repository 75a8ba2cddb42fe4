"""How does a DAG call the command line, and who hears when that fails or takes too long?

A message goes to the task log and to the notifier named in params.yaml (`notify.command`).
"""

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
HOME = Path(os.environ.get("PIPELINE_HOME", Path(__file__).resolve().parents[1]))


def night_of(run_id: str) -> str:
    """Name of the night that a run of the DAG is; the same after a clear."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", run_id).strip(".-_") or "night"


def folder_of(run_id: str) -> Path:
    """Folder of the night that a run of the DAG is."""
    return HOME / "nights" / night_of(run_id)


def command(arguments: str, folder: str = "") -> str:
    """Shell command that runs the command line of the pipeline in a folder below PIPELINE_HOME.

    By this interpreter: the standard input of a task is a socket, for which bash may take itself for a remote
    shell and read ~/.bashrc, which may put another python first.
    """
    path = f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"'
    return f"{path} && cd {shlex.quote(str(HOME))}{folder} && python -m pipeline {arguments}"


def tell(text: str) -> None:
    """Log the text and hand it to the notifier; a notifier that fails is logged, not raised."""
    log.error(text)
    call = [sys.executable, "-m", "pipeline", "notify"]
    try:
        subprocess.run(call, cwd=HOME, input=text, capture_output=True, text=True, timeout=120, check=True)
    except subprocess.CalledProcessError as error:
        log.error("the notifier failed: %s", error.stderr.strip())
    except (OSError, subprocess.TimeoutExpired) as error:
        log.error("the notifier failed: %s; look at notify.command in params.yaml", error)


def failed(context: Any) -> None:
    """Callback of a task that failed for good; tells the sentence that the stage left behind."""
    task = context["ti"]
    left = folder_of(task.run_id) / "data/run" / f"{task.task_id}.error"
    why = left.read_text().strip() if left.exists() else "look at its log"
    tell(f"Daybreak: {task.dag_id}.{task.task_id} failed in run {task.run_id}: {why}")


def late(*, context: Any, hours: float) -> None:
    """Callback of Airflow's deadline. It only tells: the night ends itself by its own deadline."""
    run = context["dag_run"]["dag_run_id"]
    tell(f"Daybreak: run {run} was not done {hours:g} hours after it was due; look at its tasks")
