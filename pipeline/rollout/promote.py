"""Which model serves, and what is known of it? Stages register, promote and rollback.

The ledger decides who serves; MLflow's aliases show it. Each stage may be killed at any line and called
again. `register` finds tonight's version by its tags before it makes one. `promote` and `rollback` are one
saga each (pipeline/rollout/saga.py): the ledger is moved by compare-and-swap, then alias, tags and whatever
serves follow it. So a night that lost the race changes nothing, and what was interrupted is finished by the
next call, or by the next `watch`. Promotion needs a verdict; rollback needs none.
"""

import contextlib
import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pipeline.contract import records
from pipeline.contract.errors import NothingToDo, ReleaseError
from pipeline.contract.params import Params
from pipeline.contract.records import (
    Approval,
    Champion,
    Dataset,
    Evaluation,
    Night,
    Plan,
    Profile,
    Release,
    Training,
    Verdict,
    Version,
)
from pipeline.evaluation.evaluator import check_digest
from pipeline.registry import aliases, description, packaging
from pipeline.registry import approval as approvals
from pipeline.registry.lineage import lineage, tags_of
from pipeline.registry.weights import MODEL
from pipeline.report import notifier
from pipeline.rollout import saga
from pipeline.rollout.lost_ledger import expect_ledger
from pipeline.rollout.targets import followers
from pipeline.storage import ledger
from pipeline.storage.ledger import Entry
from pipeline.storage.mlflow_client import find_or_make_run, reachable, run_of, session

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["promote", "reachable", "register", "rollback", "run_of", "tell"]

log = logging.getLogger(__name__)


def register(
    night: Night,
    dataset: Dataset,
    *,
    plan: Plan,
    training: Training,
    evaluation: Evaluation,
    champion: Champion | None,
    params: Params,
    profile: Profile | None = None,
) -> Version:
    """Make tonight's model a version, alias `challenger`, with all that a reviewer needs beside it."""
    check_digest(MODEL, training.model_digest, record="training.json")
    if evaluation.model_digest != training.model_digest:
        raise ReleaseError(
            f"evaluation.json is of model {evaluation.model_digest}, training.json of "
            f"{training.model_digest}; run evaluate again"
        )
    name = params.register_.name
    tags = lineage(night, data_digest=dataset.digest, model_digest=training.model_digest, params=params)
    with session() as client:
        run_id = find_or_make_run(client, night.id)
        text = description.describe(
            night=night,
            dataset=dataset,
            plan=plan,
            training=training,
            evaluation=evaluation,
            champion=champion,
            profile=profile,
            lineage=tags,
            run_id=run_id,
        )
        number, known = _find_version(client, name, tags), records.find(Version)
        if known and known.number == number and known.model_digest == training.model_digest:
            files_digest = known.files_digest
        else:  # again where a call was killed: what MLflow has is only believed as what was just sent
            packaging.log_records(
                client, run_id, night=night, plan=plan, training=training, evaluation=evaluation
            )
            source, files_digest = packaging.log_model(client, run_id, params)
            number = number or _make_version(client, name, source=source, run_id=run_id, tags=tags, text=text)
        client.set_registered_model_alias(name, aliases.CHALLENGER, str(number))
        for key, value in {**tags, "version": f"{name}/{number}"}.items():
            client.set_tag(run_id, key, value)
        with contextlib.redirect_stdout(sys.stderr):  # where it shows the run; the record is on stdout
            client.set_terminated(run_id, "FINISHED")
    return Version(
        name=name,
        number=number,
        night=night.id,
        data_digest=dataset.digest,
        model_digest=training.model_digest,
        run_id=run_id,
        files_digest=files_digest,
    )


def tell(version: Version, verdict: Verdict, approval: Approval | None = None, *, over: bool = False) -> None:
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


def promote(
    night: Night,
    version: Version,
    verdict: Verdict,
    champion: Champion | None,
    params: Params,
    *,
    approval: Approval | None = None,
) -> Release:
    """Let tonight's version serve.

    Raises NothingToDo unless the verdict promotes, or a person approved what was put to one; NotYet while
    they may still answer, or while whatever serves gets ready; and ReleaseError, with nothing changed, if the
    verdict is on other versions, another night moved the ledger first, or somebody does not get ready.
    """
    try:
        approvals.check_promotion(night, verdict, approval, now=datetime.now(UTC))
    except NothingToDo:
        if verdict.approve_until and approvals.answer_to(verdict, approval) is None:
            tell(version, verdict, over=True)
        raise
    serving = champion.champion if champion else 0
    if (verdict.challenger, verdict.champion) != (version.number, serving):
        raise ReleaseError(
            f"the verdict is on version {verdict.challenger} against {verdict.champion}, but tonight's is "
            f"{version.number} against {serving}; run gate again"
        )
    release = Release(
        champion=version.number,
        replaced=serving,
        model_digest=version.model_digest,
        files_digest=version.files_digest,
        night=night.id,
        lineage=tags_of(version, night=night, params=params),
    )
    move = saga.Move(
        kind="promote",
        release=release,
        tip=night.previous,
        commit=lambda: ledger.commit_night(
            night,
            message=f"{night.day}: promote: {approvals.told(verdict, approval)}"[:200],
            release=release,
        ),
    )
    again = records.find(Release) is not None
    with session() as client:
        commit = saga.run(move, followers(client, version.name))
        aliases.tag(client, version.name, version.number, ledger=commit)
        client.log_text(version.run_id, records.dumps(release), "records/release.json")
        now = aliases.alias(client, version.name)
    if now != version.number:
        raise NothingToDo(
            f"version {version.number} was promoted by {commit[:9]}, but version {now} serves since"
        )
    if not again:
        notifier.promoted(night, release, approvals.told(verdict, approval))
    return release


