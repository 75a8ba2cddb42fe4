"""Calls the command line from a DAG, and notifies people of what fails or takes too long.

A message goes to the task log and to the notifiers named in params.yaml (`notify.command`, `notify.urls`).
"""

import json
import logging
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from airflow.sdk import Connection, Variable
from airflow.sdk.log import mask_secret
from airflow_versions import AirflowSkipException
from home import Home, night_of, of_dag

log = logging.getLogger(__name__)

DAYBREAK = [sys.executable, "-P", "-m", "daybreak"]

TRAINING = "workflowType=machine_learning"  # without it, MLflow opens in its view for language models
NOTHING_TO_DO = 99
LATE = f"{Path(__file__).stem}.late"  # by which Airflow finds the function below
PARTS = ("host", "port", "login", "password", "schema", "extra")
# Of Airflow's own Python, which another one would take for its own.
OTHERS = ("PYTHONPATH", "PYTHONHOME") if Path(DAYBREAK[0]).parent != Path(sys.executable).parent else ()


def mlflow_ui(home: Home) -> str:
    """Returns the address of MLflow's pages, as the home or this environment names it."""
    return home.env.get("MLFLOW_UI") or os.environ.get("MLFLOW_UI", "http://127.0.0.1:5000")


def record_of(home: Home, run_id: str, name: str) -> dict[str, Any]:
    """Returns a record of the night that a run of the DAG is; {} before its stage wrote it."""
    call = [*DAYBREAK, "show", name, "--night", night_of(run_id)]
    done = subprocess.run(
        call, cwd=home.folder, env=environment(home), capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode not in (0, NOTHING_TO_DO):
        raise RuntimeError(f"{' '.join(call)} failed: {done.stderr.strip()}")
    record: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return record


def update_champion(context: Any, result: Any = None) -> None:
    """Puts into the update of the champion's asset which version serves, once a task has succeeded."""
    home = of_dag(context["ti"].dag_id)
    call = [*DAYBREAK, "champion"]
    try:
        said = subprocess.run(
            call, cwd=home.folder, env=environment(home), capture_output=True, timeout=120, check=True
        )
        context["outlet_events"][home.champion].extra = json.loads(said.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        log.error("the update of %s does not say which version serves: %s", home.champion.uri, error)


def update_predictions(context: Any, result: Any = None) -> None:
    """Puts into the update of the predictions' asset what was written, once the task has succeeded.

    Raises AirflowSkipException where `predict_ahead` has updated it with the same.
    """
    home, task = of_dag(context["ti"].dag_id), context["ti"].task_id
    try:
        made = record_of(home, context["run_id"], "predictions")
        extra = {"event": "predictions", "model": home.name, **made}
        context["outlet_events"][home.predictions].extra = extra
        if task == "predict" and made.get("ahead_of") == "review":
            raise AirflowSkipException("the predictions that were written ahead of the answer stand")
    except (OSError, subprocess.SubprocessError, RuntimeError, ValueError) as error:
        log.error("the update of %s does not say what was written: %s", home.predictions.uri, error)


def environment(home: Home) -> dict[str, str]:
    """Returns the environment in which Daybreak's command line runs for that home, with its secrets."""
    kept = {name: value for name, value in os.environ.items() if name not in OTHERS}
    return {**kept, "DAYBREAK_HOME": str(home.folder), **given(home)}


def given(home: Home) -> dict[str, str]:
    """Returns the variables that a team gives to the stages, with secrets from where Airflow keeps them.

    That is its environment, a secrets backend or its database. Logs show *** in the place of each of their
    lines that has five characters, the fewest that Airflow masks. Raises ValueError for a secret that Airflow
    does not have, or whose place is none.
    """
    secrets = {}
    for name, place in home.secrets.items():
        try:
            secrets[name] = _secret(name, place)
        except Exception as error:  # Airflow's, or of a team's secrets backend
            raise ValueError(f"the secret {name} cannot be had from {place}: {error}") from error
    for value in secrets.values():
        for text in (value, *value.splitlines()):  # a log goes line by line
            mask_secret(text.strip())
    return {"DAYBREAK_ROLLBACK_DAG": home.dag_id("rollback"), **home.env, **secrets}  # for links of reports


def _secret(variable: str, place: str) -> str:
    kind, _, name = place.partition(":")
    if kind == "variable" and name:
        return str(Variable.get(name))
    if kind == "connection" and name:
        connection_id, _, part = name.rpartition(".")
        if connection_id and part in PARTS:
            if not (value := getattr(Connection.get(connection_id), part)):
                raise ValueError(f"the connection has no {part}")
            return str(value)
        return _for_sqlalchemy(Connection.get(name))
    raise ValueError(
        f"the place of {variable} is {place!r}; write variable:KEY, connection:ID or connection:ID.password"
    )


def _for_sqlalchemy(connection: Any) -> str:
    """Returns the URI of a connection for SQLAlchemy, with the scalars of its extra as the query.

    Airflow's own URI has an extra with anything but text as JSON, which no driver understands.
    """
    address = str(connection.get_uri()).partition("?")[0]
    scalars = {
        name: value for name, value in connection.extra_dejson.items() if isinstance(value, str | int | float)
    }
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in scalars.items()}
    uri = f"{address}?{urlencode(texts)}" if texts else address
    return uri.replace("postgres://", "postgresql://", 1) if uri.startswith("postgres://") else uri


def command(home: Home, arguments: str, folder: str = "") -> str:
    """Returns a shell command that runs Daybreak's command line in a folder below a home.

    It names the program by its whole path, and puts its folder first in PATH: the standard input of a task is
    a socket, so bash may take itself for a remote shell and read ~/.bashrc, which may put another first.
    """
    path = f'export PATH={shlex.quote(str(Path(DAYBREAK[0]).parent))}:"$PATH"'
    others = [name for name in OTHERS if name not in {*home.env, *home.secrets}]
    apart = f"unset {' '.join(others)} && " if others else ""
    place = shlex.quote(str(home.folder))
    call = f"export DAYBREAK_HOME={place} && cd {place}{folder} && {shlex.join(DAYBREAK)} {arguments}"
    return f"{apart}{path} && {call}"


def tell(home: Home, text: str, *options: str) -> None:
    """Hands the text to the notifiers and logs it; a failure of theirs is logged, not raised.

    What failed may be that a secret is not there; people hear of it all the same.
    """
    call = [*DAYBREAK, "notify", *options]
    try:
        variables = environment(home)
    except ValueError as error:
        log.error("%s; the notifiers are called without secrets", error)
        variables = environment(replace(home, secrets={}))
    try:
        done = subprocess.run(
            call,
            cwd=home.folder,
            env=variables,
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
    tell(of_dag(task.dag_id), text, "--night", night_of(task.run_id), "--stage", task.task_id)


DEFAULT_ARGS = {"retries": 2, "retry_delay": timedelta(seconds=30), "on_failure_callback": failed}


def late(*, context: Any, hours: float, **home: Any) -> None:
    """Notifies of a night that missed its own deadline, which the command line knows, at Airflow's.

    That of a backfill has passed before it begins; its night is late by its own deadline alone. The process
    that is told has read no DAG: `home` says whose night it is.
    """
    dag, run = context["dag_run"]["dag_id"], context["dag_run"]["dag_run_id"]
    if context["dag_run"]["run_type"] == "backfill":
        return
    text = f"Daybreak: run {run} of {dag} has opened no night {hours:g} hours after it was due"
    tell(Home(Path(home.pop("folder")), **home), text, "--late", "--night", night_of(run))
