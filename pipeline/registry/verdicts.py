"""Shows a verdict and a person's answer to it in MLflow, where a reviewer looks."""

from pipeline.contract import records
from pipeline.contract.records import (
    Approval,
    Verdict,
    Version,
)
from pipeline.registry import aliases, description
from pipeline.registry import approval as approvals
from pipeline.storage.mlflow_client import session


def show_verdict(
    version: Version, verdict: Verdict, approval: Approval | None = None, *, over: bool = False
) -> None:
    """Writes the verdict, and a person's answer to it, to the version's description, its tags and the run.

    `over` says that nobody can answer any more.
    """
    answer = approvals.answer_to(verdict, approval)
    kept = not answer.approved if answer else over if verdict.approve_until else verdict.action == "reject"
    tags = {"verdict": verdict.action, "approval": approvals.words(verdict, answer, over=over)}
    if answer and answer.approved:
        tags |= {"approved_by": answer.by, "approval_reason": answer.reason}
    with session() as client:
        registered = aliases.existing(client, version.name, version.number)
        text = description.with_verdict(registered.description or "", version, verdict, answer, over=over)
        client.update_model_version(version.name, str(version.number), description=text)
        if registered.tags.get("status") == aliases.CHALLENGER and kept:
            tags["status"] = "rejected"
        given = {name: value for name, value in tags.items() if value}
        aliases.tag(client, version.name, version.number, **given)
        client.set_tag(version.run_id, "verdict", verdict.action)
        client.log_text(version.run_id, records.dumps(verdict), "records/verdict.json")
        if answer:
            client.log_text(version.run_id, records.dumps(answer), "records/approval.json")
