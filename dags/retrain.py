"""Runs one night: a straight line of `daybreak STAGE`, at `night.schedule` or on request.

Exit status is control flow: 0 done, 99 skipped, 75 call again later, 1 failed, 78 failed and not to
be retried. No worker is held while another night is open, a job trains, a gate waits or an endpoint gets a
version ready: those stages are sensors, which give their slot back between calls. Between `gate` and `refit`,
`review` asks a person where one is to be asked, and is skipped otherwise. Beside it, `predict_ahead` writes
the champion's predictions where they would be late by waiting for the answer.

What stages tell each other are the records in the folder of the night; a task's log ends with the
record that it wrote. `predict` and `close` run whatever happened; `done` is green if nothing on the way
failed, and `verdict` only if a version was promoted: otherwise it is skipped. Its XCom says what was decided.
"""

import logging
import os
import shlex
import sys
from datetime import timedelta
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, BaseOperatorLink, Param, chain
from airflow_versions import CronTriggerTimetable, since
from command_sensor import EXECUTOR, IN_PODS, Command, CommandSensor
from forms import optional
from home import Home, day_of, night_of, of_dag
from homes import OWN, with_schedules
from notify import (
    DEFAULT_ARGS,
    LATE,
    TRAINING,
    command,
    mlflow_ui,
    record_of,
    update_champion,
    update_predictions,
)
from review import approve, question, review
from verdict import Verdict

# Airflow 3.2 has them, but its LocalExecutor finds no function of a DAG file, and the scheduler of 3.2.1 ends
# with an error over that on SQLite.
DeadlineAlert, DeadlineReference, SyncCallback = (
    since((3, 3), f"airflow.sdk.{name}") for name in ("DeadlineAlert", "DeadlineReference", "SyncCallback")
)
log = logging.getLogger(__name__)

# Far beyond any night: its own deadlines end it, train_until and decide_until, which have no upper limit.
NO_TIMEOUT_S = timedelta(days=365).total_seconds()

LOOKED_EVERY_S = 300.0  # for a day that is late: a look may list a bucket, or scan a table
AHEAD_EVERY_S = 60.0  # beside a question: a run lasts up to so long after the answer

# That Airflow's alert leaves a night to be written to the ledger, after the deadline of both.
OPENED_WITHIN = timedelta(minutes=10)

LOCAL, CELERY = "LocalExecutor", "CeleryExecutor"

UNSAID = "as in params.yaml"
FORM = {
    "day": optional(
        "string",
        "Day",
        "Train on the data up to this day. Empty: the newest day that is over and has data.",
        format="date",
    ),
    "train_hours": optional(
        "number",
        "Hours to train",
        "From the opening of the night to the end of training. Empty: as in params.yaml.",
        exclusiveMinimum=0,
    ),
    "budget_usd": optional(
        "number",
        "Budget in US dollars",
        "The most that training may cost. Empty: as in params.yaml.",
        minimum=0,
    ),
    "objective": Param(
        UNSAID,
        type="string",
        enum=[UNSAID, "cost", "time", "knee", "quality"],
        title="Objective",
        description="The cheapest plan, the fastest, the best of both, or as many samples as pay.",
    ),
    "spot": Param(
        UNSAID,
        type="string",
        enum=[UNSAID, "allowed", "not allowed"],
        title="Spot machines",
        description="Cheaper, but they may be taken away.",
    ),
    "plan_only": Param(
        False,
        type="boolean",
        title="Plan only",
        description="Stop after the plan: what would be rented, for how long, at what price.",
    ),
    "accepted_day": optional(
        "string",
        "Accept this day",
        "Train on this day although it is unlike the days before it, as a stopped night says.",
        format="date",
    ),
    "reason": optional(
        "string",
        "Reason",
        "Why this night is run by hand; the ledger keeps it.",
        maxLength=500,
    ),
}

