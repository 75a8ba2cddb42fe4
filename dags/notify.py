"""Calls the command line from a DAG, and notifies people of what fails or takes too long.

A message goes to the task log and to the notifiers named in params.yaml (`notify.command`, `notify.urls`).
"""

import json
import logging
import os
import re
import shlex
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import homes
from homes import Home

log = logging.getLogger(__name__)

MLFLOW_UI = os.environ.get("MLFLOW_UI", "http://127.0.0.1:5000")
TRAINING = "workflowType=machine_learning"  # without it, MLflow opens in its view for language models
NOTHING_TO_DO = 99


def night_of(run_id: str) -> str:
    """Returns the name of the night that a run of the DAG is; the same after a clear."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", run_id).strip(".-_") or "night"


def record_of(home: Home, run_id: str, name: str) -> dict[str, Any]:
    """Returns a record of the night that a run of the DAG is; {} before its stage wrote it."""
    call = [sys.executable, "-P", "-m", "daybreak", "show", name, "--night", night_of(run_id)]
    done = subprocess.run(
        call, cwd=home.folder, env=environment(home), capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode not in (0, NOTHING_TO_DO):
        raise RuntimeError(f"{' '.join(call[1:])} failed: {done.stderr.strip()}")
    record: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return record


def update_champion(context: Any, result: Any = None) -> None:
    """Puts into the update of the champion's asset which version serves, once a task has succeeded."""
    home = homes.of_dag(context["ti"].dag_id)
    call = [sys.executable, "-P", "-m", "daybreak", "champion"]
    given = environment(home)
    try:
        said = subprocess.run(call, cwd=home.folder, env=given, capture_output=True, timeout=120, check=True)
        context["outlet_events"][home.champion].extra = json.loads(said.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        log.error("the update of %s does not say which version serves: %s", home.champion.uri, error)


def update_predictions(context: Any, result: Any = None) -> None:
    """Puts into the update of the predictions' asset what was written, once the task has succeeded."""
    home = homes.of_dag(context["ti"].dag_id)
    try:
        context["outlet_events"][home.predictions].extra = record_of(home, context["run_id"], "predictions")
    except (OSError, subprocess.SubprocessError, RuntimeError, ValueError) as error:
        log.error("the update of %s does not say what was written: %s", home.predictions.uri, error)


def environment(home: Home) -> dict[str, str]:
    """Returns the environment in which Daybreak's command line runs for that home."""
    return {**os.environ, "DAYBREAK_HOME": str(home.folder)}


def command(home: Home, arguments: str, folder: str = "") -> str:
    """Returns a shell command that runs Daybreak's command line in a folder below a home.

    It runs this interpreter: the standard input of a task is a socket, so bash may take itself for a remote
    shell and read ~/.bashrc, which may put another python first.
    """
    path = f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"'
    place = shlex.quote(str(home.folder))
    named = f"export DAYBREAK_HOME={place} && " if home.model else ""
    return f"{path} && {named}cd {place}{folder} && python -P -m daybreak {arguments}"


def tell(home: Home, text: str, *options: str) -> None:
    """Hands the text to the notifiers and logs it; a failure of theirs is logged, not raised."""
    call = [sys.executable, "-P", "-m", "daybreak", "notify", *options]
    try:
        done = subprocess.run(
            call,
            cwd=home.folder,
            env=environment(home),
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode == NOTHING_TO_DO:
            log.info(done.stderr.strip())
            return
        log.error(text)
        if done.returncode:
            log.error("the notifier failed: %s", done.stderr.strip())
    except (OSError, subprocess.TimeoutExpired) as error:
        log.error("%s; the notifier failed: %s; look at notify in params.yaml", text, error)


def failed(context: Any) -> None:
    """Notifies of a task that failed for good; the command line adds the sentence that the stage left."""
    task = context["ti"]
    text = f"Daybreak: {task.dag_id}.{task.task_id} failed in run {task.run_id}"
    tell(homes.of_dag(task.dag_id), text, "--night", night_of(task.run_id), "--stage", task.task_id)


DEFAULT_ARGS = {"retries": 2, "retry_delay": timedelta(seconds=30), "on_failure_callback": failed}


def late(*, context: Any, hours: float) -> None:
    """Notifies of a night that missed its own deadline, which the command line knows, at Airflow's.

    That of a backfill has passed before it begins; its night is late by its own deadline alone.
    """
    dag, run = context["dag_run"]["dag_id"], context["dag_run"]["dag_run_id"]
    if context["dag_run"]["run_type"] == "backfill":
        return
    text = f"Daybreak: run {run} of {dag} has opened no night {hours:g} hours after it was due"
    tell(homes.of_dag(dag), text, "--late", "--night", night_of(run))
