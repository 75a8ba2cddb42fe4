"""Defines tasks that call a command once, or again and again until the command is done.

The latter holds no worker between its calls. Where each task has a pod of its own, it keeps that pod instead:
another pod for each call would take longer to start than the call takes. The exit status of the command
decides the state of the task: 75 asks for another call, as of a sensor; 78 says that no retry helps, and 99
that there is nothing to do, which the shell sensor of Airflow cannot express.
"""

import os
import subprocess
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

from airflow.configuration import conf
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import BaseSensorOperator
from airflow_versions import AirflowException, AirflowFailException, AirflowSkipException
from home import of_dag
from notify import NOTHING_TO_DO, given

NOT_YET = 75
FINAL = 78
NO_RETRY = f"the command ended with exit status {FINAL}: it fails again until something is changed"
# Nothing starts a task again sooner: Airflow 3.3 may take the exit of one run for the loss of the next
# (dags/review.py says how), and a scheduler on a busy machine reads an exit some seconds late.
SETTLED = timedelta(seconds=10)
# deploy/kubernetes-executor sets it for whatever reads the DAGs, and for the tasks.
EXECUTOR = conf.get("core", "executor")
# Pods of Airflow's Helm chart say LocalExecutor; the executor that makes them says what they are.
IN_PODS = "KubernetesExecutor" in EXECUTOR or "AIRFLOW_IS_K8S_EXECUTOR_POD" in os.environ


class Command(BashOperator):
    """Command that is run once: 0 done, 78 failed for good, 99 skipped, anything else failed."""

    def execute(self, context: Any) -> Any:
        """Runs the command, and keeps Airflow from retrying what fails again however often it is run."""
        try:
            return super().execute(context)
        except AirflowException as error:
            process = self.subprocess_hook.sub_process
            if process is None or process.returncode != FINAL:
                raise
            raise AirflowFailException(f"{NO_RETRY}; the log says why") from error

    def get_env(self, context: Any) -> dict[str, str]:
        """Returns the variables of the command, with secrets, which are stored nowhere.

        Those of the task itself, such as what a person typed, stand above a team's.
        """
        return {**super().get_env(context), **given(of_dag(self.dag_id)), **(self.env or {})}


class CommandSensor(BaseSensorOperator):
    """Sensor of a command, by its exit status: 0 done, 75 call again, 99 skipped, anything else failed.

    A failure is final, unless `retry_failures` leaves it to Airflow's `retries`, as those of other tasks; 78
    is final there, too. `env` is added to the worker's environment, which is read at each call and stored
    nowhere.
    """

    template_fields: Sequence[str] = ("bash_command", "env")
    template_fields_renderers: ClassVar[dict[str, str]] = {"bash_command": "bash", "env": "json"}

    def __init__(
        self,
        *,
        bash_command: str,
        env: dict[str, str] | None = None,
        retry_failures: bool = False,
        poke_interval: float = SETTLED.total_seconds(),  # by name, so that a team's default_args reach it
        **arguments: Any,
    ) -> None:
        self.bash_command = bash_command
        self.env = env
        self.retry_failures = retry_failures
        mode = "poke" if IN_PODS else "reschedule"
        super().__init__(mode=mode, poke_interval=poke_interval, **arguments)

    def execute(self, context: Any) -> Any:
        """Calls the command until it is done, or, where no pod is kept, once.

        The command is called hundreds of times: the log has it once, and then what it says.
        """
        if context["ti"].get_first_reschedule_date(context) is None:
            self.log.info("Running command: %s", self.bash_command)
        return super().execute(context)

    def on_kill(self) -> None:
        """Ends the task of a pod that has been told to end, so that a retry in another pod goes on."""
        if IN_PODS:
            raise AirflowException("the pod was told to end")

    def poke(self, context: Any) -> bool:
        """Runs the command once, and returns whether it is done."""
        status = self._status()
        if status in (0, NOT_YET):
            return status == 0
        if status == NOTHING_TO_DO:
            raise AirflowSkipException("there is nothing to do; the log says why")
        if status == FINAL:
            raise AirflowFailException(f"{NO_RETRY}; the log says why")
        failure = AirflowException if self.retry_failures else AirflowFailException
        raise failure(f"the command ended with exit status {status}; the log says why")

    def _status(self) -> int:
        """Runs the command, with its output in the log, and returns its exit status."""
        process = subprocess.Popen(
            ["bash", "-c", self.bash_command],
            env={**os.environ, **given(of_dag(self.dag_id)), **(self.env or {})},
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
        )
        assert process.stdout
        for line in process.stdout:
            self.log.info("%s", line.rstrip())
        process.stdout.close()  # not on the way of an error: a look that is left alone ends by itself
        return process.wait()