# What a person typed reaches the shell as the value of a variable, never as text of the command.
TYPED = {
    "DAY": "{{ params.day or (triggering_asset_events | day_of) }}",
    # Not `ts`: where runs have data intervals, that is the begin of one, a night too early.
    "DUE": "{{ '' if dag_run.run_type in ('manual', 'operator_triggered')"
    " else dag_run.run_after.isoformat() }}",
    "BEGAN": "{{ dag_run.start_date.isoformat() if dag_run.start_date else '' }}",
    "SCHEDULED": "{{ dag_run.run_after.isoformat()"
    " if dag_run.run_type == 'scheduled' and ti.try_number == 1 else '' }}",
    "TRAIN_HOURS": "{{ params.train_hours or '' }}",
    "BUDGET_USD": "{{ '' if params.budget_usd is none else params.budget_usd }}",
    "OBJECTIVE": f"{{{{ params.objective | replace('{UNSAID}', '') }}}}",
    "SPOT": "{{ {'allowed': 'true', 'not allowed': 'false'}.get(params.spot, '') }}",
    "ACCEPTED_DAYS": "{{ '[' ~ params.accepted_day ~ ']' if params.accepted_day else '' }}",
    "TRIGGER": "{{ 'manual: ' ~ (params.reason or 'no reason given') if dag_run.run_type == 'manual'"
    " else params.reason or 'another DAG' if dag_run.run_type == 'operator_triggered'"
    " else 'assets' if dag_run.run_type == 'asset_triggered' else 'schedule' }}",
}
ASSIGN = {
    "TRAIN_HOURS": "night.train_hours",
    "BUDGET_USD": "night.budget_usd",
    "OBJECTIVE": "plan.objective",
    "SPOT": "plan.spot",
    "ACCEPTED_DAYS": "validate.accepted_days",
}
OPEN = " ".join(
    [
        "open --night {{ run_id | night }}",
        '${DAY:+--day "$DAY"}',
        '${DUE:+--due "$DUE"}',
        *(f'${{{name}:+--set "{key}=${name}"}}' for name, key in ASSIGN.items()),
        '--trigger "$TRIGGER"',
        # What it keeps for later stages would end with its pod, and may be on another machine than they.
        *(["--warm"] if EXECUTOR == LOCAL and not IN_PODS else []),
    ]
)
# Airflow makes up for the last night that was due while it was down, `catchup` or not. A clear asks for it,
# and a night that began before, and has waited for its turn since, goes on.
NOT_MISSED = (
    '{ [ -z "$SCHEDULED" ] || [[ "$SCHEDULED" > "$DAYBREAK_UP_AT" || "$BEGAN" < "$DAYBREAK_UP_AT" ]] || '
    '{ echo "missed: the night was due at $SCHEDULED, and make up began at $DAYBREAK_UP_AT; clear this run '
    'to have it, or trigger another"; exit 99; }; } && '
)
IN_NIGHT = "/nights/{{ run_id | night }}"
NOT_PLANNED = "{{ 'exit 99; ' if params.plan_only }}"  # predictions that are there stay as they are
ONLY_PLAN = "{{ ' && exit 99' if params.plan_only }}"


