"""Watches every hour that the champion serves as well as it did, and ends jobs that no open night needs."""

from datetime import timedelta

import homes
import notify
from airflow.sdk import DAG
from command_sensor import Command, CommandSensor
from homes import Home


def watch_of(home: Home) -> DAG:
    """Returns the DAG of the hourly watch of a home."""
    with home.dag(
        "watch",
        description="Watch the champion that serves, and the jobs that run",
        doc_md=__doc__,
        cron="30 * * * *",
        default_args=notify.DEFAULT_ARGS,
    ) as dag:
        CommandSensor(
            task_id="watch",
            bash_command=notify.command(home, "watch"),
            retry_failures=True,
            timeout=timedelta(minutes=50).total_seconds(),
        )
        Command(task_id="reap", bash_command=notify.command(home, "reap"))
    return dag


dag, *dags_of_members = [watch_of(home) for home in homes.homes()]
