"""Reads every byte that is kept each week, and holds ledger, registry and the pushed ledger together.

What rots unseen is found before a rollback or a night needs it; `daybreak repair` puts it back.
"""

from datetime import timedelta

from airflow.sdk import DAG
from command_sensor import Command
from home import Home, cron
from homes import homes
from notify import command, failed


def audit_of(home: Home) -> DAG:
    """Returns the DAG of the weekly audit of a home."""
    with home.dag(
        "audit",
        description="Read every byte that is kept, and compare it with the ledger",
        doc=__doc__,
        schedule=cron("0 9 * * 0"),
        default_args={
            "retries": 1,
            "retry_delay": timedelta(minutes=10),  # a promotion under way looks like a difference
            "on_failure_callback": failed,
        },
    ) as dag:
        Command(task_id="audit", bash_command=command(home, "audit --deep"))
    return dag


dag, *dags_of_members = [audit_of(home) for home in homes()]
