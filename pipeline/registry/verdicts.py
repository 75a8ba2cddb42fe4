"""Shows a verdict, and what a person said to it, where a reviewer looks: in MLflow."""

from typing import TYPE_CHECKING

from pipeline.contract import records
from pipeline.contract.records import (
    Approval,
    Verdict,
    Version,
)
from pipeline.registry import aliases, description
from pipeline.registry import approval as approvals
from pipeline.storage.mlflow_client import session

if TYPE_CHECKING:
    pass


def show_verdict(
    version: Version, verdict: Verdict, approval: Approval | None = None, *, over: bool = False
) -> None:
    """Put the verdict where a reviewer looks: first in the description, in the tags, beside the run.

    And what a person said to it; `over` if nobody can say anything any more.
    """
    said = approvals.answer_to(verdict, approval)
    kept = not said.approved if said else over if verdict.approve_until else verdict.action == "reject"
    tags = {"verdict": verdict.action, "approval": approvals.words(verdict, said, over=over)}
    tags |= {"approved_by": said.by, "approval_reason": said.reason} if said and said.approved else {}
    with session() as client:
        found = aliases.existing(client, version.name, version.number)
        text = description.with_verdict(found.description or "", version, verdict, said, over=over)
        client.update_model_version(version.name, str(version.number), description=text)
        told = {name: value for name, value in tags.items() if value}
        if found.tags.get("status") == aliases.CHALLENGER and kept:
            told["status"] = "rejected"
        aliases.tag(client, version.name, version.number, **told)
        client.set_tag(version.run_id, "verdict", verdict.action)
        client.log_text(version.run_id, records.dumps(verdict), "records/verdict.json")
        if said:
            client.log_text(version.run_id, records.dumps(said), "records/approval.json")