def rollback(params: Params, *, to: int = 0, steps: int = 1, reason: str = "") -> Release:
    """Let an earlier version serve again: alias and data revision go back together, and are read back.

    A rollback that was interrupted is finished instead. Raises NotYet while whatever serves gets ready.

    Args:
        params: for the name of the model.
        to: the version that shall serve; by `steps` if 0.
        steps: how many promotions to take back.
        reason: kept in the ledger and in the registry.
    """
    name = params.register_.name
    with session() as client:
        told = followers(client, name)
        left = saga.recover(told)
        if left and left.new and left.kind == "rollback":
            return left.release
        tip, entries = ledger.ledger_tip(), ledger.history()
        serving = entries[0].serving if entries else None
        if serving is None:
            expect_ledger(params)
            raise ReleaseError("no version was ever promoted; there is nothing to roll back")
        if entries[0].rollback and not aliases.is_settled(client, name, serving):
            log.warning("finishing the rollback to version %d that was interrupted", serving.champion)
            saga.settle(told)
            assert entries[0].release is not None
            return entries[0].release
        target = to or steps_back(entries, steps)
        if target == serving.champion:
            raise NothingToDo(f"version {target} serves already")
        made = promotion_of(entries, target)
        verdict = Verdict(
            action="reject",
            champion=target,
            challenger=serving.champion,
            effect=None,
            low=None,
            high=None,
            num_samples=0,
            reason=f"rolled back from version {serving.champion} to {target}: {reason or 'no reason given'}",
        )
        assert made.release is not None
        release = Release(
            champion=target,
            replaced=serving.champion,
            model_digest=made.release.model_digest,
            files_digest=made.release.files_digest,
            night=made.night.id,
            lineage=made.release.lineage,
        )
        move = saga.Move(
            kind="rollback",
            release=release,
            tip=tip,
            commit=lambda: ledger.commit_rollback(
                made.commit, release, verdict, expected_tip=tip, message=f"{verdict.reason}"[:200]
            ),
        )
        saga.run(move, told)
        notifier.rolled_back(release, verdict.reason)
        return release


def steps_back(entries: Sequence[Entry], steps: int) -> int:
    """Version that served `steps` promotions ago; `entries` are the ledger, newest first.

    A rollback takes promotions back, so the next one goes further back, not forth again.
    Raises ReleaseError where there were not so many.
    """
    served: list[int] = []
    for entry in reversed(entries):
        if entry.release is None:
            continue
        number = entry.release.champion
        served = served[: served.index(number)] if number in served else served
        served.append(number)
    if not 1 <= steps < len(served):
        raise ReleaseError(
            f"cannot take back {steps} promotion{'s' * (steps != 1)}: versions that serve or served are "
            f"{', '.join(map(str, served)) or 'none'}; choose fewer --steps, or --to VERSION"
        )
    return served[-1 - steps]


def promotion_of(entries: Sequence[Entry], number: int) -> Entry:
    """The night that promoted the version."""
    promotions = {e.release.champion: e for e in entries if e.release and not e.rollback}
    if number not in promotions:
        served = ", ".join(map(str, sorted(promotions))) or "none"
        raise ReleaseError(f"version {number} was never promoted; choose one of: {served}")
    return promotions[number]


def _find_version(client: "MlflowClient", name: str, tags: dict[str, str]) -> int | None:
    """Tonight's version, the oldest if there are two; None before it is made."""
    wanted = ("night", "model_digest", "code_commit")
    asked = " and ".join(f"tags.{key} = '{tags[key]}'" for key in wanted)
    found = client.search_model_versions(f"name = '{name}' and {asked}")
    return min((int(version.version) for version in found), default=None)


def _make_version(
    client: "MlflowClient", name: str, *, source: str, run_id: str, tags: dict[str, str], text: str
) -> int:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    made = client.create_model_version(
        name,
        source,
        run_id=run_id,
        tags={**tags, "status": aliases.CHALLENGER},
        description=text,
        await_creation_for=0,
    )
    return int(made.version)
