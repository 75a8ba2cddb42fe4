"""Says in a line what a night decided: a success where its version serves, and skipped elsewhere."""

import subprocess
import sys
from typing import Any

import homes
import notify
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowSkipException


class Verdict(BaseOperator):
    """Task whose XCom is the verdict, in a line with a link."""

    def execute(self, context: Any) -> str:
        """Returns the verdict, or skips the task with it."""
        home = homes.of_dag(context["ti"].dag_id)
        night = notify.night_of(context["run_id"])
        call = [sys.executable, "-P", "-m", "daybreak", "verdict", "--night", night]
        done = subprocess.run(
            call,
            cwd=home.folder,
            env=notify.environment(home),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        said = done.stdout.strip()
        if done.returncode not in (0, notify.NOTHING_TO_DO):
            raise AirflowException(f"the verdict cannot be read: {done.stderr.strip()}")
        if done.returncode == 0:
            return said
        context["ti"].xcom_push(key="return_value", value=said)
        raise AirflowSkipException(said or done.stderr.strip())
