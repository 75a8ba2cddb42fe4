"""Watches every hour that the champion serves as well as it did, and ends jobs that no open night needs.

Where the watch asks for a night (`watch.retrain`), it starts a run of the DAG `retrain`, whose name says for
which finding: the same finding finds its run there, and starts no other.
"""

from datetime import timedelta

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG
from command_sensor import Command, CommandSensor
from home import Home, cron
from homes import homes
from notify import DEFAULT_ARGS, command

DUE = "ti.xcom_pull(task_ids='due')"  # the trigger of the night, by the last line of `daybreak due`


def watch_of(home: Home) -> DAG:
    """Returns the DAG of the hourly watch of a home."""
    with home.dag(
        "watch",
        description="Watch the champion that serves, and the jobs that run",
        doc=__doc__,
        schedule=cron("30 * * * *"),
        default_args=DEFAULT_ARGS,
    ) as dag:
        watch = CommandSensor(
            task_id="watch",
            bash_command=command(home, "watch"),
            retry_failures=True,
            timeout=timedelta(minutes=50).total_seconds(),
        )
        Command(task_id="reap", bash_command=command(home, "reap"))
        due = Command(task_id="due", bash_command=command(home, "due"))
        night = TriggerDagRunOperator(
            task_id="night",
            trigger_dag_id=home.dag_id("retrain"),
            trigger_run_id=f"watch__{{{{ {DUE}.split(': ')[1] | replace(' ', '-') }}}}",
            conf={"reason": f"{{{{ {DUE} }}}}"},
            skip_when_already_exists=True,
        )
        watch >> due >> night
    return dag


dag, *dags_of_members = [watch_of(home) for home in homes()]
