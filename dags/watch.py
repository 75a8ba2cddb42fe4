"""The hourly look: does the champion still serve, and as well as then; does a job run that nobody wants?"""

from datetime import timedelta

import notify
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, CronTriggerTimetable
from asked import Asked

with DAG(
    "watch",
    description="Look at the champion that serves, and at the jobs that run",
    doc_md=__doc__,
    schedule=CronTriggerTimetable("30 * * * *", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args={
        "retries": 2,
        "retry_delay": timedelta(seconds=30),
        "on_failure_callback": notify.failed,
    },
    tags=["daybreak"],
) as dag:
    Asked(
        task_id="watch",
        bash_command=notify.command("watch"),
        tried_again=True,
        timeout=timedelta(minutes=50).total_seconds(),
    )
    BashOperator(task_id="reap", bash_command=notify.command("reap"))