class MlflowLink(BaseOperatorLink):
    """Link from a task to a page of the night's run in MLflow."""

    page = "experiments/{experiment}/runs/{run_id}"

    @property
    def name(self) -> str:
        """Returns the label of the button."""
        return "MLflow run"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Returns the address of the page; of the list of runs while the night has no registered version."""
        home = of_dag(ti_key.dag_id)
        version = record_of(home, ti_key.run_id, "version")
        page = self.page.format(**{"experiment": "0"} | version) if version else "experiments"
        return f"{mlflow_ui(home)}/#/{page}?{TRAINING}"


class ReportLink(MlflowLink):
    """Link from a task to the report of the night, as MLflow shows it."""

    page = "experiments/{experiment}/runs/{run_id}/artifacts/report.html"

    @property
    def name(self) -> str:
        """Returns the label of the button."""
        return "Report"


def stage(home: Home, name: str, **given: Any) -> Command:
    """Returns the task of a stage that runs once."""
    return Command(task_id=name, bash_command=command(home, name, IN_NIGHT), **given)


def reconciler(home: Home, name: str, **given: Any) -> CommandSensor:
    """Returns the task of a stage that is called again until it is done.

    A failure of the stage is final; Airflow retries only calls that were lost.
    """
    call = f"{command(home, name, IN_NIGHT)}; status=$?; exit $((status > 128 ? 75 : status))"
    return CommandSensor(task_id=name, bash_command=call, retries=100, timeout=NO_TIMEOUT_S, **given)


def ahead(home: Home) -> CommandSensor:
    """Returns the task that predicts while a person is asked; a failure is tried again until the answer."""
    call = f"{command(home, 'predict-ahead', IN_NIGHT)}; status=$?"
    return CommandSensor(
        task_id="predict_ahead",
        bash_command=f"{call}; exit $((status == 0 || status == 99 ? status : 75))",
        retries=100,
        timeout=NO_TIMEOUT_S,
        poke_interval=AHEAD_EVERY_S,
        outlets=[home.predictions],
        post_execute=update_predictions,
    )


def _executor_of_alerts() -> str:
    """Returns the executor that can run an alert; "" where none can.

    A scheduler ends with an error where one without callbacks is asked to. Nothing is imported to find out:
    that takes seconds of the KubernetesExecutor, whenever Airflow reads the file.
    """
    executors = [name.strip().rpartition(":")[2] for name in EXECUTOR.partition(";")[0].split(",")]
    names = [name.rpartition(".")[2] for name in executors]
    if LOCAL in names:
        return LOCAL
    if CELERY in names and _provider("celery") >= (3, 25):  # earlier ones ask in a queue named default
        return CELERY
    return ""


def _provider(name: str) -> tuple[int, ...]:
    """Returns the version of a provider of Airflow; () where it is not installed."""
    try:
        return tuple(int(part) for part in version(f"apache-airflow-providers-{name}").split(".")[:2])
    except PackageNotFoundError:
        return ()


def _alert(home: Home) -> Any:
    """Returns the alert of a night that is not decided so many hours after it was due; None if it can't be.

    Runs that assets or a team's timetable start have no logical date from which it could count.
    """
    if SyncCallback is None or home.due.assets or {"schedule", "deadline"} & set(home.night_args):
        return None
    if not (executor := _executor_of_alerts()):
        return None
    hours = home.due.decide_hours
    given = {"hours": hours, "folder": str(home.folder), "env": dict(home.env), "secrets": dict(home.secrets)}
    return DeadlineAlert(
        # A clear queues a run again, and Airflow 3.3 cannot clear a run whose alert counts from there.
        reference=DeadlineReference.DAGRUN_LOGICAL_DATE,
        interval=timedelta(hours=hours) + OPENED_WITHIN,
        callback=SyncCallback(LATE, kwargs=given, executor=executor),
    )


def nights_of(home: Home) -> DAG:
    """Returns the DAG of the nights of a home."""
    due, alert = home.due, _alert(home)
    folder = f"{shlex.quote(str(home.folder))}{IN_NIGHT}"
    opened = f'[ -d {folder} ] || {{ echo "no night was opened"; exit 99; }}; '
    # False would begin, in Airflow 3.3, with a night of up to 2.4 hours ago: beside one started by hand.
    timetable = CronTriggerTimetable(due.cron, timezone=due.time_zone, run_immediately=timedelta(0))
    ours = {"schedule": [Asset(uri) for uri in due.assets] or timetable}
    ours |= {"deadline": alert} if alert else {}  # Airflow 3.0 does not know the word
    ours |= {"max_active_runs": due.challengers}
    with home.dag(
        "retrain",
        description="Retrain tonight, judge, and promote only on proof",
        doc=__doc__,
        params=FORM,
        user_defined_filters={
            "night": night_of,
            "day_of": day_of,
            "question": partial(question, home=home),
        },
        default_args=DEFAULT_ARGS,
        **(ours | dict(home.night_args)),
    ) as dag:
        close = Command(
            task_id="close",
            bash_command=opened + command(home, "close", IN_NIGHT),
            trigger_rule="all_done",
        )
        predict = Command(
            task_id="predict",
            bash_command=opened + NOT_PLANNED + command(home, "predict", IN_NIGHT),
            outlets=[home.predictions],
            post_execute=update_predictions,
            trigger_rule="all_done",
        )
        close.operator_extra_links = (MlflowLink(), ReportLink())
        gate = reconciler(home, "gate")
        refit = reconciler(
            home, "refit", trigger_rule="none_failed_min_one_success"
        )  # also where nobody was asked
        promote = CommandSensor(
            task_id="promote",
            bash_command=command(home, "promote", IN_NIGHT),
            retry_failures=True,
            outlets=[home.champion],
            post_execute=update_champion,
            timeout=NO_TIMEOUT_S,  # a person may answer until decide_until
        )
        chain(
            CommandSensor(  # nights of one home take turns
                task_id="open",
                bash_command=NOT_MISSED + command(home, OPEN),
                env=TYPED,
                retry_failures=True,
                timeout=NO_TIMEOUT_S,
            ),
            CommandSensor(  # until the day is there
                task_id="ingest",
                bash_command=command(home, "ingest", IN_NIGHT),
                retry_failures=True,
                timeout=NO_TIMEOUT_S,
                poke_interval=LOOKED_EVERY_S,
            ),
            stage(home, "validate"),
            stage(home, "prepare"),
            stage(home, "profile"),
            CommandSensor(
                task_id="plan",
                bash_command=command(home, "plan", IN_NIGHT) + ONLY_PLAN,
                retry_failures=True,
                timeout=NO_TIMEOUT_S,
            ),
            reconciler(home, "train"),
            stage(home, "evaluate"),
            stage(home, "register"),
            gate,
            review(),
            approve(home, IN_NIGHT),
            refit,
            promote,
            predict,
            close,
        )
        gate >> refit
        [gate >> ahead(home), promote, predict, close] >> EmptyOperator(
            task_id="done", trigger_rule="none_failed"
        )
        close >> Verdict(task_id="verdict", trigger_rule="all_done", on_failure_callback=None)
    return dag


dag, *of_members = [nights_of(home) for home in with_schedules()]

# `make night`: one night in the terminal, without a scheduler.
if __name__ == "__main__":
    from airflow.sdk.exceptions import AirflowSkipException, ParamValidationError

    def skip(context: Any) -> None:
        """Skips the task in a terminal, where nobody would see it."""
        raise AirflowSkipException("a person answers by daybreak approve")

    dag.deadline = None  # dag.test() of Airflow 3.3 cannot look its own alert up again
    dag.get_task("review").pre_execute = skip  # nor end a wait; a person answers by the command line
    dag.get_task("predict_ahead").pre_execute = skip  # `promote --wait` predicts in time
    dag.get_task("promote").bash_command = command(OWN, "promote --wait", IN_NIGHT)
    for task in dag.tasks:
        task.retries = 0  # the person who reads the sentence tries again
    try:
        run = dag.test(
            run_conf={"day": os.environ.get("DAY") or None, "reason": " ".join(sys.argv[1:]) or None}
        )
    except ParamValidationError as error:
        sys.exit(f"make night: {str(error).splitlines()[0]}")
    sys.exit(run.state != "success")
