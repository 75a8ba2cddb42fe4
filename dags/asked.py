"""A task that is asked again until it is done, and holds no worker in between.

The exit status of the command line decides what becomes of it: 75 asks for another call, as a sensor has it;
99 says that there is nothing to do, for which the shell sensor of Airflow has no word.
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

NOT_YET = 75
NOTHING_TO_DO = 99
# Nothing starts a task again sooner: Airflow 3.3 may take the exit of one run for the loss of the next
# (dags/review.py says how), and a scheduler on a busy machine reads an exit some seconds late.
SETTLED = timedelta(seconds=10)


class Asked(BaseSensorOperator):
    """Sensor of a stage: 0 done, 75 ask again, 99 skipped, anything else failed.

    A failure is final, or with `tried_again` what Airflow's `retries` are for, as they are of other tasks.
    `env` comes on top of the worker's environment, which is not known, nor kept, before the call.
    """

    template_fields: Sequence[str] = ("bash_command", "env")
    template_fields_renderers: ClassVar[dict[str, str]] = {"bash_command": "bash", "env": "json"}

    def __init__(
        self,
        *,
        bash_command: str,
        env: dict[str, str] | None = None,
        tried_again: bool = False,
        **arguments: Any,
    ) -> None:
        self.bash_command = bash_command
        self.env = env
        self.tried_again = tried_again
        super().__init__(mode="reschedule", poke_interval=SETTLED.total_seconds(), **arguments)

    def poke(self, context: Any) -> bool:
        """Calls it once, and returns whether it is done."""
        command = ["bash", "-c", self.bash_command]
        status = SubprocessHook().run_command(command, env={**os.environ, **(self.env or {})}).exit_code
        if status in (0, NOT_YET):
            return status == 0
        if status == NOTHING_TO_DO:
            raise AirflowSkipException("there is nothing to do; the log says why")
        failure = AirflowException if self.tried_again else AirflowFailException
        raise failure(f"the command ended with exit status {status}; the log says why")
