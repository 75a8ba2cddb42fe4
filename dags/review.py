"""Asks a person to approve a verdict, until a deadline, and hands the answer to the command line.

The verdict of the gate says whether a person is to be asked, and until when; in all other nights the task
that asks is skipped. The answer goes to `daybreak approve`, which decides what it counts for.
"""

# How Airflow 3.3.2 loses its scheduler, and why no task here fails in order to ask again:
# BaseExecutor.running is read but never filled, so the exit of a task that waits for a person, when it is
# read after the answer has queued or started the same try again, is taken for that run's failure
# (SchedulerJobRunner.process_executor_events). If that run fails too, the scheduler and the API server both
# archive the try: TaskInstanceHistory.record_ti looks, then inserts, and the second insert is an
# IntegrityError that ends the scheduler. So the task asks for a missing reason by waiting again in the same
# try, which archives nothing, and a run that was taken for failed starts only after its exit has long been
# read.

import re
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import BaseOperator
from airflow_versions import AirflowSkipException, since
from command_sensor import SETTLED, Command
from forms import optional
from home import Home, of_dag
from notify import TRAINING, command, mlflow_ui, record_of

APPROVE, REJECT = "Approve", "Reject"

# Not named as a field of the form of retrain: Airflow fills a task's params in from those of the run.
ANSWER_FORM = {
    "approval_reason": optional(
        "string",
        "Reason",
        "Why; the ledger and the version's page keep it. What is not proven needs one.",
        maxLength=500,
    ),
}

# What a person typed reaches the shell as the value of a variable, never as text of the command.
ANSWER = "(ti.xcom_pull(task_ids='review') or {})"
ANSWER_TYPED = {
    "BY": f"{{{{ ({ANSWER}.get('responded_by_user') or {{}}).get('name') or '' }}}}",
    "REASON": f"{{{{ ({ANSWER}.get('params_input') or {{}}).get('approval_reason') or '' }}}}",
    "REJECT": f"{{{{ '' if '{APPROVE}' in ({ANSWER}.get('chosen_options') or []) else 'true' }}}}",
    "RUN": "{{ run_id }}",
}
# Nobody answered: Airflow took the default, and `promote` says that the champion stays.
ANSWERED = '{ [ -n "$BY" ] || exit 99; } && '
HAND_ON = 'approve ${REJECT:+--reject} --reason "$REASON" --by "$BY (in Airflow run $RUN)"'
NOBODY_ASKED = "echo 'this Airflow cannot ask; answer by daybreak approve, in a terminal'; exit 99"


def plain(text: str) -> str:
    """Returns text escaped for Markdown, so that nothing in the data or typed by people acts as markup."""
    return re.sub(r"([\\`*\[|])", r"\\\1", " ".join(text.split())).replace("<", "&lt;")


def question(run_id: str, home: Home) -> str:
    """Returns the question to a person, in Markdown."""
    verdict = record_of(home, run_id, "verdict")
    if not verdict.get("approve_until"):
        return "Nobody is asked."
    until = datetime.fromisoformat(verdict["approve_until"])
    lines = [
        f"The gate says **{verdict['action']}**: {plain(verdict['reason'])}.",
        f"Without an answer until {until:%Y-%m-%d %H:%M} UTC the champion stays.",
    ]
    if verdict["inconclusive"]:
        lines.append("It is not proven: to approve it, give a reason.")
    if version := record_of(home, run_id, "version"):
        page = f"{mlflow_ui(home)}/#/models/{version['name']}/versions/{version['number']}?{TRAINING}"
        lines.append(f"What it rests on: [version {version['number']} in MLflow]({page})")
    checks = [
        f"| {plain(c['name'])} | {'ok' if c['ok'] else 'failed'} | {plain(c['text'])} |"
        for c in verdict["checks"]
    ]
    table = "\n".join(["| looked at | | what was seen |", "| --- | --- | --- |", *checks]) if checks else ""
    return "\n\n".join([*lines, table])


def only_if_asked(context: Any) -> None:
    """Skips the task where nobody is asked, or has answered; else limits its wait to what the night has left.

    An answer on the command line may come before the question, or before Airflow retries it.
    """
    home = of_dag(context["ti"].dag_id)
    for word in ("approval", "stop"):
        if said := record_of(home, context["run_id"], word):
            raise AirflowSkipException(f"{said['by']} has answered on the command line: {said['reason']}")
    until = record_of(home, context["run_id"], "verdict").get("approve_until")
    if not until:
        raise AirflowSkipException("nobody is asked: release.approval in params.yaml says when a person is")
    left = datetime.fromisoformat(until) - datetime.now(UTC)
    limit = "response_timeout" if hasattr(context["task"], "response_timeout") else "execution_timeout"
    setattr(context["task"], limit, max(left, SETTLED))  # a wait of 0 would last for ever


HITLOperator = since((3, 1), "airflow.providers.standard.operators.hitl.HITLOperator")


class Review(HITLOperator or BaseOperator):  # type: ignore[misc]
    """Question that is repeated, in the same try, where an approval without proof lacks its reason."""

    @property
    def serialized_params(self) -> dict[str, dict[str, Any]]:
        """Returns the empty form, whatever the run or an earlier answer said."""
        return {name: field.serialize() | {"value": None} for name, field in ANSWER_FORM.items()}

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        """Returns the answer, or waits for another one."""
        answer = super().execute_complete(context, event)
        reason = (answer["params_input"].get("approval_reason") or "").strip()
        approved = APPROVE in answer["chosen_options"]
        home = of_dag(context["ti"].dag_id)
        verdict = record_of(home, context["run_id"], "verdict")
        if approved and not reason and verdict.get("inconclusive"):
            self.log.warning("What is not proven is approved only with a reason; asking again")
            self.execute(context)  # for an existing question, it deletes the answer; and waits again
        return answer


def review() -> BaseOperator:
    """Returns the task that asks a person, where one is to be asked."""
    if HITLOperator is None:
        return Command(task_id="review", bash_command=NOBODY_ASKED)
    return Review(
        task_id="review",
        subject="Shall the new version serve?",
        body="{{ run_id | question }}",
        options=[APPROVE, REJECT],
        defaults=REJECT,
        params=ANSWER_FORM,
        pre_execute=only_if_asked,
        retries=100,  # for runs that Airflow takes for failed; each retry asks again
        retry_delay=SETTLED,
    )


def approve(home: Home, folder: str) -> Command:
    """Returns the task that hands the answer to the command line, in the folder of the night."""
    return Command(
        task_id="approve",
        bash_command=ANSWERED + command(home, HAND_ON, folder),
        env=ANSWER_TYPED,
        append_env=True,
    )
