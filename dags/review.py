"""A person's word on a verdict: when a task asks for it, until when, and how it reaches the command line.

The verdict of the gate says whether a person is to be asked, and until when; in all other nights the task
that asks is skipped. What was answered goes to `python -m pipeline approve`, which decides what it counts.
"""

# How Airflow 3.3.2 loses its scheduler, and why nothing here fails in order to be asked again:
# BaseExecutor.running is read but never filled, so the exit of a task that waits for a person, when it is
# read after the answer has queued or started the same try again, is taken for that run's failure
# (SchedulerJobRunner.process_executor_events). If that run fails too, the scheduler and the API server both
# archive the try: TaskInstanceHistory.record_ti looks, then inserts, and the second insert is an
# IntegrityError that ends the scheduler. So a missing reason is asked for by waiting again in the same try,
# which archives nothing, and a run that was taken for failed starts only after its exit has long been read.

from datetime import UTC, datetime
from typing import Any

import notify
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowSkipException, TaskAwaitingInput
from airflow.sdk.execution_time.hitl import upsert_hitl_detail
from asked import SETTLED

APPROVE, REJECT = "Approve", "Reject"

FORM = {
    "reason": Param(
        None, type=["null", "string"], maxLength=500, title="Reason",
        description="Why; the ledger and the version's page keep it. What is not proven needs one.",
    ),
}  # fmt: skip

# What somebody typed reaches the shell as the value of a variable, never as text of the command.
ANSWER = "(ti.xcom_pull(task_ids='review') or {})"
TYPED = {
    "BY": f"{{{{ ({ANSWER}.get('responded_by_user') or {{}}).get('name') or '' }}}}",
    "REASON": f"{{{{ ({ANSWER}.get('params_input') or {{}}).get('reason') or '' }}}}",
    "REJECT": f"{{{{ '' if '{APPROVE}' in ({ANSWER}.get('chosen_options') or []) else 'true' }}}}",
    "RUN": "{{ run_id }}",
}
# Nobody answered: Airflow took the default, and `promote` says that the champion stays.
TELL = (
    '{ [ -n "$BY" ] || exit 99; } && '
    'python -m pipeline approve ${REJECT:+--reject} --reason "$REASON" --by "$BY (in Airflow run $RUN)"'
)


def asked(run_id: str) -> str:
    """What is asked, in Markdown."""
    verdict = notify.record_of(run_id, "verdict")
    if not verdict.get("approve_until"):
        return "Nobody is asked."
    until = datetime.fromisoformat(verdict["approve_until"])
    lines = [
        f"The gate says **{verdict['action']}**: {verdict['reason']}.",
        f"Without an answer until {until:%Y-%m-%d %H:%M} UTC the champion stays.",
    ]
    if verdict["inconclusive"]:
        lines.append("It is not proven: to approve it, give a reason.")
    if version := notify.record_of(run_id, "version"):
        page = f"{notify.MLFLOW_UI}/#/models/{version['name']}/versions/{version['number']}"
        lines.append(f"What it rests on: [version {version['number']} in MLflow]({page})")
    checks = [f"| {c['name']} | {'ok' if c['ok'] else 'failed'} | {c['text']} |" for c in verdict["checks"]]
    table = "\n".join(["| looked at | | what was seen |", "| --- | --- | --- |", *checks]) if checks else ""
    return "\n\n".join([*lines, table])


def only_if_asked(context: Any) -> None:
    """Skip the task where nobody is asked; where one is, wait no longer than the night can."""
    until = notify.record_of(context["run_id"], "verdict").get("approve_until")
    if not until:
        raise AirflowSkipException("nobody is asked: release.approval in params.yaml says when a person is")
    left = datetime.fromisoformat(until) - datetime.now(UTC)
    context["task"].response_timeout = max(left, SETTLED)  # a wait of none would be one for ever


def skip(context: Any) -> None:
    """Skip the task, in a terminal, where nobody would see it."""
    raise AirflowSkipException("whoever is asked answers by python -m pipeline approve")


class Review(HITLOperator):
    """Question that is asked again, in the same try, where what is not proven lacks its reason."""

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        """Return the answer, or wait for another one."""
        answer = super().execute_complete(context, event)
        reason = (answer["params_input"].get("reason") or "").strip()
        approved = APPROVE in answer["chosen_options"]
        if approved and not reason and notify.record_of(context["run_id"], "verdict").get("inconclusive"):
            self.log.warning("What is not proven is approved only with a reason; asking again")
            # Of a question that is there, this takes back the answer.
            upsert_hitl_detail(
                context["ti"].id, options=self.options, subject=self.subject, params=self.serialized_params
            )
            raise TaskAwaitingInput(method_name="execute_complete", timeout=self.response_timeout)
        return answer


def review() -> Review:
    """Task that asks a person, where one is to be asked."""
    return Review(
        task_id="review",
        subject="Shall the new version serve?",
        body="{{ run_id | asked }}",
        options=[APPROVE, REJECT],
        defaults=REJECT,
        params=FORM,
        pre_execute=only_if_asked,
        retries=100,  # for runs that Airflow takes for failed; the question is then asked anew
        retry_delay=SETTLED,
    )


def approve(folder: str) -> BashOperator:
    """Task that hands the answer to the command line, in the folder of the night."""
    return BashOperator(
        task_id="approve",
        bash_command=notify.command("", folder).removesuffix("python -m pipeline ") + TELL,
        env=TYPED,
        append_env=True,
    )
