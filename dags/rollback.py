"""Rolls back: `rollback` lets an earlier version serve again; `drill` checks every night that it could.

A rollback needs no proof, only a reason. Serving, registry and data revision go back together, or not at
all. Its command is called again while an endpoint gets the version ready; with `--once`, a call after it has
finished does not go back twice. The task has no retries, since the hourly watch finishes an interrupted
rollback. Its log ends with the release.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param
from command_sensor import Command, CommandSensor
from forms import optional
from home import Home, cron
from homes import homes
from notify import DEFAULT_ARGS, command, failed, update_champion

ROLLBACK_FORM = {
    "to": optional(
        "integer",
        "Version",
        "The version that shall serve again. Empty: by the number of promotions to take back.",
        minimum=1,
    ),
    "steps": Param(
        1,
        type="integer",
        minimum=1,
        title="Promotions to take back",
        description="Counts only where no version is named.",
    ),
    "reason": Param(
        "",
        type="string",
        minLength=3,
        maxLength=500,
        title="Reason",
        description="Why; the ledger and both versions' pages keep it.",
    ),
    "hold_days": optional(
        "integer",
        "Days to hold the recipe",
        "So long, a version of the recipe that is taken back serves only if a person approves it, or is "
        "proven better on days after this rollback. Empty: until daybreak lift. 0: no hold.",
        minimum=0,
        maximum=36_500,
    ),
}

# What a person typed reaches the shell as the value of a variable, never as text of the command.
ROLLBACK_TYPED = {
    "TO": "{{ params.to or '' }}",
    "STEPS": "{{ params.steps }}",
    "REASON": "{{ params.reason }}",
    "HOLD_DAYS": "{{ '' if params.hold_days is none else params.hold_days }}",
    "ONCE": "by Airflow run {{ run_id }}",
    "BY": "{{ dag_run.triggering_user_name or '' }}",
}


def rollback_of(home: Home) -> DAG:
    """Returns the DAG of rollbacks of a home."""
    with home.dag(
        "rollback",
        description="Let an earlier version serve again",
        doc=__doc__,
        params=ROLLBACK_FORM,
        default_args={"retries": 0, "on_failure_callback": failed},
    ) as rollback:
        CommandSensor(
            task_id="rollback",
            bash_command=command(
                home,
                'rollback ${TO:+--to "$TO"} --steps "$STEPS" --reason "$REASON" --once "$ONCE" '
                '${HOLD_DAYS:+--hold-days "$HOLD_DAYS"} ${BY:+--by "$BY"}',
            ),
            env=ROLLBACK_TYPED,
            outlets=[home.champion],
            post_execute=update_champion,
            timeout=timedelta(hours=3).total_seconds(),
        )
    return rollback


def drill_of(home: Home) -> DAG:
    """Returns the DAG of drills of a home."""
    with home.dag(
        "drill",
        description="Check that the version before the champion could be restored",
        doc=__doc__,
        schedule=cron("0 5 * * *"),
        default_args=DEFAULT_ARGS,
    ) as drill:
        Command(task_id="drill", bash_command=command(home, "drill"))
    return drill


rollback, *rollbacks_of_members = [rollback_of(home) for home in homes()]

drill, *drills_of_members = [drill_of(home) for home in homes()]
