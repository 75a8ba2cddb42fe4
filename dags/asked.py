"""A task that is asked again until it is done, and holds no worker in between.

Exit status 75 asks for another call, as a sensor has it; 99 says that there is nothing to do, for which a
sensor of Airflow's own has no word.
"""

import os
from datetime import timedelta
from typing import Any

from airflow.providers.standard.sensors.bash import BashSensor
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

NOTHING_TO_DO = 99
# Nothing starts a task again sooner: Airflow 3.3 may take the exit of one run for the loss of the next
# (dags/review.py says how), and a scheduler on a busy machine reads an exit some seconds late.
SETTLED = timedelta(seconds=10)


class Asked(BashSensor):
    """Sensor of a stage: 0 done, 75 ask again, 99 skipped, anything else failed.

    A failure is final, or with `tried_again` what Airflow's `retries` are for, as they are of other tasks.
    `env` comes on top of the worker's environment, which is not known, nor kept, before the call.
    """

    def __init__(self, *, tried_again: bool = False, **arguments: Any) -> None:
        self.tried_again = tried_again
        super().__init__(
            **{
                "retry_exit_code": 75,
                "mode": "reschedule",
                "poke_interval": SETTLED.total_seconds(),
                **arguments,
            }
        )

    def poke(self, context: Any) -> Any:
        """Call it once."""
        self.env = {**os.environ, **self.env} if self.env else None
        try:
            return super().poke(context)
        except AirflowFailException as error:
            if str(error).endswith(f" {NOTHING_TO_DO}"):
                raise AirflowSkipException(str(error)) from None
            if self.tried_again:
                raise AirflowException(str(error)) from None
            raise
