"""Says in a line what a night decided: a success where its version serves, and skipped elsewhere."""

import subprocess
from typing import Any

from airflow.sdk import BaseOperator
from airflow_versions import AirflowException, AirflowSkipException
from home import night_of, of_dag
from notify import DAYBREAK, NOTHING_TO_DO, environment


class Verdict(BaseOperator):
    """Task whose XCom is the verdict, in a line with a link."""

    def execute(self, context: Any) -> str:
        """Returns the verdict, or skips the task with it."""
        home = of_dag(context["ti"].dag_id)
        call = [*DAYBREAK, "verdict", "--night", night_of(context["run_id"])]
        done = subprocess.run(
            call,
            cwd=home.folder,
            env=environment(home),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        said = done.stdout.strip()
        if done.returncode not in (0, NOTHING_TO_DO):
            raise AirflowException(f"the verdict cannot be read: {done.stderr.strip()}")
        if done.returncode == 0:
            return said
        context["ti"].xcom_push(key="return_value", value=said)
        raise AirflowSkipException(said or done.stderr.strip())
